"""Limits of graders: an answer that exceeds one is wrong, is marked, and does not stop the run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

Parameters = ParamSpec("Parameters")


class LimitExceeded(float):
    """Reward of a response on which a reward function exceeded a limit.

    It is a float, so that other functions can use it; the metric `rollouts/reward_limit_fraction` counts it.
    """


class SizeLimitError(Exception):
    """A number or an expression in a response exceeds the size that a grader evaluates."""


def zero_beyond_limits(grader: Callable[Parameters, float]) -> Callable[Parameters, float]:
    """Return a zero `LimitExceeded` where the grader exceeds a limit of size, recursion, numbers or memory."""

    @functools.wraps(grader)
    def limited(*args: Parameters.args, **kwargs: Parameters.kwargs) -> float:
        try:
            return grader(*args, **kwargs)
        except (SizeLimitError, RecursionError, OverflowError, MemoryError):
            return LimitExceeded(0.0)

    return limited
