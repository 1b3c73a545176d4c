"""Instruction counts of the hot path, against those on record: `python -m load_tests guard`."""
