"""Filtering and truncation of prompts that are longer than `data.max_prompt_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strop.errors import DataError
from strop.types import IntArray

OverlongRule = Literal["error", "filter", "left", "right", "middle"]

_IMAGE_MARGIN = 2
"""Largest number of tokens that a family of models writes between the text and an image's first or last pad token."""


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
    prompts: Iterable[IntArray],
    rule: OverlongRule,
    limit: int,
    where: Callable[[int], str],
    image_token_id: int | None = None,
) -> FittedPrompts:
    """Keep, truncate or filter the prompts of rows 0, 1, ...; `where` returns a row's location for messages.

    Raises `DataError` for a prompt that is too long under `error`, if no prompt is left, and for one that could be
    truncated only by cutting into an image, whose tokens `image_token_id` marks.
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
            kept_tokens = truncate_prompt(np.arange(len(prompt), dtype=np.int32), rule, limit)
            require_whole_images(prompt, kept_tokens, image_token_id, where(row))
            prompt = prompt[kept_tokens]
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


def require_whole_images(token_ids: IntArray, kept: IntArray, image_token_id: int | None, where: str) -> None:
    """Raise `DataError` if truncation to the tokens at `kept` would remove a part of an image, or all of one."""
    if image_token_id is None:
        return
    of_images = np.convolve(token_ids == image_token_id, np.ones(2 * _IMAGE_MARGIN + 1), mode="same") > 0
    if of_images.sum() != of_images[kept].sum():
        raise DataError(
            f"{where}: {len(token_ids)} tokens are too many, and truncation to {len(kept)} would cut into an image. "
            "Write a higher data.max_prompt_tokens, a lower data.images.max_pixels, or data.overlong: filter."
        )


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
