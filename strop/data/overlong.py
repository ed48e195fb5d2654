"""Prompts that are longer than `data.max_prompt_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strop.errors import DataError
from strop.types import Ints

Rule = Literal["error", "filter", "left", "right", "middle"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Prompts that are all short enough."""

    rows: tuple[int, ...]
    """The row that each prompt is of."""
    prompts: tuple[Ints, ...]
    """[P] each."""
    overlong: int
    """Prompts that were too long, and so are left out or cut."""


def fit(prompts: Iterable[Ints], rule: Rule, limit: int, where: Callable[[int], str]) -> Fitted:
    """Keep, cut or leave out the prompts of rows 0, 1, ...; `where` names a row in messages.

    Raises `DataError` for a prompt that is too long under `error`, and where no prompt is left.
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
            prompt = cut(prompt, rule, limit)
        rows.append(row)
        kept.append(prompt)
    if too_long and (rule == "error" or not kept):
        row, length = too_long[0]
        longest = max(length for _, length in too_long)
        raise DataError(
            f"{where(row)}: the prompt is {length} tokens long, more than data.max_prompt_tokens ({limit}). "
            f"{len(too_long)} of {count} prompts are too long; the longest has {longest} tokens. Write a "
            "higher max_prompt_tokens, or data.overlong: filter to leave such tasks out, or left, right or "
            "middle to cut their prompts."
        )
    return Fitted(tuple(rows), tuple(kept), len(too_long))


def cut(prompt: Ints, rule: Literal["left", "right", "middle"], limit: int) -> Ints:
    """[limit] `left` drops the beginning, `right` the end, and `middle` keeps half of each.

    As verl does (verl/utils/torch_functional.py, postprocess_data): of an odd limit, the end keeps one more.
    """
    match rule:
        case "left":
            return prompt[-limit:].copy()
        case "right":
            return prompt[:limit].copy()
        case "middle":
            first = limit // 2
            return np.concatenate([prompt[:first], prompt[len(prompt) - (limit - first) :]])
