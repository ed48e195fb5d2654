"""The answer that a text comes to, by which many texts can vote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARKED = re.compile(r"####\s*(.+)")
_STATED = re.compile(r"(?i:answer)\**\s*(?:is|:)\s*:?\s*(.+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_answer(text: str) -> str:
    r"""What stands in the last `\boxed{}`, in the last answer tags, after the last `####`, after the last
    "answer is" or "answer:"; else the last number; else the whole text. Without commas and a last dot."""
    from strop.rewards.math import last_boxed

    boxed = last_boxed(text)
    found = [boxed] if boxed is not None else []
    for pattern in (_TAGGED, _MARKED, _STATED, _NUMBER):
        found = found or pattern.findall(text)
    answer = found[-1] if found else text
    return re.sub(r"(?<=\d),(?=\d)", "", answer.strip().strip("$* ").rstrip(".").strip())


def majority(texts: Sequence[str]) -> tuple[int, ...]:
    """Which of the texts come to the answer that most of them come to; of several, to the first."""
    answers = [final_answer(text) for text in texts]
    winner, _ = Counter(answers).most_common(1)[0]
    return tuple(index for index, answer in enumerate(answers) if answer == winner)
