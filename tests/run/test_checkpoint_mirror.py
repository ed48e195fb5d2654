"""Mirror of checkpoints: a run whose own folder is lost resumes from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
import pytest

import strop
from strop.data.sources.data_path import resolve_path
from strop.errors import CheckpointError, ConfigError, DataError


def small(values, tmp_path: Path, name: str, url: str | None, duration: str = "2 steps"):
    run = values(name=name, checkpoint={"every": "1 steps", "keep": 1, "mirror": url})
    run["trainer"]["duration"] = duration
    run["evaluate"] = {"at_start": False}
    run["output"] = str(tmp_path / "runs")
    return run


def rows(folder: Path):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    kept = ("step", "reward/mean", "grad_norm", "policy_loss")
    return [{key: row.get(key) for key in kept} for row in map(json.loads, lines)]


@pytest.mark.slow
def test_a_lost_folder_is_fetched_from_the_mirror_and_the_run_resumes(values, tmp_path):
    url = f"memory://{tmp_path.name}/copy"
    first = strop.train(strop.load(small(values, tmp_path, "lost", url)))
    files = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}/copy"
    assert [Path(p).name for p in files.ls(f"{root}/checkpoints", detail=False)] == ["step-000002"], "as kept"
    shutil.rmtree(first.folder)
    second = strop.train(strop.load(small(values, tmp_path, "lost", url, "3 steps")))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from" in sessions[-1]["notes"][0] and sessions[-1]["from_step"] == 2
    whole = strop.train(strop.load(small(values, tmp_path, "whole", None, "3 steps")))
    assert rows(second.folder) == rows(whole.folder)
    assert [Path(p).name for p in files.ls(f"{root}/checkpoints", detail=False)] == ["step-000003"]


def test_a_damaged_checkpoint_is_replaced_by_the_copy_in_the_mirror(values, tmp_path):
    url = str(tmp_path / "copy")
    first = strop.train(strop.load(small(values, tmp_path, "damaged", url)))
    weights = first.folder / "checkpoints" / "step-000002" / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-8])
    second = strop.train(strop.load(small(values, tmp_path, "damaged", url)))
    sessions = json.loads((second.folder / "run.json").read_text())["sessions"]
    assert "step-000002 was fetched from" in sessions[-1]["notes"][0] and sessions[-1]["from_step"] == 2
    assert weights.read_bytes() == good


def test_a_kill_while_the_mirror_is_written_leaves_its_old_files(tmp_path, monkeypatch):
    """A fake: the copy ends half-way, as the process would."""

    def copy_half(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:4])
        raise KeyboardInterrupt

    for name, text in (("new", "new content"), ("run.yaml", "old content")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(shutil, "copyfile", copy_half)
    with pytest.raises(KeyboardInterrupt):
        resolve_path(str(tmp_path / "run.yaml")).put(tmp_path / "new")
    assert (tmp_path / "run.yaml").read_text() == "old content"


def test_a_mirror_that_holds_another_run_is_refused(values, tmp_path):
    url = str(tmp_path / "copy")
    strop.train(strop.load(small(values, tmp_path, "one", url, "1 steps")))
    other = small(values, tmp_path, "two", url, "1 steps")
    other["seed"] = 7
    with pytest.raises(CheckpointError, match="different configuration: seed was 1, is 7"):
        strop.train(strop.load(other))
    anew = small(values, tmp_path, "three", url, "1 steps")
    anew["resume"] = "never"
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        strop.train(strop.load(anew))
    weights = next((tmp_path / "copy" / "checkpoints").glob("step-*/weights.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-8])
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(CheckpointError, match="is damaged"):
        strop.train(strop.load(small(values, tmp_path, "one", url, "1 steps")))


def test_an_unusable_mirror_is_refused(values, tmp_path):
    with pytest.raises(DataError, match="nowhere://x cannot be opened"):
        strop.train(strop.load(small(values, tmp_path, "a", "nowhere://x")))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint\.mirror: .* cannot be created"):
        strop.train(strop.load(small(values, tmp_path, "b", str(tmp_path / "file" / "in"))))
    own = small(values, tmp_path, "d", str(tmp_path / "runs" / "strop" / "d"))
    with pytest.raises(CheckpointError, match="is the run's own folder"):
        strop.train(strop.load(own))
    with pytest.raises((ConfigError, DataError)) as caught:
        strop.train(strop.load(small(values, tmp_path, "c", "s3://bucket/x")))
    assert len(str(caught.value).splitlines()) == 1
