"""Every thread, the one lock, and all that the dispatcher owns."""
