"""A resumed run equals the uninterrupted one bit for bit: every mechanism with a state, after every interruption.

CI interrupts each mechanism once, with the full model or with LoRA; the nightly run has all combinations.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import Interrupted, RunFolderError
from strop.run.drivers.evaluation import Evaluator
from strop.run.drivers.train_loop import TrainLoop
from strop.run.state.identity import change_configuration
from strop.runs.sessions import read_sessions
from tests.cases import nightly

from .mechanisms import MECHANISMS, MODELS, assert_same_end
from .results import checkpoint, rows_of, state, steps_of, train, weights


class Killed(BaseException):
    """Ends the run at once, as a kill would: nothing is saved."""


STOPPED = Interrupted("Stopped by SIGTERM.", 15)
INTERRUPTIONS: dict[str, tuple[type, str, int, BaseException] | None] = {
    "killed in step 4": (TrainLoop, "_step", 4, Killed()),
    "stopped in step 4": (TrainLoop, "_step", 4, STOPPED),
    "killed in an evaluation": (Evaluator, "evaluate", 4, Killed()),
    "stopped in an evaluation": (Evaluator, "evaluate", 2, STOPPED),
    "ended after step 2": None,
    "another run's checkpoint": None,
}
"""Method that raises the error at a step of the run, before it does anything."""


def interrupt(run: dict[str, Any], kind: str, whole: Path) -> None:
    """Have a run interrupted, or prepare its values for the start from a checkpoint of the whole run."""
    if kind == "ended after step 2":
        assert train(run, "trainer.stop_after=2 steps").steps == 2
    elif kind == "another run's checkpoint":
        run["resume"] = str(checkpoint(whole, 2))
    else:
        owner, method, step, error = INTERRUPTIONS[kind]
        original = getattr(owner, method)

        def raises(self: Any, number: int) -> Any:
            if number == step:
                raise error
            return original(self, number)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(type(error)):
            patch.setattr(owner, method, raises)
            train(run)


def cases() -> Iterator[Any]:
    """CI has each mechanism once, and each interruption with both models; the nightly run has all combinations."""
    for number, mechanism in enumerate(MECHANISMS):
        for other, (model, kind) in enumerate(product(MODELS, INTERRUPTIONS)):
            if mechanism == "the best checkpoint" and kind == "another run's checkpoint":
                continue  # that run selects its own best
            if mechanism == "a reference that changes" and model == "lora":
                continue  # the reference is the model without its adapter
            models = 1 if mechanism == "a reference that changes" else 2
            in_ci = other == 5 * number % (6 * models)
            mark = pytest.mark.slow if in_ci else pytest.mark.nightly
            yield pytest.param(mechanism, model, kind, marks=mark)


@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize(("mechanism", "model", "interruption"), list(cases()))
def test_a_resumed_run_equals_the_uninterrupted_one(
    values_of: Any, whole_of: Any, mechanism: str, model: str, interruption: str
) -> None:
    whole, case = whole_of(mechanism, model), MECHANISMS[mechanism]
    if case.keeps.endswith(".safetensors"):
        assert (checkpoint(whole, 2) / case.keeps).is_file()
    elif case.keeps:
        assert state(whole, 2)[case.keeps]
    assert case.shows(rows_of(whole), state(whole, 4))
    run = values_of("again", mechanism, model)
    interrupt(run, interruption, whole)
    assert_same_end(train(run).folder, whole)
    if interruption == "another run's checkpoint":
        assert steps_of(Path(run["output"]) / "strop" / "again") == [3, 4]


def test_a_run_folder_means_its_last_good_checkpoint(values: Any, finished: dict[str, Any]) -> None:
    folder = str(strop.load(finished).run.folder_path)
    assert steps_of(train(values(resume=folder, trainer__duration="6 steps")).folder) == [5, 6]


def test_a_finished_run_reports_that_nothing_is_left_to_do(copied: dict[str, Any], capsys: Any) -> None:
    assert train(copied).steps == 4
    assert "nothing is left to do" in capsys.readouterr().out


def test_resume_never_archives_the_old_folder(copied: dict[str, Any]) -> None:
    folder = train(copied | {"resume": "never"}, "trainer.duration=1 steps").folder
    (archived,) = (path for path in folder.parent.iterdir() if path != folder)
    assert steps_of(folder) == [0, 1] and steps_of(archived) == [0, 1, 2, 3, 4]


def test_a_damaged_checkpoint_is_skipped_and_reported(copied: dict[str, Any], capsys: Any) -> None:
    newest = checkpoint(strop.load(copied).run.folder_path, 4)
    weights = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(weights, weights.stat().st_size // 2)
    assert train(copied, "trainer.duration=6 steps").steps == 6
    shown = capsys.readouterr().out
    assert "is skipped" in shown and newest.name in shown and "Resuming after step 2" in shown


def test_a_run_continues_with_a_changed_setting_if_that_is_said(copied: dict[str, Any]) -> None:
    changed = strop.load(copied, ["trainer.optimizer.lr=5e-4", "trainer.duration=5 steps"])
    with pytest.raises(RunFolderError, match=r"trainer\.optimizer\.lr was 0\.001, is 0\.0005"):
        strop.train(changed)
    with pytest.raises(RunFolderError, match="more than --change names"):
        change_configuration(changed.run, ["seed"])
    said = change_configuration(changed.run, ["trainer.optimizer"])
    assert said == (
        "Changed after step 4: trainer.optimizer.lr was 0.001, is 0.0005. The run had finished: no step uses the "
        "change unless the run is longer now."
    )
    folder = strop.train(changed).folder
    assert [row.get("lr") for row in rows_of(folder)] == [None, 1e-3, 1e-3, 1e-3, 1e-3, 5e-4]
    first, second = read_sessions(folder)
    assert first["changed_afterwards"] == ["trainer.optimizer.lr was 0.001, is 0.0005"]
    assert second["from_step"] == 4


def test_a_change_needs_a_run_to_continue(values: Any) -> None:
    with pytest.raises(RunFolderError, match="has no checkpoint of one"):
        change_configuration(strop.load(values()).run, ["seed"])


def updater_of(loop):
    """Name of the class that updates in the loop's only phase."""
    (phase,) = loop._setup.phases
    return type(phase.updater).__name__


