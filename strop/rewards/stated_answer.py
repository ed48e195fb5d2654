"""Value of a grader that also says which answer it found in the response."""

from __future__ import annotations

from typing import Self


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
