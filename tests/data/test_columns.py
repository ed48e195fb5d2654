"""Dotted paths into rows, and error messages for missing keys."""

from __future__ import annotations

from typing import Any

import pytest

from strop.data.sources.columns import top_level_columns, value_at
from strop.errors import DataError

ROW: dict[str, Any] = {
    "question": "2 + 3",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "a.b": "flat",
    "a": {"b": "nested", "c": {"d": 0}},
    "nothing": None,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("question", "2 + 3"),
        ("reward_model.ground_truth", "5"),
        ("reward_model", {"style": "rule", "ground_truth": "5"}),
        ("a.b", "flat"),
        ("a.c.d", 0),
        ("nothing", None),
    ],
)
def test_value(path, value):
    assert value_at(ROW, path, "row") == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("prompt", "t.jsonl line 3 has no 'prompt': its columns are 'question', 'reward_model', 'a.b'"),
        ("prompt.text", "has no 'prompt.text': its columns are 'question'"),
        (
            "reward_model.answer",
            "'reward_model' has no 'answer', its keys are 'style', 'ground_truth'",
        ),
        ("a.c.e", "'a.c' has no 'e', its keys are 'd'"),
        ("question.x", "'question' is a str in this row, without keys"),
        ("nothing.x", "'nothing' is null in this row"),
    ],
)
def test_a_missing_key_is_named(path, message):
    with pytest.raises(DataError) as error:
        value_at(ROW, path, "t.jsonl line 3")
    assert message in str(error.value)


def test_top_level_columns_of_paths():
    names = ["a", "a.b", "c", "d"]
    assert top_level_columns(["a.b", "c.x.y", "c.z"], names) == ["a.b", "c"]
    assert top_level_columns(["a.x"], names) == ["a"]
    assert top_level_columns(["nope"], names) == names
