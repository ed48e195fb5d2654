"""A reward with many values, so that nearly every group has a gradient."""


def digit_fraction(completion: str, answer: str) -> float:
    """The fraction of the completion's characters that are digits."""
    return sum(c.isdigit() for c in completion) / max(len(completion), 1)
