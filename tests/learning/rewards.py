"""Rewards of short runs, in a module that reward workers import without torch."""

from __future__ import annotations


def right(text: str, answer: str) -> float:
    return float(text.strip() == answer)


def hidden(text: str, answer: str) -> dict[str, float]:
    """Two parts, of which the larger one hides the smaller one in their sum: 20 for two digits, 1 for the answer."""
    score, two = right(text, answer), 20.0 * (len(text.strip()) == 2)
    return {"score": score + two, "right": score, "two_digits": two}
