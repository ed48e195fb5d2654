"""Run folders with missing or damaged files: a resume says what is wrong, and never starts again in silence."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import strop
from strop.errors import CheckpointError, RunFolderError
from strop.run.state.explorer_state import ExplorerState
from strop.run.state.resume import find_start
from strop.runs.folder import RunFolder

CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run of four steps."""
    output = tmp_path_factory.mktemp("finished")
    values = {
        "name": "small",
        "output": str(output),
        "model": {"path": str(tiny / "model")},
        "data": {
            "train": {"path": str(tiny / "tasks.jsonl")},
            "eval": [{"name": "held-out", "path": str(tiny / "tasks.jsonl"), "limit_tasks": 4}],
            "max_prompt_tokens": 32,
            "max_response_tokens": 8,
        },
        "reward": f"{Path(__file__).parent / 'rewards.py'}:digit_share",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4},
        "trainer": {"duration": "4 steps", "tasks_per_step": 8, "optimizer": {"type": "adamw", "lr": 1e-3}},
        "checkpoint": {"every": "2 steps"},
        "evaluate": {"every": "2 steps"},
        "record": {"rollouts_every": "1 steps", "monitors": ["console"]},
    }
    strop.train(strop.load(values))
    (output / "values.json").write_text(json.dumps(values))
    return output


@pytest.fixture
def loaded(finished: Path, tmp_path: Path) -> strop.LoadedRun:
    """The same run with a longer duration, in a copy of its folder."""
    shutil.copytree(finished / "strop", tmp_path / "strop")
    values = json.loads((finished / "values.json").read_text())
    return strop.load(values | {"output": str(tmp_path)}, ["trainer.duration=5 steps"])


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


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
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(kind) as caught:
        strop.train(loaded)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path for path in after if path.name != "report.html"} == {
        path for path in before if path.name != "report.html"
    }
    assert all(after[path] == before[path] for path in before if path.name != "report.html")
    assert "\n\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "a folder", "truncated", "not UTF-8"])
def test_without_its_configuration_a_run_is_refused_and_the_checkpoint_has_a_copy(loaded, how):
    folder = RunFolder.of(loaded.run)
    damage(folder.run_file, how)
    message = refused(loaded, RunFolderError)
    copy = folder.checkpoints / "step-000004" / "run.yaml"
    if how != "truncated":  # a shorter run file can be valid: then it has another configuration
        assert f"cp '{copy}' '{folder.run_file}'" in message
    assert "resume: never" in message
    if how == "a folder":
        folder.run_file.rmdir()
    shutil.copy(copy, folder.run_file)
    assert strop.train(loaded).steps == 5


def test_metrics_without_configuration_and_checkpoints_are_refused(loaded):
    folder = RunFolder.of(loaded.run)
    shutil.rmtree(folder.checkpoints)
    folder.run_file.unlink()
    assert "restore the file from a backup" in refused(loaded, RunFolderError)


def test_lost_checkpoints_are_refused(loaded):
    folder = RunFolder.of(loaded.run)
    shutil.rmtree(folder.checkpoints)
    assert "The checkpoint of step 4 was complete, and is gone." in refused(loaded, CheckpointError)
    folder.checkpoints.mkdir()
    refused(loaded, CheckpointError)


def test_damaged_checkpoints_are_refused(loaded):
    folder = RunFolder.of(loaded.run)
    for path in folder.checkpoints.glob("*/weights.safetensors"):
        os.truncate(path, 10)
    message = refused(loaded, CheckpointError)
    assert message.count("is skipped") == 2 and "resume: never" in message


def test_what_a_kill_between_two_renames_took_away_is_put_back(loaded):
    """As on a file system that cannot exchange folders, where a kill can leave neither model nor checkpoint."""
    folder = RunFolder.of(loaded.run)
    shutil.rmtree(folder.checkpoints / "step-000002")
    for path in (folder.model, folder.checkpoints / "step-000004"):
        path.rename(path.with_name(f".{path.name}.old"))
    start = find_start(loaded.run, folder)
    assert start.state.step == 4 and (folder.model / "model.safetensors").is_file()
    assert not list(folder.path.rglob(".*.old"))


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(loaded):
    folder = RunFolder.of(loaded.run)
    shutil.rmtree(folder.checkpoints)
    sessions = json.loads((folder.path / "run.json").read_text())
    for session in sessions["sessions"]:
        session.pop("checkpoint_step")
    (folder.path / "run.json").write_text(json.dumps(sessions))
    strop.train(loaded)
    assert steps_of(folder.path) == [0, 1, 2, 3, 4, 5]


def test_missing_metrics_are_reported_at_the_resume(loaded, capsys):
    folder = RunFolder.of(loaded.run)
    lines = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(lines[:2]) + lines[2][:20])
    strop.train(loaded)
    assert (
        f"{folder.metrics} lacks the rows of steps 2 to 4, which cannot be rebuilt."
        in capsys.readouterr().out
    )
    assert steps_of(folder.path) == [0, 1, 5]


def test_damaged_rows_after_the_checkpoint_are_computed_again(loaded):
    folder = RunFolder.of(loaded.run)
    shutil.rmtree(folder.checkpoints / "step-000004")
    lines = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.metrics.write_bytes(b"".join(lines[:3]) + b"\xff\x00\n" + lines[4])
    strop.train(loaded)
    assert steps_of(folder.path) == [0, 1, 2, 3, 4, 5]
    assert folder.metrics.read_bytes().splitlines(keepends=True)[:3] == lines[:3]


@pytest.mark.parametrize("how", ["a folder", "not UTF-8"])
def test_metrics_that_cannot_be_read_are_refused(loaded, how):
    damage(RunFolder.of(loaded.run).metrics, how)
    message = refused_by_recorder(loaded)
    assert "metrics.jsonl" in message and "the run's checkpoints do not depend on it" in message


def refused_by_recorder(loaded: strop.LoadedRun) -> str:
    with pytest.raises(RunFolderError) as caught:
        strop.train(loaded)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_rollouts_are_reported_at_the_resume_and_left_out_of_the_report(loaded, capsys):
    folder = RunFolder.of(loaded.run)
    for path in (
        folder.rollouts / "step-000004.parquet",
        folder.evaluations("held-out") / "step-000004.parquet",
    ):
        os.truncate(path, path.stat().st_size - 5)
    strop.train(loaded)
    shown = capsys.readouterr().out
    assert shown.count("is damaged and cannot be rebuilt") == 2
    assert folder.report.is_file()


@pytest.mark.parametrize("how", ["a folder", "truncated", "not UTF-8"])
def test_a_damaged_list_of_sessions_is_moved_away(loaded, capsys, how):
    folder = RunFolder.of(loaded.run)
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


def test_the_configuration_of_an_explorer_is_restored_from_the_run(loaded):
    folder = RunFolder.of(loaded.run)
    folder.explorer.path.mkdir()
    shutil.copy(folder.metrics, folder.explorer.metrics)
    with pytest.raises(RunFolderError, match=f"cp '{folder.run_file}' '{folder.explorer.run_file}'"):
        find_start(loaded.run, folder.explorer)
