"""Answers of graders besides a number: the limit that an answer exceeds, and the answer that was found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, Self

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


class StatedAnswer(float):
    """Reward of a response, with the answer that the grader found in it: verl's `score`, `acc` and `pred`.

    It is a float, so that other functions can use it.
    """

    is_right: bool
    prediction: str

    def __new__(cls, reward: float, *, is_right: bool, prediction: str) -> Self:
        value = super().__new__(cls, reward)
        value.is_right, value.prediction = is_right, prediction
        return value
