"""Stages: each starts from the model of the one before; a stopped run resumes in the right stage."""

from __future__ import annotations

import pytest

import strop
from strop.errors import Interrupted, RunFolderError
from strop.run.drivers import train_loop
from tests.files import digest


def staged(values, **changes):
    run = values(**changes)
    del run["algorithm"]
    warm_up = {
        "name": "warm-up",
        "algorithm": "sft",
        "data": {"train": {"response": "answer"}},
        "record": {"rollouts_every": "never"},
    }
    rl = {"name": "rl", "algorithm": {"type": "grpo", "rollouts_per_task": 4}}
    return run | {"stages": [warm_up, rl]}


def updater_of(loop):
    """Name of the class that updates in the loop's only phase."""
    (phase,) = loop._setup.phases
    return type(phase.updater).__name__


class Killed(BaseException):
    """Ends the run at once, as a kill would: nothing is saved."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["OfflineUpdater", "RolloutUpdater"])
def test_a_killed_run_resumes_in_its_stage_from_the_last_checkpoint(values, monkeypatch, kind):
    whole = strop.train(strop.load(staged(values, name="whole")))
    run = staged(values, name="killed")
    begun = []

    def killed_at_step_4(self, step, learn=train_loop.TrainLoop._step):
        begun.append((updater_of(self), step))
        if begun.count((kind, 4)) == 1 and begun[-1] == (kind, 4):
            raise Killed
        return learn(self, step)

    monkeypatch.setattr(train_loop.TrainLoop, "_step", killed_at_step_4)
    with pytest.raises(Killed):
        strop.train(strop.load(run))
    again = len(begun)
    result = strop.train(strop.load(run))
    assert begun[again] == (kind, 3), "after the checkpoint of step 2, in the same stage"
    weights = "model.safetensors"
    assert digest(result.model / weights) == digest(whole.model / weights)


@pytest.mark.slow
def test_a_stopped_run_resumes_in_its_stage_to_the_same_end(values, monkeypatch):
    whole = strop.train(strop.load(staged(values, name="whole")))
    assert whole.folder.name == "whole-rl"
    run = staged(values, name="stopped")
    steps = []

    def stop_in_the_second_stage(self, step, learn=train_loop.TrainLoop._step):
        steps.append((updater_of(self), step))
        if steps[-1] == ("RolloutUpdater", 3):
            raise Interrupted("Stopped by SIGTERM.", 15)
        return learn(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(train_loop.TrainLoop, "_step", stop_in_the_second_stage)
        with pytest.raises(Interrupted):
            strop.train(strop.load(run))
    warm_up = whole.folder.with_name("stopped-warm-up")
    before = (warm_up / "metrics.jsonl").stat().st_mtime_ns
    result = strop.train(strop.load(run))
    assert (warm_up / "metrics.jsonl").stat().st_mtime_ns == before, "the first stage is done, and left alone"
    weights = "model.safetensors"
    assert digest(result.model / weights) == digest(whole.model / weights)
    assert (result.model / weights).read_bytes() != (warm_up / "model" / weights).read_bytes()


def test_a_finished_stage_of_another_configuration_is_refused(values):
    strop.train(strop.load(staged(values)))
    other = staged(values)
    other["stages"][0]["trainer"] = {"optimizer": {"lr": 1e-5}}
    with pytest.raises(RunFolderError, match="made by a different configuration"):
        strop.train(strop.load(other))
