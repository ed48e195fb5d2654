"""Background saves: the same checkpoints while steps continue; the end waits, an error stops the run."""

from __future__ import annotations

import threading

import pytest

import strop
from strop.errors import CheckpointError
from strop.protocols import FileChecksum
from strop.run.state.checkpoint_manager import CheckpointSaver, CompositeSnapshot, saves_engines_in_parallel
from strop.training.checkpoints import checkpoint
from tests.files import digest

from .results import rows_of, train


def test_checkpoints_are_the_same_files(values):
    settings = {
        "algorithm": {"type": "ppo", "rollouts_per_task": 2},
        "trainer__duration": "2 steps",
        "data__eval": [],
        "evaluate": {},
    }
    first, second = (
        train(
            values(name=str(beside), checkpoint={"every": "1 steps", "async_save": beside}, **settings)
        ).folder
        for beside in (False, True)
    )
    assert rows_of(first) == rows_of(second)
    files = [path.relative_to(first) for path in (first / "checkpoints").rglob("*") if path.is_file()]
    assert [file.name for file in files].count("weights.safetensors") == 4, "of policy and critic, twice"
    configuration = ("run.yaml", "manifest.json")  # these have the name of the run, and its checksum
    for file in (file for file in files if file.name not in configuration):
        assert digest(second / file) == digest(first / file), file


class Recording(strop.Callback):
    """Sets an event after a step, and notes each save and whether it is complete."""

    def __init__(self, step: int) -> None:
        self.step, self.reached = step, threading.Event()
        self.saves: list[tuple[str, bool]] = []

    def on_step(self, metrics):
        if metrics["step"] == self.step:
            self.reached.set()

    def on_save(self, path):
        self.saves.append((path.name, (path / "manifest.json").is_file()))


def test_steps_continue_during_a_slow_save_and_the_end_waits_for_it(values, monkeypatch):
    finish, callback = checkpoint.commit, Recording(3)

    def slow(draft, fill, **rest):
        if draft.step == 2:
            assert callback.reached.wait(600), "step 3 waits for the checkpoint of step 2"
            assert callback.saves == []
        return finish(draft, fill, **rest)

    monkeypatch.setattr(checkpoint, "commit", slow)
    run = values(checkpoint={"every": "2 steps", "async_save": True}, data__eval=[], evaluate={})
    result = strop.train(strop.load(run), callbacks=[callback])
    assert callback.saves == [("step-000002", True), ("step-000004", True)]
    assert checkpoint.latest(result.folder / "checkpoints")[0].name == "step-000004"


def test_an_error_of_a_background_save_stops_the_run(values, monkeypatch):
    def fails(draft, fill, **rest):
        raise CheckpointError("The disk is full.")

    monkeypatch.setattr(checkpoint, "commit", fails)
    with pytest.raises(CheckpointError, match="The disk is full"):
        train(values(checkpoint={"every": "1 steps", "async_save": True}))


def test_the_callback_of_a_save_waits_for_the_save():
    saver, free, done = CheckpointSaver(async_save=True), threading.Event(), []
    saver.save(lambda: free.wait(600) and None, lambda: done.append(threading.current_thread()))
    saver.poll()
    assert done == [], "it is not there yet"
    free.set()
    saver.wait()
    assert done == [threading.current_thread()]
    saver.wait()
    assert len(done) == 1


class Part:
    """A snapshot whose writer logs its start and end, and waits in between for another writer to start."""

    def __init__(self, log: list[str], meeting: threading.Barrier | None) -> None:
        self.log, self.meeting = log, meeting

    def begin_write(self, folder, *, copied=False):
        def write():
            self.log.append(f"begin {folder.name}")
            if self.meeting is not None:
                self.meeting.wait()
            self.log.append(f"end {folder.name}")
            return {"file": FileChecksum(1, "00000000")}

        return write


@pytest.mark.parametrize(("writers", "together"), [("all", True), ("process", True), ("thread", False)])
def test_policy_and_critic_are_written_in_parallel_as_configured(values, writers, together, tmp_path):
    run = strop.load(values(checkpoint={"save_concurrency": writers})).run
    log, meeting = [], threading.Barrier(2, timeout=600) if together else None
    parts = {".": Part(log, meeting), "critic": Part(log, meeting)}
    written = CompositeSnapshot(parts, parallel=saves_engines_in_parallel(run)).begin_write(tmp_path)()
    assert set(written) == {"file", "critic/file"}
    policy = tmp_path.name
    if not together:
        assert log == [f"begin {policy}", f"end {policy}", "begin critic", "end critic"]


def test_ranks_write_the_critic_after_the_policy(values):
    engine = {"type": "fsdp2", "ranks": 2, "device": "cpu"}
    runs = [
        strop.load(values(checkpoint={"save_concurrency": writers}, trainer__engine=engine)).run
        for writers in ("all", "node", "process", "thread")
    ]
    assert [saves_engines_in_parallel(run) for run in runs] == [True, False, False, False]