@pytest.mark.slow
def test_an_interrupted_run_resumes_in_its_stage_to_the_same_end(staged, monkeypatch):
    """It is killed in the first stage, and stopped in the second one."""
    whole = train(staged(name="whole")).folder
    assert whole.name == "whole-rl"
    interruptions = {("OfflineUpdater", 4): Killed(), ("RolloutUpdater", 4): STOPPED}
    begun = []

    def interrupted(self, step, learn=TrainLoop._step):
        begun.append((updater_of(self), step))
        if error := interruptions.pop(begun[-1], None):
            raise error
        return learn(self, step)

    monkeypatch.setattr(TrainLoop, "_step", interrupted)
    run = staged(name="interrupted")
    with pytest.raises(Killed):
        train(run)
    again = len(begun)
    with pytest.raises(Interrupted):
        train(run)
    assert begun[again] == ("OfflineUpdater", 3), "after the checkpoint of step 2, in the same stage"
    warm_up = whole.with_name("interrupted-warm-up")
    before, again = (warm_up / "metrics.jsonl").stat().st_mtime_ns, len(begun)
    folder = train(run).folder
    assert begun[again:] == [("RolloutUpdater", 4)]
    assert (warm_up / "metrics.jsonl").stat().st_mtime_ns == before, "the first stage is done, and left alone"
    assert weights(folder) == weights(whole) != weights(warm_up)
    other = staged(name="interrupted")
    other["stages"][0]["trainer"] = {"optimizer": {"lr": 1e-5}}
    with pytest.raises(RunFolderError, match="made by a different configuration"):
        train(other)


class SignalInEvaluation(strop.Callback):
    """Has the reward of the eval taskset send a signal in the evaluation after `step`."""

    def __init__(self, file: Path, step: int, number: int) -> None:
        self.file, self.step, self.number = file, step, number
        self.steps = 0

    def on_rollouts(self, groups: Any) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.file.write_text(f"{os.getpid()} {int(self.number)}")


@pytest.mark.slow
@pytest.mark.parametrize(("step", "number"), [(2, signal.SIGTERM), *nightly((4, signal.SIGINT))])
def test_a_signal_in_an_evaluation_loses_no_metrics(values, tmp_path, monkeypatch, step, number):
    signal_file = tmp_path / "signal"
    monkeypatch.setenv("STROP_TEST_SIGNAL", str(signal_file))

    def run_of(name: str) -> dict[str, Any]:
        run = values(name=name, checkpoint={"every": "2 steps", "best": {}})
        run["data"]["eval"][0]["reward"] = run["reward"].replace("digit_share", "signals_the_run")
        return run

    run = strop.load(run_of("stopped"))
    with pytest.raises(Interrupted, match=f"{number.name}. The state after step {step}"):
        strop.train(run, callbacks=[SignalInEvaluation(signal_file, step, number)])
    stopped = rows_of(run.run.folder_path)
    assert [row["step"] for row in stopped] == list(range(step + 1))
    assert {"reward/mean", "loss", "grad_norm"} <= stopped[-1].keys()
    assert "eval/held-out/reward" not in stopped[-1]
    assert_same_end(strop.train(run).folder, train(run_of("whole")).folder)
