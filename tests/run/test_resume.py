"""Start of a run: `resume: auto | never | PATH`."""

from __future__ import annotations

import json

import pytest

import strop
from strop.errors import CheckpointError

CLOCKS = ("time/", "tokens_per_second", "memory/")


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: {k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows}


def test_a_run_resumes_from_another_runs_checkpoint_to_the_same_end(values):
    whole = strop.train(strop.load(values(name="whole")))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    again = strop.train(strop.load(values(name="again", resume=str(checkpoint))))
    assert again.folder != whole.folder
    assert again.steps == 4
    first, second = rows_of(whole.folder), rows_of(again.folder)
    assert sorted(second) == [3, 4]
    assert all(second[step] == first[step] for step in second)
    weights = "model.safetensors"
    assert (again.model / weights).read_bytes() == (whole.model / weights).read_bytes()


def test_a_run_folder_means_its_last_good_checkpoint(values):
    whole = strop.train(strop.load(values(name="whole")))
    longer = values(name="longer", resume=str(whole.folder), trainer__duration="6 steps")
    result = strop.train(strop.load(longer))
    assert sorted(rows_of(result.folder)) == [5, 6]


def test_a_path_without_a_checkpoint_is_refused(values, tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        strop.train(strop.load(values(resume=str(tmp_path / "nowhere"))))
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        strop.train(strop.load(values(resume=str(tmp_path / "empty"))))


def test_a_checkpoint_of_another_model_is_refused(values):
    whole = strop.train(strop.load(values(name="whole")))
    other = values(name="other", resume=str(whole.folder))
    other["model"]["lora"] = {"rank": 4}
    with pytest.raises(CheckpointError, match="weights of another model"):
        strop.train(strop.load(other))
