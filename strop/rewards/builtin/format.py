"""`format`: the completion is `<think>...</think>` followed by `<answer>...</answer>`."""

from __future__ import annotations

import re
from typing import Literal

from strop.rewards.graders import zero_beyond_limits

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_BETWEEN = re.compile(r"</think>\s*<answer>")
_CLOSED = re.compile(r"</answer>\s*$", re.MULTILINE)
_LOOSE = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
_STRICT = re.compile(r"\s*<think>\n.*\n</think>\n<answer>\n.*\n</answer>\s*", re.DOTALL)


@zero_beyond_limits
def format_reward(
    completion: str,
    *,
    method: Literal["loose", "strict", "ending", "think"] = "loose",
    think_in_prompt: bool = False,
    right: float = 1.0,
    wrong: float = 0.0,
) -> float:
    """`right` if the text is reasoning in think tags followed by an answer in answer tags, else `wrong`.

    Each tag occurs once, with only white space outside the tags; with `strict`, each tag is on a separate
    line. With `ending`, only the end of the text, or of one of its lines, has this form, as in Trinity-RFT's
    math reward; with `think`, the text has one pair of think tags. `think_in_prompt` is for prompts, or chat
    templates, that already end with `<think>`.
    """
    text = f"<think>{completion}" if think_in_prompt else completion
    if method == "ending":
        correct = _ending(text)
    elif method == "think":
        once = text.count("<think>") == text.count("</think>") == 1
        correct = once and text.find("<think>") < text.find("</think>")
    else:
        pattern = _STRICT if method == "strict" else _LOOSE
        correct = all(text.count(tag) == 1 for tag in _TAGS) and pattern.fullmatch(text) is not None
    return right if correct else wrong


def _ending(text: str) -> bool:
    """Whether think tags, then answer tags, occur in this order, with only white space between the two pairs and
    after the second one."""
    for middle in _BETWEEN.finditer(text):
        opened = text.find("<think>", 0, middle.start()) >= 0
        if opened and _CLOSED.search(text, middle.end()):
            return True
    return False
