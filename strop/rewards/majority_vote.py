"""Majority vote over the final answers of several responses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from strop.rewards.builtin.math_text import last_boxed, last_tagged

_MARKED = re.compile(r"####\s*+(.+)")
_STATED = re.compile(r"(?i:answer)\**+\s*+(?:is|:)\s*+:?\s*+(.+)")
_NUMBER = re.compile(r"-?\d[\d,]*+(?:\.\d+)?")


def final_answer(text: str) -> str:
    r"""Final answer of a response, without thousands separators and a trailing period.

    The first of these that the text has: the content of the last `\boxed{}`, of the last answer tags, the text
    after the last `####`, after the last "answer is" or "answer:", the last number, the entire text.
    """
    stated = (last_boxed(text), last_tagged(text))
    found = [each for each in stated if each is not None][:1]
    for pattern in (_MARKED, _STATED, _NUMBER):
        found = found or pattern.findall(text)
    answer = found[-1] if found else text
    return re.sub(r"(?<=\d),(?=\d)", "", answer.strip().strip("$* ").rstrip(".").strip())


def majority_indices(texts: Sequence[str]) -> tuple[int, ...]:
    """Indices of the responses with the most frequent final answer; the first such answer wins a tie."""
    answers = [final_answer(text) for text in texts]
    winner, _ = Counter(answers).most_common(1)[0]
    return tuple(index for index, answer in enumerate(answers) if answer == winner)
