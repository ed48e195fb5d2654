"""Run folders with missing or damaged files: a resume says what is wrong, and never starts again in silence."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strop
from strop.errors import CheckpointError, RunFolderError
from strop.run.state.resume import find_start
from strop.run.state.run_state import ExplorerState
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import read_metrics
from strop.runs.reader import RunData
from strop.runs.rollout_file import is_readable, read_rollouts
from strop.runs.sessions import read_sessions
from strop.runs.training_examples import read_training_examples
from tests.files import digest

from .results import checkpoint, steps_of

OLD_RUN = Path(__file__).parent / "old_run" / "runs" / "strop" / "old"


@pytest.fixture
def loaded(copied: dict[str, Any]) -> strop.LoadedRun:
    """A finished run of four steps with a longer duration, in a copy of its folder."""
    return strop.load(copied, ["trainer.duration=5 steps", "data.eval=[]"])


@pytest.fixture
def folder(loaded: strop.LoadedRun) -> RunFolder:
    return RunFolder.of(loaded.run)


def damage(path: Path, how: str) -> None:
    match how:
        case "missing":
            path.unlink()
        case "a folder":
            path.unlink()
            path.mkdir()
        case "truncated":
            os.truncate(path, path.stat().st_size // 3)
        case "not UTF-8":
            path.write_bytes(b"\xff\xfe\x00" + path.read_bytes()[3:])


def refused(loaded: strop.LoadedRun, kind: type[Exception]) -> str:
    """The message of the refusal; every file stays as it is."""
    folder = loaded.run.folder_path
    before = contents(folder)
    with pytest.raises(kind) as caught:
        strop.train(loaded)
    assert contents(folder) == before
    assert "\n\n" not in str(caught.value)
    return str(caught.value)


def contents(folder: Path) -> dict[Path, str]:
    """The digests of all files but the report."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    return {path: digest(path) for path in files}


@pytest.mark.parametrize("how", ["missing", "a folder", "truncated", "not UTF-8"])
def test_without_its_configuration_a_run_is_refused_and_the_checkpoint_has_a_copy(loaded, folder, how):
    damage(folder.run_file, how)
    message = refused(loaded, RunFolderError)
    copy = checkpoint(folder.path, 4) / "run.yaml"
    if how != "truncated":  # a shorter run file can be valid: then it has another configuration
        assert f"cp '{copy}' '{folder.run_file}'" in message
    assert "resume: never" in message
    if how == "a folder":
        folder.run_file.rmdir()
    shutil.copy(copy, folder.run_file)
    assert find_start(loaded.run, folder, None).state.step == 4


def test_lost_and_damaged_checkpoints_are_refused(loaded, folder):
    for path in folder.checkpoints.glob("*/weights.safetensors"):
        os.truncate(path, 10)
    message = refused(loaded, CheckpointError)
    assert message.count("is skipped") == 2 and "resume: never" in message
    shutil.rmtree(folder.checkpoints)
    assert "The checkpoint of step 4 was complete, and is gone." in refused(loaded, CheckpointError)
    folder.checkpoints.mkdir()
    refused(loaded, CheckpointError)
    folder.checkpoints.rmdir()
    folder.run_file.unlink()
    assert "restore the file from a backup" in refused(loaded, RunFolderError)


def test_what_a_kill_between_two_renames_took_away_is_put_back(loaded, folder):
    """As on a file system that cannot exchange folders, where a kill can leave neither model nor checkpoint."""
    shutil.rmtree(folder.checkpoints / "step-000002")
    for path in (folder.model, folder.checkpoints / "step-000004"):
        path.rename(path.with_name(f".{path.name}.old"))
    start = find_start(loaded.run, folder, None)
    assert start.state.step == 4 and (folder.model / "model.safetensors").is_file()
    assert not list(folder.path.rglob(".*.old"))


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(loaded, folder):
    shutil.rmtree(folder.checkpoints)
    sessions = json.loads((folder.path / "run.json").read_text())
    for session in sessions["sessions"]:
        session.pop("checkpoint_step")
    (folder.path / "run.json").write_text(json.dumps(sessions))
    strop.train(loaded)
    assert steps_of(folder.path) == [0, 1, 2, 3, 4, 5]


def test_missing_metrics_and_damaged_rollouts_are_reported_at_the_resume(loaded, folder, capsys):
    lines = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[:2]) + lines[2][:20])
    for path in (folder.rollouts, folder.evaluations("held-out")):
        file = path / "step-000004.parquet"
        os.truncate(file, file.stat().st_size - 5)
    strop.train(loaded)
    shown = capsys.readouterr().out
    assert f"{folder.metrics} lacks the rows of steps 2 to 4, which cannot be rebuilt." in shown
    assert shown.count("is damaged and cannot be rebuilt") == 2
    assert steps_of(folder.path) == [0, 1, 5]
    assert folder.report.is_file(), "it leaves them out"


