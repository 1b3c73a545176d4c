"""The backend tests of the ONNX project, asked through a real server."""
