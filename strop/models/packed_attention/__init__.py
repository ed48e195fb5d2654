"""Attention over packed sequences with shared prompts."""
