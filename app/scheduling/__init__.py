"""Decisions: pure functions and plain objects; time is an argument."""
