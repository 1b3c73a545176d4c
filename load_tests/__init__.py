"""Measurements: times, rates and memory, as ratios within one run."""
