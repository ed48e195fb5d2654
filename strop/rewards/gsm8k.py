"""`gsm8k`: grade-school mathematics, answered with one number (arXiv 2110.14168)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Literal

_NUMBER = r"(?:(?<![\d)])-)?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
"""A minus after a digit or a bracket subtracts; before anything else it belongs to the number."""
_ANYWHERE = re.compile(_NUMBER)
_AFTER_MARK = re.compile(rf"####\s*\$?({_NUMBER})")


def gsm8k_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    """1 when the completion's last number is the answer's, else 0.

    `strict` reads the last `#### number`, as the dataset's own solutions end; `flexible` the last
    number of the text. Numbers are compared by value, without commas, dollar signs and trailing
    dots. `answer` is a number or text with one; of a whole solution the part after `####` counts.

    Raises ValueError when the answer holds no number.
    """
    truth = _last_number(str(answer).rsplit("####", 1)[-1], _ANYWHERE)
    if truth is None:
        raise ValueError(f"the task's answer {answer!r} holds no number")
    found = _last_number(completion, _AFTER_MARK if method == "strict" else _ANYWHERE)
    return float(found == truth)


def _last_number(text: str, pattern: re.Pattern[str]) -> Decimal | None:
    found = pattern.findall(text)
    return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None
