"""Packing of rows into sequences, compared with TRL's `pack_dataset` (trl/data_utils.py, 1.16.0).

The first table is that of its docstring; the others are what it returns for the same lengths.
"""

from __future__ import annotations

from typing import Literal

import datasets
import numpy as np
import pytest

from strop.config.schema.data import DataConfig, RowPackingConfig, TasksetConfig
from strop.data.encoding.conversation_encoder import EncodedSequence
from strop.data.offline_dataset import encode_offline_rows
from strop.data.row_packing import best_fit, pack_rows
from strop.errors import DataError


def packed(
    strategy: Literal["bfd", "bfd_split", "wrapped"],
    rows: list[list[int]],
    limit: int,
    *,
    trains_first: bool = True,
    shuffle: bool = False,
) -> list[list[list[int]]]:
    """Tokens of each row of each sequence; those that are not trained are negative."""
    encoded = [
        EncodedSequence(
            np.abs(np.array(row, np.int32)), np.array([t > 0 and i > 0 for i, t in enumerate(row)])
        )
        for row in rows
    ]
    packing = RowPackingConfig(strategy=strategy, shuffle=shuffle)
    found = pack_rows(encoded, packing, limit=limit, seed=3, trains_first=trains_first)
    return [
        [np.where(one.loss_mask, one.token_ids, -one.token_ids).tolist() for one in each] for each in found
    ]


TEXTS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11, 12]]


@pytest.mark.parametrize(
    ("strategy", "rows", "expected"),
    [
        ("bfd", [row[:4] for row in TEXTS], [[[-1, 2, 3, 4]], [[-8, 9, 10]], [[-6, 7], [-11, 12]]]),
        # The piece [5], whose first token has no token before it, has nothing to train.
        ("bfd_split", TEXTS, [[[-1, 2, 3, 4]], [[-8, 9, 10]], [[-6, 7], [-11, 12]]]),
        ("wrapped", TEXTS, [[[-1, 2, 3, 4]], [[-5, 6, 7, 8]], [[-9, 10, 11, 12]]]),
    ],
)
def test_sequences_of_texts(strategy, rows, expected) -> None:
    assert packed(strategy, rows, 4) == expected


def test_wrapped_demonstrations_train_their_responses_alone() -> None:
    rows = [[-1, -2, 3], [-4, 5, 6]]
    assert packed("wrapped", rows, 4, trains_first=False) == [[[-1, -2, 3, -4]], [[-5, 6]]]


def test_rows_are_packed_by_a_thousand() -> None:
    """As `datasets.Dataset.map` does with its default batch size: the last row has no place in the sequences before."""
    rows = [[1, 2, 3]] * 999 + [[1, 2]] * 2
    assert [len(sequence) for sequence in packed("bfd", rows, 5)] == [2, *[1] * 998, 1]


def test_the_order_of_shuffled_rows_is_that_of_datasets() -> None:
    rows = [[100 + number] * 2 for number in range(5)]
    order = [abs(sequence[0][0]) - 100 for sequence in packed("bfd", rows, 2, shuffle=True)]
    assert order == datasets.Dataset.from_dict({"row": range(5)}).shuffle(seed=3)["row"][:]


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        ([3, 5, 2, 2, 4, 1], 5, [[1], [4, 5], [0, 2], [3]]),
        ([2, 2, 2, 3, 3], 5, [[3, 0], [4, 1], [2]]),  # equal rooms: the oldest first
        ([4, 4], 4, [[0], [1]]),
        ([], 4, []),
    ],
)
def test_best_fit(lengths: list[int], limit: int, expected: list[list[int]]) -> None:
    assert best_fit(np.array(lengths, np.int32), limit) == expected


@pytest.fixture
def encode(tokenizer, write_lines):
    """A function that encodes texts of these numbers of letters."""

    def rows(counts: list[int], strategy: str, overlong: str = "error"):
        path = str(write_lines("rows.jsonl", [{"text": "a " * count} for count in counts]))
        data = DataConfig(
            train=TasksetConfig(path=path, answer=None, text="text"),
            packing={"strategy": strategy},
            max_prompt_tokens=4,
            max_response_tokens=6,
            overlong=overlong,
        )
        return encode_offline_rows(data.train, data, tokenizer, name="train", seed=1)

    return rows


def test_a_sequence_is_one_task(encode) -> None:
    found = encode([2, 30, 1, 2], "bfd", "right")
    sizes = [[len(one.token_ids) for one in group.experiences] for group in found.groups]
    assert all(sum(size) <= 10 for size in sizes) and sum(map(len, sizes)) == 4 > len(sizes)
    assert found.counts.packed == 4 and found.counts.truncated == 1
    keys = [(one.group, one.index) for group in found.groups for one in group.experiences]
    assert len({*keys}) == 4 and {group.id for group in found.groups} == {group for group, _ in keys}


def test_wrapped_rows_train_the_first_token_where_prompts_are_trained(tokenizer, write_lines) -> None:
    path = str(write_lines("rows.jsonl", [{"prompt": "a b", "response": " c"}] * 4))
    train = TasksetConfig(path=path, answer=None, response="response", train_on_prompt=True)
    limits = {"max_prompt_tokens": 4, "max_response_tokens": 4}
    data = DataConfig(train=train, packing={"strategy": "wrapped"}, text_prompts="raw", **limits)
    groups = encode_offline_rows(train, data, tokenizer, name="train", seed=1).groups
    masks = [one.loss_mask.tolist() for group in groups for one in group.experiences]
    assert len(masks) > 1 and all(not mask[0] and all(mask[1:]) for mask in masks)


def test_rows_that_are_too_long_are_cut_or_refused(encode) -> None:
    with pytest.raises(DataError, match=r"more than data\.max_prompt_tokens"):
        encode([30], "bfd")
    assert len(encode([30], "bfd_split").groups) > 1
    assert len(encode([30], "wrapped").groups) > 1
