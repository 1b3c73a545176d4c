"""The table of disciplines."""
