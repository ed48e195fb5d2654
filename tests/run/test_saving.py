"""Saving beside training: the same checkpoints, while steps go on; the end waits, a fault stops the run."""

from __future__ import annotations

import threading
import time

import pytest

import strop
from strop.errors import CheckpointError, ConfigError
from strop.run.saving import Saver
from strop.training import checkpoint

from .test_apart import rows_of


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_checkpoints_are_the_same_files(values, algorithm):
    settings = {"algorithm": {"type": algorithm, "rollouts_per_task": 2}, "checkpoint__every": "1 steps"}
    runs = [
        strop.train(strop.load(values(name=str(beside), checkpoint__beside=beside, **settings)))
        for beside in (False, True)
    ]
    first, second = (run.folder for run in runs)
    assert rows_of(first) == rows_of(second)
    files = [path.relative_to(first) for path in (first / "checkpoints").rglob("*") if path.is_file()]
    assert len([file for file in files if file.name == "weights.safetensors"]) >= 3
    for file in files:
        assert (second / file).read_bytes() == (first / file).read_bytes(), file


def test_steps_go_on_while_a_slow_disk_writes_and_the_end_waits(values, monkeypatch):
    finish, written = checkpoint.finish, []

    def slow(draft, fill, **rest):
        root, step = draft.root, draft.step
        deadline = time.monotonic() + 60
        while step == 2 and (root.parent / "metrics.jsonl").read_text().count('"step": 3,') == 0:
            assert time.monotonic() < deadline, "step 3 waits for the checkpoint of step 2"
            time.sleep(0.01)
        written.append(step)
        return finish(draft, fill, **rest)

    monkeypatch.setattr(checkpoint, "finish", slow)
    run = values(checkpoint={"every": "2 steps", "beside": True}, evaluate={"at_start": False})
    result = strop.train(strop.load(run))
    assert written == [2, 4]
    assert checkpoint.latest(result.folder / "checkpoints")[0].name == "step-000004"


def test_a_fault_of_a_save_beside_stops_the_run(values, monkeypatch):
    def fails(draft, fill, **rest):
        raise CheckpointError("The disk is full.")

    monkeypatch.setattr(checkpoint, "finish", fails)
    with pytest.raises(CheckpointError, match="The disk is full"):
        strop.train(strop.load(values(checkpoint={"every": "1 steps", "beside": True})))


def test_what_depends_on_a_save_waits_for_it():
    saver, free, done = Saver(beside=True), threading.Event(), []
    saver.save(lambda: free.wait(5) and None, lambda: done.append(threading.current_thread()))
    saver.look()
    assert done == [], "it is not there yet"
    free.set()
    saver.wait()
    assert done == [threading.current_thread()]
    saver.wait()
    assert len(done) == 1


def test_an_export_wants_the_weights_to_stand_still(values):
    with pytest.raises(ConfigError, match=r"take one of them out"):
        strop.load(values(checkpoint={"beside": True, "export": True}))
