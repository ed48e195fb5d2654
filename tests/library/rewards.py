"""A reward of tests, in a module that reward workers import without torch."""

from __future__ import annotations


def digits(completion: str) -> float:
    """Fraction of digits, which a random model learns in a few steps."""
    return sum(map(str.isdigit, completion)) / max(1, len(completion))
