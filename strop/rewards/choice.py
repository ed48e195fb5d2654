"""`choice`: multiple-choice questions, answered with one letter."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any


def choice_reward(completion: str, answer: Any, *, choices: str = "ABCD") -> float:
    r"""1 when the last choice that the completion states is the answer's, else 0.

    Stated means `Final Answer: B`, `the answer is (B)`, `<answer>B</answer>` or `\boxed{B}`; only
    where none of these is there, a `(B)`, or a line that is nothing but `B`, counts too. Letters
    are capitals, so that "a" is a word.

    Raises ValueError when the answer is none of `choices`.
    """
    truth = str(answer).strip().strip("().").upper()
    if len(truth) != 1 or truth not in choices:
        raise ValueError(f"the task's answer {answer!r} is none of the choices {', '.join(choices)}")
    return float(last_choice(completion, choices) == truth)


def last_choice(text: str, choices: str = "ABCD") -> str | None:
    """The last choice stated outright, else the last that merely stands there; None without one."""
    for pattern in _patterns(choices):
        found = pattern.findall(text)
        if found:
            return next(letter for letter in found[-1] if letter)
    return None


@lru_cache
def _patterns(choices: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    letter = rf"[(\[]?([{re.escape(choices)}])(?![\w'’])"
    latex = r"(?:\\\w+\{\s*)*+"
    space = r"[\s*_\"$]*+"
    says = rf"(?i:answer|choice|option){space}(?i:is\b{space}:?|:|：){space}(?i:(?:option|choice)\b)?"
    stated = (rf"{says}{space}{latex}{letter}", rf"<answer>{space}{letter}", rf"\\boxed\{{\s*{latex}{letter}")
    standing = (rf"\(([{re.escape(choices)}])\)", rf"(?m:^{space}{letter}[.)\]]?{space}$)")
    return re.compile("|".join(stated)), re.compile("|".join(standing))
