"""Bytes to tensors and back."""
