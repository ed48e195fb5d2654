"""`gsm8k`: grade-school mathematics whose answer is one number (arXiv 2110.14168)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Literal

from strop.rewards.limits import zero_beyond_limits

_NUMBER = r"(?:(?<![\d)])[-−])?\$?(?:\d(?:[\d,]|\{,\})*+(?:\.\d+)?|\.\d+)"
"""A minus sign after a digit or a bracket is a subtraction; elsewhere it is part of the number."""
_PLAIN = str.maketrans({",": "", "{": "", "}": "", "$": "", "−": "-"})
_ANYWHERE = re.compile(_NUMBER)
_AFTER_MARK = re.compile(rf"####\s*\$?({_NUMBER})")


@zero_beyond_limits
def gsm8k_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    """1 if the completion's last number equals the answer, else 0.

    `strict` reads the last `#### number`, the ending of the dataset's own solutions; `flexible` reads the last
    number of the text. Numbers are compared by value, without commas (also LaTeX's `1{,}234`), dollar signs and
    trailing periods.
    `answer` is a number or a text with one; in a complete solution, the part after `####` counts.

    Raises ValueError if the answer has no number.
    """
    expected = _last_number(str(answer).rsplit("####", 1)[-1], _ANYWHERE)
    if expected is None:
        raise ValueError(f"the task's answer {answer!r} has no number")
    found = _last_number(completion, _AFTER_MARK if method == "strict" else _ANYWHERE)
    return float(found == expected)


def _last_number(text: str, pattern: re.Pattern[str]) -> Decimal | None:
    found = pattern.findall(text)
    return Decimal(found[-1].translate(_PLAIN)) if found else None
