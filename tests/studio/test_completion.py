"""Completions of the editor: the keys at a place of a text, and what fits there."""

from __future__ import annotations

import pytest

from strop.config.load.config_tree import KeyPath
from strop.studio.completion import key_options, place_at, value_options
from strop.studio.fields import run_file_sections


@pytest.mark.parametrize(
    ("text", "keys", "is_value"),
    [
        ("tr|", (), False),
        ("trainer:\n  opt|", ("trainer",), False),
        ("a: 1\ntrainer:\n  duration: 1 epoch\n  |\nseed: 1", ("trainer",), False),
        ("trainer:\n  optimizer: {type: adamw, l|}", ("trainer", "optimizer"), False),
        ("trainer: {optimizer: {type: adamw}, t|", ("trainer",), False),
        ("data:\n  eval:\n    - name: a\n      pa|", ("data", "eval", "0"), False),
        ("data:\n  eval:\n  - name: a\n  - na|", ("data", "eval", "1"), False),
        ("data:\n  eval: [{name: a}, {p|", ("data", "eval", "1"), False),
        ("data:\n  eval:\n  - name: a\n  max|", ("data",), False),
        ("algorithm: d|", ("algorithm",), True),
        ("algorithm:\n  type: dp|\n  beta: 1", ("algorithm", "type"), True),
        ("model: {path: m/x|}", ("model", "path"), True),
    ],
)
def test_place(text: str, keys: KeyPath, is_value: bool) -> None:
    before, _, after = text.partition("|")
    place = place_at(before, after)
    assert place is not None and (place.keys, place.is_value) == (keys, is_value)
    assert place.text == before.removesuffix(place.word) + after


@pytest.mark.parametrize("text", ["# com|", "name: 'a|", "a: {b: ]|"])
def test_no_place(text: str) -> None:
    assert place_at(text.removesuffix("|"), "") is None


def test_options() -> None:
    form = run_file_sections({"algorithm": {"type": "dpo"}})
    names = {one["label"]: one for one in key_options(form, ("algorithm",), {"type": "dpo"})}
    assert "type" not in names and names["beta"]["apply"] == "beta: "
    assert names["kl_loss"]["apply"] == "kl_loss:"
    absent = [one["label"] for one in key_options(form, ("evaluate", "stop_when"), {})]
    assert absent == ["metric", "mode", "value", "patience"]
    assert "path" in {one["label"] for one in key_options(form, ("data", "eval", "0"), {})}
    assert value_options(form, ("evaluate", "stop_when", "mode")) == ["max", "min"]
    assert "sft" in value_options(form, ("algorithm",))
