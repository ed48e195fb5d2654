"""Faults of a text stand at their lines and keys."""

from __future__ import annotations

import pytest

from strop.studio.checking import check_text

RUN = """\
model: {path: m}
data:
  train: {path: train.jsonl}
reward: exact
algorithm: {type: groop}
trainer:
  durtion: 5 steps
  tasks_per_step: 64
  tasks_per_update: 7
"""
TRINITY = """\
model: {model_path: m}
algorithm:
  repeat_times: x
  foo: 1
buffer: {explorer_input: {taskset: {path: train.jsonl}}}
"""


pytestmark = pytest.mark.usefixtures("client")  # in an empty folder
NEW = "model: {path: ''}\ndata: {train: {path: ''}}\nreward: ''\n"
MISSING = "model: {path: ./m}\ndata: {train: {path: train.jsonl}}\nreward: exact\n"


@pytest.mark.parametrize(
    ("text", "name", "places"),
    [
        (RUN, "run.yaml", {(5, "algorithm.type"), (7, "trainer.durtion"), (8, "trainer.tasks_per_step")}),
        # model lacks the length limits, and buffer the reward
        (
            *(TRINITY, "trinity.yaml"),
            {(1, "model"), (3, "algorithm.repeat_times"), (4, "algorithm.foo"), (5, "buffer")},
        ),
        (MISSING, "run.yaml", {(1, "model.path"), (2, "data.train.path")}),
        (NEW, "run.yaml", {(1, "model.path"), (2, "data.train.path"), (3, "reward")}),
        ("seed: 1\nmodel: [\n", "run.yaml", {(3, "")}),
        ("", "run.yaml", None),
        ("a", "run.yaml", None),
    ],
    ids=["values", "trinity", "missing files", "a new file", "no YAML", "empty", "no section"],
)
def test_every_fault_has_its_line_and_key(text: str, name: str, places: set[tuple[int, str]] | None) -> None:
    checked = check_text(text, name)
    assert checked.faults and not any("strop-studio-" in fault.message for fault in checked.faults)
    assert places is None or {(fault.line, fault.key) for fault in checked.faults} == places
    assert checked.dialect == ("trinity" if text == TRINITY else "strop")
    assert (checked.job is not None) == (text in (MISSING, NEW))
    assert text[:4] != "seed" or "not valid YAML" in checked.faults[0].message
