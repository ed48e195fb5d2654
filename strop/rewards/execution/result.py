"""Results of reward functions: a number with named parts, from what a function returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from strop.errors import RewardError
from strop.rewards.limits import LimitExceeded
from strop.rewards.stated_answer import StatedAnswer


class RewardParts(dict[str, float]):
    """Named parts of the reward of one function, and the answer that it found in the response."""

    prediction: str | None = None
    """verl's `pred`, by which majority votes are counted; None if the function names none."""


RewardValue = tuple[float | None, RewardParts]
"""Value of one function and its parts. The value is a `LimitExceeded` where the function exceeded a limit, and None
where the function does not apply to the response."""


class SignatureError(RewardError):
    """A task lacks a column that the function requires, or the function returned no valid reward."""


def parse_reward_result(result: Any, *, may_skip: bool = False) -> RewardValue:
    """Read a number, verl's mapping with `score` and parts, or TRL's list with one of these.

    NumPy's and tensors' scalars, and arrays of one element, are numbers. Parts that are None or no finite numbers are
    parts that this response does not have; verl's `pred` becomes the prediction. With `may_skip`, None in a list, as
    TRL's functions return it, is the value None. Raises SignatureError for anything else, including NaN and infinity.
    """
    single = _single(result)
    if may_skip and single is None and result is not None:
        return None, RewardParts()
    if isinstance(single, StatedAnswer):
        parts = RewardParts(acc=float(single.is_right))
        parts.prediction = single.prediction
        return float(single), parts
    if not isinstance(single, Mapping):
        return _number(single), RewardParts()
    if "score" not in single:
        raise SignatureError(f"returned a dict without 'score', with {', '.join(map(str, single))}")
    numbers = {str(key): finite_number(value) for key, value in single.items() if key != "score"}
    parts = RewardParts({key: value for key, value in numbers.items() if value is not None})
    prediction = single.get("pred")
    parts.prediction = None if prediction is None else str(prediction)
    return _number(_scalar(single["score"])), parts


def finite_number(value: Any) -> float | None:
    """The value as a number; None for text, NaN, infinity and whatever else is no finite number."""
    value = _scalar(value)
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _single(result: Any) -> Any:
    """The only element of a sequence or array, or of nested ones; any other result itself."""
    while isinstance(result, list | tuple) and len(result) == 1:
        result = result[0]
    return _scalar(result)


def _scalar(value: Any) -> Any:
    """The Python number of an array or tensor of one element, on any device; any other value itself."""
    shape = getattr(value, "shape", None)
    is_single = isinstance(shape, tuple) and math.prod(shape) == 1 and hasattr(value, "item")
    return value.item() if is_single else value


def _number(value: Any) -> float:
    if not isinstance(value, Real):
        what = "None" if value is None else f"a {type(value).__name__}, {_short(value)}"
        raise SignatureError(f"returned {what}; {_expected(value)}")
    if not math.isfinite(value):
        raise SignatureError(f"returned {float(value)}; a reward is a finite number")
    return value if isinstance(value, LimitExceeded) else float(value)


def _expected(value: Any) -> str:
    if isinstance(value, list | tuple) or getattr(value, "shape", None):
        return "a reward is one number for each response, and the function got one response"
    if value is None:
        return "a reward is a number; only a function in TRL's form leaves itself out, by None in its list"
    return "a reward is a number"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
