"""Nouns: the values that every layer speaks in. Imports nothing of ours."""
