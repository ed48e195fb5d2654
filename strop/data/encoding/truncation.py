"""Filtering and truncation of prompts that are longer than `data.max_prompt_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strop.errors import DataError
from strop.types import IntArray

OverlongRule = Literal["error", "filter", "left", "right", "middle"]


@dataclass(frozen=True, slots=True)
class FittedPrompts:
    """Prompts of at most the maximum length."""

    rows: tuple[int, ...]
    """The number of each prompt's row."""
    prompts: tuple[IntArray, ...]
    """[P] each."""
    num_overlong: int
    """Number of prompts that were too long, and are filtered or truncated."""


def fit_prompts(
    prompts: Iterable[IntArray], rule: OverlongRule, limit: int, where: Callable[[int], str]
) -> FittedPrompts:
    """Keep, truncate or filter the prompts of rows 0, 1, ...; `where` returns a row's location for messages.

    Raises `DataError` for a prompt that is too long under `error`, and if no prompt is left.
    """
    rows, kept = [], []
    too_long: list[tuple[int, int]] = []
    count = 0
    for row, prompt in enumerate(prompts):
        count += 1
        if len(prompt) > limit:
            too_long.append((row, len(prompt)))
            if rule == "error" or rule == "filter":
                continue
            prompt = truncate_prompt(prompt, rule, limit)
        rows.append(row)
        kept.append(prompt)
    if too_long and (rule == "error" or not kept):
        row, length = too_long[0]
        longest = max(length for _, length in too_long)
        raise DataError(
            f"{where(row)}: the prompt has {length} tokens, more than data.max_prompt_tokens ({limit}). "
            f"{len(too_long)} of {count} prompts are too long; the longest has {longest} tokens. Write a "
            "higher max_prompt_tokens, or data.overlong: filter to skip such tasks, or left, right or middle "
            "to truncate their prompts."
        )
    return FittedPrompts(tuple(rows), tuple(kept), len(too_long))


def truncate_prompt(prompt: IntArray, rule: Literal["left", "right", "middle"], limit: int) -> IntArray:
    """[limit] `left` drops the beginning, `right` drops the end, and `middle` keeps half of the limit of
    each.

    Like verl (verl/utils/torch_functional.py, postprocess_data): with an odd limit, the end keeps one
    token more.
    """
    match rule:
        case "left":
            return prompt[-limit:].copy()
        case "right":
            return prompt[:limit].copy()
        case "middle":
            first = limit // 2
            return np.concatenate([prompt[:first], prompt[len(prompt) - (limit - first) :]])
