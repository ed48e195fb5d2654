"""Limits of JSON Lines rows: nesting, numbers, text that cannot be encoded."""

from __future__ import annotations

import json

import pytest

from strop.data.sources.rows import JsonLinesRows
from strop.errors import DataError
from strop.types import Rollout, SamplingParams

ROWS = [
    ('{"q": ' + "[" * 500 + "]" * 500 + "}", "nests more than 100"),
    ('{"q": ' + "[" * 100_000 + "]" * 100_000 + "}", "is not JSON|nests more than 100"),
    ('{"q": ' + "9" * 5000 + "}", "is not JSON"),
    ('{"q": "a\\ud83d"}', r"contains \\ud83d, half of a surrogate pair"),
]


@pytest.mark.parametrize(("row", "expected"), ROWS, ids=[expected for _, expected in ROWS])
def test_a_row_beyond_a_limit_is_refused_with_its_line(row: str, expected: str) -> None:
    with pytest.raises(DataError, match=f"d.jsonl line 2 ({expected})"):
        JsonLinesRows("d.jsonl", f'{{"q": "\\ud83d\\ude00"}}\n{row}\n'.encode())


def test_rows_within_the_limits_are_read() -> None:
    row = {"q": "\U0001f600 \\ud83d", "nested": [[[1]]] * 200}
    assert JsonLinesRows("d.jsonl", json.dumps(row).encode())[0] == row


def test_texts_of_user_code_in_a_rollout_can_be_encoded() -> None:
    rollout = Rollout(
        *("r", "t", "g", 0, (), "", "error", SamplingParams()),
        reward_parts={"a\ud800": 1.0},
        error="bad \udcff",
    )
    assert rollout.error == r"bad \udcff" and rollout.reward_parts == {r"a\ud800": 1.0}
