"""HTTP: turns requests into calls on the engine and back."""
