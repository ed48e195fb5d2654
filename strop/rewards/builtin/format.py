"""`format`: the completion is `<think>...</think>` followed by `<answer>...</answer>`."""

from __future__ import annotations

import re
from typing import Literal

from strop.rewards.limits import zero_beyond_limits

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_LOOSE = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_STRICT = re.compile(r"\s*<think>\n.*\n</think>\n<answer>\n.*\n</answer>\s*", re.DOTALL)


@zero_beyond_limits
def format_reward(
    completion: str, *, method: Literal["loose", "strict"] = "loose", think_in_prompt: bool = False
) -> float:
    """1 if the text is reasoning in think tags followed by an answer in answer tags, else 0.

    Each tag occurs once, with only white space outside the tags; with `strict`, each tag is on a separate
    line. `think_in_prompt` is for prompts, or chat templates, that already end with `<think>`.
    """
    text = f"<think>{completion}" if think_in_prompt else completion
    once = all(text.count(tag) == 1 for tag in _TAGS)
    pattern = _STRICT if method == "strict" else _LOOSE
    return float(once and pattern.fullmatch(text) is not None)
