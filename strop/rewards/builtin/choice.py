"""`choice`: multiple-choice questions whose answer is one letter."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from strop.rewards.graders import zero_beyond_limits


@zero_beyond_limits
def choice_reward(completion: str, answer: Any, *, choices: str = "ABCD") -> float:
    r"""1 if the last choice that the completion states equals the answer, else 0.

    A stated choice is `Final Answer: B`, `the answer is (B)`, `<answer>B</answer>` or `\boxed{B}`. If the
    completion has none of these, `option B is correct` counts, and if it has none of these either, a `(B)` or a
    last line that consists of `B`. Only capital letters count, because "a" is a word.

    Raises ValueError if the answer is not one of `choices`.
    """
    expected = str(answer).strip().strip("().").upper()
    if len(expected) != 1 or expected not in choices:
        raise ValueError(f"the task's answer {answer!r} is not one of the choices {', '.join(choices)}")
    return float(last_choice(completion, choices) == expected)


def last_choice(text: str, choices: str = "ABCD") -> str | None:
    """Last explicitly stated choice, else the last one called correct, else the last bare letter, else None."""
    for pattern in _patterns(choices):
        found = pattern.findall(text)
        if found:
            return next(letter for letter in found[-1] if letter)
    return None


@lru_cache
def _patterns(choices: str) -> tuple[re.Pattern[str], ...]:
    """Patterns in the order of their precedence; the time of each is linear in the text."""
    letter = rf"[(\[]?([{re.escape(choices)}])(?![\w'’])"
    latex = r"(?:\\(?!boxed)\w++\{\s*+)*+"
    space = r"[\s*_\"$]*+"
    correct = (
        rf"(?i:answer|choice|option){space}{letter}[)\]]?{space}(?i:is\s++(?:the\s++)?(?:correct|right))\b"
    )
    says = rf"(?i:answer|choice|option){space}(?i:is\b{space}:?|:|：){space}(?i:(?:option|choice)\b)?"
    stated = (
        rf"{says}{space}{latex}{letter}",
        rf"<answer>{space}{letter}",
        rf"\\boxed\{{\s*+{latex}{letter}",
    )
    bare = (rf"\(([{re.escape(choices)}])\)", rf"(?m:^(?:[^\S\n]|[*_\"$])*+){letter}[.)\]]?{space}\Z")
    return re.compile("|".join(stated)), re.compile(correct), re.compile("|".join(bare))
