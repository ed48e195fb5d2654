"""Comparison of rewards with thresholds and with each other, up to the rounding error of weighted sums.

0.7 + 0.2 + 0.1 is 0.9999999999999999 in floating point, and 0.1 + 0.2 is not 0.3, so rewards are not compared by `>=`,
`>` or `==`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_RELATIVE = 1e-6
"""Rounding error of a sum of a few float32 numbers, relative to the largest of them."""
_ABSOLUTE = 1e-7
"""Rounding error of a sum of a few float32 numbers up to 1 that cancel each other."""


def reaches(rewards: Any, threshold: float) -> Any:
    """Whether rewards are at least a threshold, up to rounding; of a number, an array or a tensor."""
    return rewards >= threshold - _rounding_error(threshold)


def exceeds(rewards: Any, threshold: float) -> Any:
    """Whether rewards are above a threshold, beyond rounding; of a number, an array or a tensor."""
    return rewards > threshold + _rounding_error(threshold)


def are_equal(rewards: Sequence[float]) -> bool:
    """Whether rewards differ by no more than 1e-6 of the largest magnitude among them; True for one or none."""
    if len(rewards) < 2:
        return True
    low, high = min(rewards), max(rewards)
    return high - low <= _RELATIVE * max(abs(low), abs(high))


def _rounding_error(threshold: float) -> float:
    return max(_ABSOLUTE, _RELATIVE * abs(threshold))
