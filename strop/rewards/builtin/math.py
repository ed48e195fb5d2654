"""`math`: LaTeX answers, compared by math-verify as mathematical expressions."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any, Literal

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from strop.rewards.limits import zero_beyond_limits

_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_ANSWER_LINE = re.compile(r"(?i:answer)\**\s*:(.+)")

# math-verify warns that its own time limits are off. They use SIGALRM, which works in a main thread only; the
# limit of `execution/worker.py` works in any thread.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@zero_beyond_limits
def math_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    r"""1 if the completion's answer equals the task's answer, else 0.

    `strict` reads the last `\boxed{...}`; if there is none, the rest of the line after the last `Answer:`.
    `flexible` lets math-verify search the entire text. `answer` is LaTeX, with or without `\boxed{}` or dollar
    signs around it, or a number.

    Raises ValueError if the answer cannot be parsed.
    """
    gold = _gold(str(answer))
    stated = _stated(completion) if method == "strict" else completion
    if stated is None:
        return 0.0
    found = parse(stated, _EXTRACTION, parsing_timeout=None)
    return float(verify(gold, found, timeout_seconds=None))


@lru_cache(maxsize=1024)
def _gold(answer: str) -> list[Any]:
    """Parsed answer of the task; parsed once for all responses of a group."""
    inside = last_boxed(answer)
    latex = answer.strip().strip("$") if inside is None else inside
    gold = parse(f"\\boxed{{{latex}}}", _EXTRACTION, parsing_timeout=None)
    if not gold:
        raise ValueError(f"the task's answer {answer!r} cannot be parsed as mathematics")
    return list(gold)


def _stated(text: str) -> str | None:
    inside = last_boxed(text)
    if inside is None:
        lines = _ANSWER_LINE.findall(text)
        inside = lines[-1].lstrip("$* ").rstrip("$*. ") if lines else None
    return None if inside is None else f"\\boxed{{{inside}}}"


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}`, with balanced braces; None if there is none."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    opening = text.index("{", start)
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "{" and text[position - 1] != "\\":
            depth += 1
        elif text[position] == "}" and text[position - 1] != "\\":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : position]
    return None
