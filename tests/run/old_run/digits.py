"""A reward with many values, so that nearly every group has a gradient."""

import re


def digit_fraction(completion: str, answer: str) -> float:
    """The fraction of digits among the characters, without special tokens, which the old version hid from rewards."""
    text = re.sub(r"<\|\w+\|>", "", completion)
    return sum(c.isdigit() for c in text) / max(len(text), 1)
