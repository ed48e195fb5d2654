"""Reasoning in a reply: the text between a model's marks for it, which holds no answer and no tool calls."""

from __future__ import annotations

import re
from typing import Literal

REASONING_MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Opening and closing mark: DeepSeek-R1, Qwen3 and most other models; Magistral; Seed-OSS; Kimi-VL; Command A."""

ReasoningParser = Literal["none", "deepseek_r1", "qwen3"]
"""`deepseek_r1`: everything before </think>, whose opening tag may be in the prompt; without </think> the whole reply.
`qwen3`: the text between <think> and </think>, whose opening tag may be in the prompt; a reply without tags has no
reasoning. `none`: reasoning stays in the content."""

_CLOSING = dict(REASONING_MARKS)
OPENING_MARK = "|".join(re.escape(mark) for mark in _CLOSING)
"""Regular expression of the opening marks."""
_BEGINNING = re.compile(rf"\s*({OPENING_MARK})")
_ANY_CLOSING = re.compile("|".join(re.escape(mark) for mark in _CLOSING.values()))
_LAST_OPENING = re.compile(rf"(?:{OPENING_MARK})(?!.*(?:{OPENING_MARK}))", re.DOTALL)


def first_content(text: str, *, is_open: bool) -> int:
    """Position after the reasoning with which a reply begins; the end of the text where it is not closed.

    `is_open` says that the prompt opens it. A closing mark without its opening mark closes reasoning, too.
    """
    position = 0
    if (found := _ANY_CLOSING.search(text)) is not None:
        opening = next(mark for mark, closing in REASONING_MARKS if closing == found[0])
        if is_open or opening not in text[: found.start()]:
            position = found.end()
    elif is_open:
        return len(text)
    while (mark := _BEGINNING.match(text, position)) is not None:
        position = reasoning_end(text, mark.start(1), mark[1]) or len(text)
    return position


def reasoning_end(text: str, start: int, mark: str) -> int | None:
    """Position after the reasoning that a mark opens at `start`; None for a mention of the mark.

    Reasoning that is not closed extends to the end of the text. Its mark stands at the beginning of a line, or the text
    ends with it; in the middle of a sentence it is a mention.
    """
    inside = start + len(mark)
    end = text.find(_CLOSING[mark], inside)
    if end >= 0:
        return end + len(_CLOSING[mark])
    line = text[text.rfind("\n", 0, start) + 1 : start]
    return len(text) if not line.strip() or not text[inside:].strip() else None


def ends_in_reasoning(reply_start: str) -> bool:
    """Whether the text with which a prompt begins a reply leaves reasoning open."""
    found = _LAST_OPENING.search(reply_start)
    if found is None or _CLOSING[found[0]] in reply_start[found.end() :]:
        return False
    return reasoning_end(reply_start, found.start(), found[0]) is not None


def split_reasoning(text: str, parser: ReasoningParser, *, is_open: bool = False) -> tuple[str | None, str]:
    """Reasoning and content of a reply. A reply that ends within its reasoning has no content.

    `is_open` says that the prompt opens the reasoning.
    """
    if parser == "none":
        return None, text
    opening, tag, opened = text.partition("<think>")
    has_tag = bool(tag) and not opening.strip()
    inside = opened if has_tag else text
    reasoning, end, content = inside.partition("</think>")
    if parser == "qwen3" and not (is_open or has_tag or end):
        return None, text
    return reasoning.strip("\n") or None, content.lstrip("\n") if end else ""
