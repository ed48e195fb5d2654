"""Multimodal rotary positions of the Qwen-VL families (arXiv 2409.12191, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.types import IntArray


def mrope_positions(token_ids: IntArray, image_token_id: int, grids: Sequence[tuple[int, int]]) -> IntArray:
    """[3, L] Temporal, vertical and horizontal position of each token.

    A text token has three equal positions. The tokens of an image count its rows and columns from the position
    after the text before it, and share one temporal position; the text after it continues above the largest.

    Args:
        grids: rows and columns of tokens of each image, in the order of the images.
    """
    positions = np.empty((3, len(token_ids)), dtype=np.int32)
    pads = np.flatnonzero(token_ids == image_token_id)
    start, following, used = 0, 0, 0
    for rows, columns in grids:
        first = int(pads[used])
        used += rows * columns
        end = first + rows * columns
        text = np.arange(following, following + first - start)
        positions[:, start:first] = text
        following += first - start
        positions[0, first:end] = following
        positions[1, first:end] = following + np.repeat(np.arange(rows), columns)
        positions[2, first:end] = following + np.tile(np.arange(columns), rows)
        start, following = end, following + max(rows, columns)
    positions[:, start:] = np.arange(following, following + len(token_ids) - start)
    return positions