def test_damaged_rows_after_the_checkpoint_are_computed_again(loaded, folder):
    shutil.rmtree(folder.checkpoints / "step-000004")
    lines = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.metrics.write_bytes(b"".join(lines[:3]) + b"\xff\x00\n" + lines[4])
    strop.train(loaded)
    assert steps_of(folder.path) == [0, 1, 2, 3, 4, 5]
    assert folder.metrics.read_bytes().splitlines(keepends=True)[:3] == lines[:3]


@pytest.mark.parametrize("how", ["a folder", "not UTF-8"])
def test_metrics_that_cannot_be_read_are_refused(loaded, folder, how):
    damage(folder.metrics, how)
    with pytest.raises(RunFolderError) as caught:
        strop.train(loaded)
    message = str(caught.value)
    assert "metrics.jsonl" in message and "the run's checkpoints do not depend on it" in message
    assert "\n" not in message


@pytest.mark.parametrize("how", ["a folder", "truncated", "not UTF-8"])
def test_a_damaged_list_of_sessions_is_moved_away(loaded, folder, capsys, how):
    damage(folder.path / "run.json", how)
    strop.train(loaded)
    assert "run.json was damaged; it is now run.json.damaged-" in capsys.readouterr().out
    assert len(json.loads((folder.path / "run.json").read_text())["sessions"]) == 1


@pytest.mark.parametrize("how", ["missing", "a folder", "truncated", "not UTF-8"])
def test_a_damaged_state_of_an_explorer_is_refused(tmp_path, how):
    folder = RunFolder(tmp_path)
    ExplorerState(step=2, tasks_taken=16).save(folder)
    folder.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    damage(tmp_path / "explorer.json", how)
    with pytest.raises(RunFolderError, match=r"explorer\.json cannot be read .* write `resume: never`"):
        ExplorerState.load(folder)


def test_the_configuration_of_an_explorer_is_restored_from_the_run(loaded, folder):
    folder.explorer.path.mkdir()
    shutil.copy(folder.metrics, folder.explorer.metrics)
    with pytest.raises(RunFolderError, match=f"cp '{folder.run_file}' '{folder.explorer.run_file}'"):
        find_start(loaded.run, folder.explorer, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"step": 1, "reward/mean": "high"}\n'),
        ("metrics.jsonl", '{"step": 1, "reward/mean": NaN}\n'),
        ("run.json", '{"sessions": [{"started": 3}]}'),
        ("run.json", '{"sessions": [{"started": "yesterday"}]}'),
        ("training_examples.jsonl", '{"prompt": "a", "answers": ["b"]}\n'),
        ("training_examples.jsonl", "{"),
    ],
)
def test_values_of_another_type_are_refused_with_the_file(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(RunFolderError, match=re.escape(name)):
        read_metrics(tmp_path / "metrics.jsonl")
        read_sessions(tmp_path)
        read_training_examples(tmp_path / "training_examples.jsonl")


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "lost"},
        {"steps": {"of": 3}},
        {"from_step": None},
        {"host": "host"},
        {"host": {"name": "host", "system": "Linux", "cores": 2, "memory_gb": 8.0, "gpus": 1}},
        {"packages": ["torch"]},
        {"notes": 7},
        {"set_aside": ["trainer.engine"]},
        {"git": {"commit": None, "modified": False}},
    ],
    ids=str,
)
def test_a_session_of_other_values_is_refused(tmp_path, changes):
    content = json.loads((OLD_RUN / "run.json").read_text())
    content["sessions"][0] |= changes
    (tmp_path / "run.json").write_text(json.dumps(content))
    with pytest.raises(RunFolderError, match=r"run\.json is not a record of a run's sessions \(sessions\.0"):
        read_sessions(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "- 1",
        "model: SmolLM2",
        "model: {path: [1]}",
        "model: {path: m, lora: 8}",
        "data: {train: 7}",
        "algorithm: [grpo]",
        "trainer: {optimizer: adamw}",
        "record: {eval_answers: many}",
        "seed: !!int 9o",
        f"seed: {'1' * 5000}",
        "[" * 2000,
        "b0: &b0 [x, x]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 60)),
    ],
    ids=range(12),
)
def test_a_run_file_of_other_values_is_refused_with_its_name(tmp_path, text):
    data = RunData(RunFolder(tmp_path), [], [], text)
    with pytest.raises(RunFolderError, match=r"run\.yaml is damaged: .* Restore it from a checkpoint"):
        data.configuration()


def test_a_parquet_file_with_damaged_names_is_no_file_of_rollouts(tmp_path):
    path = tmp_path / "step-000001.parquet"
    pq.write_table(pa.table({"task_id": [1]}), path)
    path.write_bytes(path.read_bytes().replace(b"task_id", b"task\xffid"))
    assert not is_readable(path)
    with pytest.raises(RunFolderError, match="is not a file of rollouts"):
        read_rollouts(path)


def test_a_table_of_other_columns_is_no_file_of_rollouts(tmp_path):
    pq.write_table(pa.table({"step": [1]}), tmp_path / "step-000001.parquet")
    with pytest.raises(RunFolderError, match="it has no column task_id"):
        read_rollouts(tmp_path / "step-000001.parquet")
