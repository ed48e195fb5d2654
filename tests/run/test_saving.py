"""Saving beside training: the same checkpoints, while steps go on; the end waits, a fault stops the run."""

from __future__ import annotations

import threading
import time

import pytest

import strop
from strop.errors import CheckpointError, ConfigError
from strop.protocols import WrittenFile
from strop.run.saving import Saver, Snapshots, engines_together
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


class Part:
    """A snapshot whose writer notes when it begins and ends, and between waits for another to begin too."""

    def __init__(self, log: list[str], meeting: threading.Barrier | None) -> None:
        self.log, self.meeting = log, meeting

    def begin(self, folder, *, copied=False):
        def write():
            self.log.append(f"begin {folder.name}")
            if self.meeting is not None:
                self.meeting.wait()
            self.log.append(f"end {folder.name}")
            return {"file": WrittenFile(1, "00000000")}

        return write


@pytest.mark.parametrize(("writers", "together"), [("all", True), ("process", True), ("thread", False)])
def test_policy_and_critic_are_written_at_once_where_writers_may(values, writers, together, tmp_path):
    run = strop.load(values(checkpoint={"writers": writers})).run
    log, meeting = [], threading.Barrier(2, timeout=30) if together else None
    parts = {".": Part(log, meeting), "critic": Part(log, meeting)}
    written = Snapshots(parts, together=engines_together(run)).begin(tmp_path)()
    assert set(written) == {"file", "critic/file"}
    policy = tmp_path.name
    if not together:
        assert log == [f"begin {policy}", f"end {policy}", "begin critic", "end critic"]


def test_of_ranks_that_take_turns_the_critic_comes_after_the_policy(values):
    engine = {"type": "fsdp2", "ranks": 2, "device": "cpu"}
    runs = [
        strop.load(values(checkpoint={"writers": writers}, trainer__engine=engine)).run
        for writers in ("all", "node", "process", "thread")
    ]
    assert [engines_together(run) for run in runs] == [True, False, False, False]


def test_an_export_wants_the_weights_to_stand_still(values):
    with pytest.raises(ConfigError, match=r"take one of them out"):
        strop.load(values(checkpoint={"beside": True, "export": True}))
