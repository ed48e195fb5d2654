r"""Rewards of Trinity-RFT: `trinity_math`, `trinity_accuracy`, `trinity_format`, `trinity_math_boxed`,
`trinity_math_dapo` and `trinity_countdown`.

Each reads the answer where the reward of this name in Trinity's `common/rewards` reads it. The parts for the form of a
response, plus or minus 0.1, are parts of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from math_verify import LatexExtractionConfig, verify

from strop.compat.scorers import qwen
from strop.compat.scorers.boxed import last_box_of_math, last_box_of_prm800k
from strop.compat.scorers.expressions import is_equal_prm800k, is_equal_tolerant
from strop.rewards.builtin.countdown import evaluate
from strop.rewards.builtin.math_text import last_tagged
from strop.rewards.builtin.math_verify_search import answers_in_text, checked_answers
from strop.rewards.graders import zero_beyond_limits
from strop.workers.json_text import parse_json

_OPEN, _CLOSE = "<answer>", "</answer>"
_FIRST_TAG = "<think>\n"
_MIDDLE = "\n</think>\n<answer>\n"
_LAST_TAG = re.compile(r"\n</answer>$", re.MULTILINE)
_NUMBER = re.compile(r"\d+")
_FORMAT_SCORE = 0.1


@zero_beyond_limits
def trinity_math_reward(completion: str, answer: Any) -> float:
    """1 if math-verify finds the task's answer in the first `<answer>...</answer>` of one line, else 0.

    Without such tags, the entire response counts. The task's answer is read in the same way, so of a solution in the
    form of GSM8K the last number counts.
    """
    return _agree(answers_in_text(_first_tagged(completion)), answers_in_text(_first_tagged(str(answer))))


@zero_beyond_limits
def trinity_accuracy_reward(completion: str, answer: Any) -> float:
    """1 if the boxed formula, or the one after `the final answer is`, is the task's answer, else 0."""
    boxed_first = LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    found = checked_answers(completion, (boxed_first,))
    gold = checked_answers(str(answer), (LatexExtractionConfig(),))
    return _agree(found, gold or [str(answer)])


@zero_beyond_limits
def trinity_format_reward(completion: str) -> float:
    """0.1 if the response begins with think tags and then answer tags, each on a line of its own, else -0.1."""
    middle = completion.find(_MIDDLE, len(_FIRST_TAG)) if completion.startswith(_FIRST_TAG) else -1
    correct = middle >= 0 and _LAST_TAG.search(completion, middle + len(_MIDDLE)) is not None
    return _FORMAT_SCORE if correct else -_FORMAT_SCORE


@zero_beyond_limits
def trinity_math_boxed_reward(completion: str, answer: Any) -> float:
    r"""1 if the last `\boxed{...}` is the answer in the normal form of Qwen2.5-Math, else 0.

    Of a task's answer that has a box, the box counts.
    """
    stated, truth = last_box_of_math(completion), last_box_of_math(str(answer))
    return float(stated is not None and qwen.is_equal(stated, str(answer) if truth is None else truth))


@zero_beyond_limits
def trinity_math_dapo_reward(completion: str, answer: Any) -> float:
    r"""1 if the last `\boxed{...}` after `</think>`, or the whole text there, has the value of the answer, else -1."""
    text, truth = completion.rpartition("</think>")[2], str(answer)
    stated = last_box_of_prm800k(text) or text
    return 1.0 if is_equal_prm800k(stated, truth) or is_equal_tolerant(stated, truth) else -1.0


@zero_beyond_limits
def trinity_countdown_reward(completion: str, answer: Any) -> float:
    """1 if the last `<answer>...</answer>` of the last line reaches the target with each number once, else 0.1.

    0 without such tags. `answer` is a mapping with `target` and `numbers`, or such a mapping as JSON.
    """
    game = parse_json(answer) if isinstance(answer, str) else answer
    if not isinstance(game, Mapping) or not {"target", "numbers"} <= set(game):
        raise ValueError(f"the task's answer must have `target` and `numbers`, got {answer!r}")
    stated = last_tagged(completion.rpartition("\n")[2])
    if stated is None:
        return 0.0
    given = Counter(int(number) for number in game["numbers"])
    result = evaluate(stated)
    if result is None or Counter(map(int, _NUMBER.findall(stated))) != given:
        return _FORMAT_SCORE
    return 1.0 if abs(result[0] - game["target"]) < 1e-5 else _FORMAT_SCORE


def _agree(found: list[Any], gold: list[Any]) -> float:
    return float(verify(found, gold, timeout_seconds=None))


def _first_tagged(text: str) -> str:
    for line in text.split("\n"):
        start = line.find(_OPEN)
        end = -1 if start < 0 else line.find(_CLOSE, start + len(_OPEN))
        if end >= 0:
            return line[start + len(_OPEN) : end]
    return text
