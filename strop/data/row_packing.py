"""Packing of demonstrations: sequences of several rows, as TRL's `pack_dataset` makes them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

import numpy as np

from strop.config.schema.data import RowPackingConfig
from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.types import IntArray

_ROWS_AT_ONCE = 1000
"""Rows that are packed together: the batch of `datasets.Dataset.map`, with which TRL packs."""


def pack_rows(
    rows: Sequence[EncodedSequence],
    packing: RowPackingConfig,
    *,
    limit: int,
    seed: int,
    trains_first: bool,
) -> list[list[EncodedSequence]]:
    """The rows of each packed sequence, which have at most `limit` tokens together.

    Under `bfd` no row may have more tokens than that. With `trains_first` the first token of a row is trained under
    `wrapped`, where it follows the row before it. Pieces of rows in which nothing is trained are left out, and so are
    sequences of only such pieces.
    """
    if packing.shuffle:  # the permutation of datasets.Dataset.shuffle
        rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows)).tolist()]
    packed: list[list[EncodedSequence]] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        chunk = rows[start : start + _ROWS_AT_ONCE]
        if packing.strategy == "wrapped":
            packed += [[piece] for piece in _pieces(_joined(chunk, trains_first), limit)]
            continue
        if packing.strategy == "bfd_split":
            chunk = [piece for row in chunk for piece in _pieces(row, limit)]
        lengths = np.array([len(one.token_ids) for one in chunk])
        packed += [[chunk[i] for i in numbers] for numbers in best_fit(lengths, limit)]
    trained = ([one for one in sequence if one.loss_mask.any()] for sequence in packed)
    return [sequence for sequence in trained if sequence]


def best_fit(lengths: IntArray, limit: int) -> list[list[int]]:
    """Numbers of the rows of each sequence: the longest row first, each into the sequence in which it leaves the fewest
    tokens free, among equals the one that has had this number free for longest."""
    sequences: list[list[int]] = []
    not_full: list[tuple[int, int, int]] = []  # free tokens, age, and number of each sequence
    for age, row in enumerate(np.argsort(-lengths, kind="stable").tolist()):
        length = int(lengths[row])
        index = bisect_left(not_full, (length, 0, 0))
        if index == len(not_full):
            free, number = limit, len(sequences)
            sequences.append([])
        else:
            free, _, number = not_full.pop(index)
        sequences[number].append(row)
        if free > length:
            insort(not_full, (free - length, age, number))
    return sequences


def _joined(rows: Sequence[EncodedSequence], trains_first: bool) -> EncodedSequence:
    mask = np.concatenate([row.loss_mask for row in rows])
    return EncodedSequence(np.concatenate([row.token_ids for row in rows]), mask | trains_first)


def _pieces(row: EncodedSequence, limit: int) -> Iterator[EncodedSequence]:
    """The row in pieces of `limit` tokens, of which the last one may be shorter."""
    for start in range(0, len(row.token_ids), limit):
        mask = row.loss_mask[start : start + limit].copy()
        mask[0] = False  # no token precedes it
        yield EncodedSequence(row.token_ids[start : start + limit], mask)
