"""Truncation of demonstrations and of preference pairs that are longer than their limit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.data.encoding.truncation import OverlongRule, require_whole_images
from strop.errors import DataError


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
