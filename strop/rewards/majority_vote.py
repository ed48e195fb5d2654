"""Majority vote over the final answers of several responses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(r"####\s*(.+)")
_STATED = re.compile(r"(?i:answer)\**\s*(?:is|:)\s*:?\s*(.+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    r"""Final answer of a response, without thousands separators and a trailing period.

    The first of these that the text has: the content of the last `\boxed{}`, of the last answer tags, the text
    after the last `####`, after the last "answer is" or "answer:", the last number, the entire text.
    """
    from strop.rewards.builtin.math import last_boxed

    boxed = last_boxed(text)
    found = [boxed] if boxed is not None else []
    for pattern in (_TAGGED, _MARKED, _STATED, _NUMBER):
        found = found or pattern.findall(text)
    answer = found[-1] if found else text
    return re.sub(r"(?<=\d),(?=\d)", "", answer.strip().strip("$* ").rstrip(".").strip())


def majority_indices(texts: Sequence[str]) -> tuple[int, ...]:
    """Indices of the responses with the most frequent final answer; the first such answer wins a tie."""
    answers = [final_answer(text) for text in texts]
    winner, _ = Counter(answers).most_common(1)[0]
    return tuple(index for index, answer in enumerate(answers) if answer == winner)
