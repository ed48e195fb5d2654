"""Explanations of a loaded run: each value with its source, and a summary in words."""
