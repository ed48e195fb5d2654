"""Faults of a text stand at their lines and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)


def places(text: str, name: str = "run.yaml") -> set[tuple[int | None, str]]:
    return {(fault.line, fault.key) for fault in check_text(text, name).faults}


def test_every_fault_has_its_line_and_key() -> None:
    assert places(RUN) == {(5, "algorithm.type"), (7, "trainer.durtion"), (8, "trainer.tasks_per_step")}


def test_faults_of_trinity_name_its_own_keys() -> None:
    checked = check_text(TRINITY, "trinity.yaml")
    assert checked.dialect == "trinity"
    assert {(fault.line, fault.key) for fault in checked.faults} == {
        (1, "model"),  # lacks the length limits
        (3, "algorithm.repeat_times"),
        (4, "algorithm.foo"),
        (5, "buffer"),  # lacks the reward
    }


def test_missing_files_are_faults_of_a_text_that_loads() -> None:
    text = "model: {path: ./m}\ndata: {train: {path: train.jsonl}}\nreward: exact\n"
    checked = check_text(text, "run.yaml")
    assert checked.job is not None
    assert places(text) == {(1, "model.path"), (2, "data.train.path")}


def test_empty_values_of_a_new_file_are_faults() -> None:
    text = "model: {path: ''}\ndata: {train: {path: ''}}\nreward: ''\n"
    assert places(text) == {(1, "model.path"), (2, "data.train.path"), (3, "reward")}


def test_text_that_is_no_yaml_has_one_fault_with_its_line() -> None:
    (fault,) = check_text("seed: 1\nmodel: [\n", "run.yaml").faults
    assert fault.line == 3 and "not valid YAML" in fault.message


def test_no_message_names_the_temporary_file() -> None:
    for text in (RUN, TRINITY, "", "a", "model: ["):
        for fault in check_text(text, "run.yaml").faults:
            assert "strop-studio-" not in fault.message
