"""Text of a task's answer that data files hold as a number or as text."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

_NUMBER_WITH_PERIOD = re.compile(r"\$*\s*[-+−]?[\d,]*\d\.\s*\$*")


def answer_text(answer: Any) -> str:
    """The answer as text; a number in plain decimal digits: `1e16` as `10000000000000000`, `42.0` as `42`.

    Raises ValueError for null, NaN, infinity, a truth value, a list or a mapping, and for a text without characters.
    """
    if isinstance(answer, str):
        if not answer.strip():
            raise ValueError("the task's answer is empty; write the answer as text or a number")
        return answer
    if isinstance(answer, Decimal | Real) and not isinstance(answer, bool):
        if not math.isfinite(answer):
            raise ValueError(f"the task's answer is {answer}; write the answer as text or a finite number")
        if isinstance(answer, Integral):
            return str(int(answer))
        exact = answer if isinstance(answer, Decimal) else Decimal(repr(float(answer)))
        text = format(exact, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    shown = "null" if answer is None else f"{answer!r:.80}, of the type {type(answer).__name__}"
    raise ValueError(f"the task's answer is {shown}; write the answer as text or a number")


def mathematical_answer_text(answer: Any) -> str:
    """`answer_text` without a trailing period, which is refused, as is the text NaN."""
    text = answer_text(answer)
    if text.strip().lower() in ("nan", "none", "null"):
        raise ValueError(f"the task's answer is {text.strip()!r}; write the answer as text or a number")
    if _NUMBER_WITH_PERIOD.fullmatch(text.strip()):
        raise ValueError(f"the task's answer {text!r} ends in a period; write it without the period")
    return text
