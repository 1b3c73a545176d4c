"""An inference server for ONNX models: one process, one device, many models."""
