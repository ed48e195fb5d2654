"""Dotted paths, and what is said where one leads nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from strop.data.columns import columns_of, value_at
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
def test_value(path: str, value: Any) -> None:
    assert value_at(ROW, path, "row") == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("prompt", "t.jsonl line 3 has no 'prompt': its columns are 'question', 'reward_model', 'a.b'"),
        ("prompt.text", "has no 'prompt.text': its columns are 'question'"),
        (
            "reward_model.answer",
            "in 'reward_model' there is no 'answer', its keys are 'style', 'ground_truth'",
        ),
        ("a.c.e", "in 'a.c' there is no 'e', its keys are 'd'"),
        ("question.x", "'question' is a str there, with nothing inside it"),
        ("nothing.x", "'nothing' is null there"),
    ],
)
def test_what_is_missing_is_named(path: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        value_at(ROW, path, "t.jsonl line 3")
    assert message in str(error.value)


def test_columns_that_paths_look_into() -> None:
    names = ["a", "a.b", "c", "d"]
    assert columns_of(["a.b", "c.x.y", "c.z"], names) == ["a.b", "c"]
    assert columns_of(["a.x"], names) == ["a"]
    assert columns_of(["nope"], names) == names
