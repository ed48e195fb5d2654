"""Reward of the sums."""

import re


def last_number(completion: str, answer: str) -> float:
    """Return 1 if the last number of the completion is the answer, otherwise 0."""
    numbers = re.findall(r"\d+", completion)
    return float(bool(numbers) and numbers[-1] == answer)
