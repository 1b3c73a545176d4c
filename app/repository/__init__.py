"""Bundles on disk: files in, values out."""
