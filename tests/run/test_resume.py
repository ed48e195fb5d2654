"""Start of a run: `resume: auto | never | PATH`."""

from __future__ import annotations

import json

import pytest

import strop
from strop.errors import CheckpointError, RunFolderError
from strop.run.state.change import change_configuration
from strop.runs.sessions import read_sessions
from tests.files import digest

CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")


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
    assert digest(again.model / weights) == digest(whole.model / weights)


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


def test_a_run_continues_with_a_changed_setting_if_that_is_said(values):
    strop.train(strop.load(values(trainer__duration="2 steps")))
    changed = strop.load(values(), ["trainer.optimizer.lr=5e-4"])
    with pytest.raises(RunFolderError, match=r"trainer\.optimizer\.lr was 0\.001, is 0\.0005"):
        strop.train(changed)
    with pytest.raises(RunFolderError, match="more than --change names"):
        change_configuration(changed.run, ["seed"])
    said = change_configuration(changed.run, ["trainer.optimizer"])
    assert said == "Changed after step 2: trainer.optimizer.lr was 0.001, is 0.0005."
    result = strop.train(changed)
    rows = rows_of(result.folder)
    assert [rows[step]["lr"] for step in (1, 2, 3, 4)] == [1e-3, 1e-3, 5e-4, 5e-4]
    first, second = read_sessions(result.folder)
    assert first["changed_afterwards"] == ["trainer.optimizer.lr was 0.001, is 0.0005"]
    assert second["from_step"] == 2


def test_a_change_needs_a_run_to_continue(values):
    with pytest.raises(RunFolderError, match="has no checkpoint of one"):
        change_configuration(strop.load(values()).run, ["seed"])
