r"""verl's scorers of mathematics: `verl_gsm8k`, `verl_math`, `verl_math_dapo`, `verl_prime_math`, `verl_geometry3k`.

Each reads the answer where the scorer of this name in verl's `utils/reward_score` reads it, and gives its values.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from strop.compat.scorers import hendrycks, minerva
from strop.compat.scorers.boxed import braced, last_box_of_math, last_box_of_prm800k
from strop.compat.scorers.expressions import is_equal_prm800k, is_equal_tolerant
from strop.rewards.graders import StatedAnswer, zero_beyond_limits

_GSM8K = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_SEARCHED_CHARS = 300
"""Length of the end of a response in which an answer line counts."""
_BOX_CHARS = 100
"""Length of the end of a response in which a box counts."""
_INVALID = "[INVALID]"
"""verl's answer of a response without an answer line."""
_BEFORE = ("answer:", "answer is", "answers are")
_AFTER = ("is answer", "is the answer", "are answers", "are the answers")
_VERBS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")


@zero_beyond_limits
def verl_gsm8k_reward(completion: str, answer: Any, *, last_chars: int | None = None) -> float:
    """1 if the number after the last `#### ` is the answer, as text without commas, else 0.

    `last_chars` searches only the end of the response: 300 characters since verl 0.5.
    """
    found = _GSM8K.findall(completion if last_chars is None else completion[-last_chars:])
    return float(bool(found) and found[-1].replace(",", "") == str(answer))


@zero_beyond_limits
def verl_math_reward(completion: str, answer: Any) -> float:
    r"""1 if the last `\boxed{...}` is the answer in the normal form of MATH, else 0; `Answer: 34` is 0."""
    stated = last_box_of_math(completion)
    return float(stated is not None and hendrycks.is_equal(stated, str(answer)))


@zero_beyond_limits
def verl_math_dapo_reward(
    completion: str, answer: Any, *, version: Literal["0.4", "0.5", "0.9"] = "0.4"
) -> float:
    r"""1 if the last line `Answer: ...` is the answer in Minerva's normal form, else -1.

    Only the last 300 characters of the response count. In version 0.9 (verl 0.9.1), a response without such a line has
    the answer of the last `\boxed{...}` in its last 100 characters, which is compared as text.
    """
    end = completion[-_SEARCHED_CHARS:]
    lines = _ANSWER_LINE.findall(end)
    stated = minerva.normal_form(lines[-1] if lines else _INVALID)
    is_right = stated == minerva.normal_form(str(answer))
    if version == "0.9" and stated == _INVALID and (boxed := _last_box(end[-_BOX_CHARS:])) is not None:
        stated, is_right = boxed, boxed == str(answer)
    return StatedAnswer(1.0 if is_right else -1.0, is_right=is_right, prediction=stated)


@zero_beyond_limits
def verl_prime_math_reward(completion: str, answer: Any) -> float:
    r"""1 if the answer that the response ends with has the value of the task's answer, else 0.

    The answer is the last `\boxed{...}`, or what follows phrases such as `the answer is` and the last verb.
    """
    stated, truth = stated_in_prose(completion), str(answer)
    return float(is_equal_prm800k(stated, truth) or is_equal_tolerant(stated, truth))


@zero_beyond_limits
def verl_geometry3k_reward(completion: str, answer: Any, *, format_weight: float = 0.1) -> float:
    r"""0.9 for the last `\boxed{...}` with the answer, plus 0.1 for `<think>...</think>` and a box after it."""
    stated = last_box_of_mathruler(completion)
    accuracy = float(is_equal_prm800k("None" if stated is None else stated, str(answer)))
    return (1.0 - format_weight) * accuracy + format_weight * float(_thinks_then_boxes(completion))


def stated_in_prose(text: str) -> str:
    """The answer that a response ends with, as PRIME (arXiv 2502.01456) extracts it; the entire text if it has no
    mark of an answer."""
    for mark in _BEFORE:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[found + len(mark) :].strip()
    for mark in _AFTER:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[:found].strip()
    text = last_box_of_prm800k(text) or text
    if ". " in text:
        text = text.rpartition(". ")[0].strip()
    for mark in _VERBS:
        found = text.lower().rfind(mark)
        text = text if found < 0 else text[found + len(mark) :].strip()
    return text


def last_box_of_mathruler(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`; None if there is none or it is not closed."""
    found = _last_box(text)
    return None if found is None else found.strip()


def _last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`; None if there is none or it is not closed."""
    start = text.rfind("\\boxed{")
    return None if start < 0 else braced(text, start + len("\\boxed"))


def _thinks_then_boxes(text: str) -> bool:
    closed = text.find("</think>", len("<think>"))
    box = -1 if closed < 0 else text.find("\\boxed{", closed + len("</think>"))
    return text.startswith("<think>") and box >= 0 and text.find("}", box + len("\\boxed{")) >= 0
