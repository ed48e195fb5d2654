"""Filtering and truncation of prompts, demonstrations and pairs that are longer than their limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.errors import DataError
from strop.types import IntArray

OverlongRule = Literal["error", "filter", "left", "right", "middle"]

RowNumbers = npt.NDArray[np.int64]

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


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows whose prompts have at most the maximum length, or are truncated to it."""

    rows: RowNumbers
    """[tasks] in ascending order."""
    num_overlong: int
    """Number of prompts that are too long, and are filtered or truncated."""


def fit_prompts(
    prompts: Iterable[IntArray],
    rule: OverlongRule,
    limit: int,
    where: Callable[[int], str],
    image_token_id: int | None = None,
) -> FittedPrompts:
    """Keep, truncate or filter the prompts of rows 0, 1, ... See `kept_rows`."""
    whole = list(prompts)
    kept = kept_rows(whole, rule, limit, where, image_token_id)
    rows = tuple(kept.rows.tolist())
    return FittedPrompts(rows, tuple(fit_prompt(whole[row], rule, limit) for row in rows), kept.num_overlong)


def kept_rows(
    prompts: Iterable[IntArray | None],
    rule: OverlongRule,
    limit: int,
    where: Callable[[int], str],
    image_token_id: int | None = None,
) -> KeptRows:
    """The rows 0, 1, ... that are kept, from their whole prompts; None for a prompt that is not too long.

    `where` returns a row's location for messages. Raises `DataError` for a prompt that is too long under `error`, if
    no prompt is left, and for one that could be truncated only by cutting into an image, whose tokens
    `image_token_id` marks.
    """
    dropped: list[int] = []
    count = num_overlong = longest = 0
    first: tuple[int, int] | None = None
    for row, prompt in enumerate(prompts):
        count += 1
        if prompt is None or len(prompt) <= limit:
            continue
        num_overlong, longest = num_overlong + 1, max(longest, len(prompt))
        first = first or (row, len(prompt))
        if rule == "error" or rule == "filter":
            dropped.append(row)
            continue
        kept_tokens = truncate_prompt(np.arange(len(prompt), dtype=np.int32), rule, limit)
        require_whole_images(prompt, kept_tokens, image_token_id, where(row))
    if first is not None and (rule == "error" or len(dropped) == count):
        row, length = first
        raise DataError(
            f"{where(row)}: the prompt has {length} tokens, more than data.max_prompt_tokens ({limit}). "
            f"{num_overlong} of {count} prompts are too long; the longest has {longest} tokens. Write a "
            "higher max_prompt_tokens, or data.overlong: filter to skip such tasks, or left, right or middle "
            "to truncate their prompts."
        )
    return KeptRows(np.delete(np.arange(count), dropped), num_overlong)


def fit_prompt(prompt: IntArray, rule: OverlongRule, limit: int) -> IntArray:
    """[<= limit] The prompt, truncated if it is too long; the whole prompt under `error` and `filter`."""
    if len(prompt) <= limit or rule == "error" or rule == "filter":
        return prompt
    return truncate_prompt(prompt, rule, limit)


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


def fit_answers(
    encoded: Sequence[EncodedSequence], rule: OverlongRule, limit: int, where: str, image_token_id: int | None
) -> list[EncodedSequence] | None:
    """One demonstration, or the two sequences of a pair, of at most `limit` tokens; None for a row that is filtered, or
    in which nothing is left to train on.

    `left` removes the same tokens from the beginning of both sequences of a pair, so that they keep one prompt, of
    which at least the last token is left. Raises `DataError` under the other rules.
    """
    longest = max(len(one.token_ids) for one in encoded)
    if longest <= limit:
        return [*encoded]
    if rule == "filter":
        return None
    if rule not in ("left", "right"):
        raise DataError(
            f"{where}: prompt and answer have {longest} tokens, more than "
            f"data.max_prompt_tokens + max_response_tokens ({limit}). Write a higher limit, or data.overlong: "
            "filter to skip such rows, or right or left to truncate their end or their beginning."
        )
    removed = longest - limit
    if rule == "left" and len(encoded) > 1 and removed >= int(encoded[0].loss_mask.argmax()):
        return None
    kept = slice(removed, None) if rule == "left" else slice(limit)
    shorter = [_cut(one, kept, where, image_token_id) for one in encoded]
    return shorter if all(one.loss_mask.any() for one in shorter) else None


def _cut(encoded: EncodedSequence, kept: slice, where: str, image_token_id: int | None) -> EncodedSequence:
    numbers = np.arange(len(encoded.token_ids), dtype=np.int32)
    require_whole_images(encoded.token_ids, numbers[kept], image_token_id, where)
    shorter = EncodedSequence(encoded.token_ids[kept], encoded.loss_mask[kept].copy(), encoded.media)
    if len(shorter.loss_mask):
        shorter.loss_mask[0] = False  # no token precedes it
    return shorter
