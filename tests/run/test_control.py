"""Callbacks, handles, signals and interrupts of a run that Python code started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading

import pyarrow.parquet as pq
import pytest

import strop
from strop.errors import CallbackError, ConfigError, Interrupted
from strop.run.drivers.callbacks import CallbackList
from strop.run.state.run_state import RunState
from strop.workers.child_process import start_module
from strop.workers.signals import StopSignal
from strop.workers.threads import run_coroutine
from tests.cases import nightly

from .killed import IMPORTS
from .results import steps_of


class Recording(strop.Callback):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def on_step(self, metrics):
        self.calls.append(("step", metrics["step"], metrics["reward/mean"]))

    def on_rollouts(self, groups):
        self.calls.append(("rollouts", len(groups), groups[0].rollouts[0].reward is not None))

    def on_evaluate(self, name, metrics):
        self.calls.append(("evaluate", name, metrics["step"], f"eval/{name}/reward" in metrics))

    def on_save(self, path):
        self.calls.append(("save", path.name, (path / "manifest.json").is_file()))


class StopAt:
    """Stops the run after a step; has only the methods that it needs."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_start(self, control):
        self.control = control

    def on_step(self, metrics):
        if metrics["step"] == self.step:
            self.control.stop()


def test_runs_evaluates_and_generates_where_an_event_loop_runs_as_in_jupyter(values, tmp_path):
    run = strop.load(values(trainer__duration="1 steps"))

    async def cell():
        result = strop.train(run)
        (checkpoint,) = (result.folder / "checkpoints").glob("step-*")
        metrics = strop.evaluate(run, checkpoint=checkpoint)
        assert metrics["eval/held-out/reward"] == result.metrics["eval/held-out/reward"]
        count = strop.generate(run, run.run.data.eval[0].path, tmp_path / "out.parquet")
        return result.steps, count, run_coroutine(asyncio.sleep(0, "done"))

    steps, count, value = asyncio.run(cell())
    assert (steps, value) == (1, "done")
    assert count == pq.read_metadata(tmp_path / "out.parquet").num_rows


def test_callbacks_are_called_in_the_order_of_the_step(values):
    callback = Recording()
    result = strop.train(strop.load(values(trainer__duration="2 steps")), callbacks=[callback])
    kinds = [call[0] for call in callback.calls]
    assert kinds == ["evaluate", "rollouts", "step", "rollouts", "evaluate", "step", "save"]
    assert ("evaluate", "held-out", 2.0, True) in callback.calls
    assert ("rollouts", 8, True) in callback.calls
    assert callback.calls[-1] == ("save", "step-000002", True)
    history = result.history()
    assert [row["step"] for row in history] == [0, 1, 2]
    assert history[-1]["loss"] == result.metrics["loss"] and "eval/held-out/reward" in history[0]
    rewards = [call[2] for call in callback.calls if call[0] == "step"]
    assert rewards == [row["reward/mean"] for row in history[1:]]


def test_an_exception_in_a_callback_names_the_callback():
    class Faulty(strop.Callback):
        def on_step(self, metrics):
            raise ValueError("no such chart")

    with pytest.raises(CallbackError, match=r"Faulty raised ValueError in on_step: no such chart \(.*line"):
        CallbackList([Faulty()]).on_step({"step": 1.0})


def test_a_callback_stops_the_run_and_the_next_start_continues_it(values):
    run = strop.load(values())
    stopped = strop.train(run, callbacks=[StopAt(3)])
    assert (stopped.stopped, stopped.steps, stopped.model_step) == (True, 3, 3)
    assert stopped.model is not None and (stopped.model / "model.safetensors").is_file()
    (session,) = json.loads((stopped.folder / "run.json").read_text())["sessions"]
    assert session["outcome"] == "interrupted"
    resumed = strop.train(run)
    assert (resumed.stopped, resumed.steps, steps_of(resumed.folder)) == (False, 4, [0, 1, 2, 3, 4])


def test_a_stopped_stage_is_the_last_one(staged):
    result = strop.train(strop.load(staged()), callbacks=[StopAt(1)])
    assert result.stopped and result.folder.name == "small-warm-up"


def test_a_handle_stops_a_run_from_another_thread(values):
    reached = threading.Event()

    class Reach(strop.Callback):
        def on_step(self, metrics):
            reached.set()

    handle = strop.start(strop.load(values(trainer__duration="1000 steps")), callbacks=[Reach()])
    assert reached.wait(600)
    assert not handle.done and handle.result is None
    with pytest.raises(TimeoutError, match="still in progress"):
        handle.wait(0.01)
    handle.stop()
    result = handle.wait(600)
    assert result.stopped and 1 <= result.steps < 1000
    assert handle.done and handle.result == result


def test_a_handle_raises_what_ended_the_run(values):
    handle = strop.start(strop.load(values(reward="nowhere.py:f")))
    with pytest.raises(strop.StropError, match=r"nowhere\.py"):
        handle.wait(600)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "bench"}, "mode: bench"),
        ({"synchronizer": {"type": "checkpoint", "style": "fixed"}, "buffer": "sql"}, "of their own"),
    ],
)
def test_callbacks_without_a_training_loop_here_are_refused(values, changes, says):
    with pytest.raises(ConfigError, match=says):
        strop.train(strop.load(values(**changes)), callbacks=[strop.Callback()])


def test_a_stop_of_one_run_is_not_a_stop_of_another():
    first, second = StopSignal(), StopSignal()
    first.request_stop()
    assert first.requested_by_code
    with pytest.raises(Interrupted, match="a call of stop"):
        first.check()
    second.check()


def test_on_evaluate_is_called_for_each_taskset():
    callback = Recording()
    metrics = {"eval/a/reward": 0.5, "eval/b/reward": 0.25, "time/evaluate_seconds": 1.0}
    CallbackList([callback]).on_evaluate(4, metrics)
    assert callback.calls == [("evaluate", "a", 4.0, True), ("evaluate", "b", 4.0, True)]


SCRIPT = """
import asyncio, json, strop

async def cell(run):
    strop.train(run, callbacks=[Tell()])

class Tell(strop.Callback):
    def on_step(self, metrics):
        print("step", flush=True)

if __name__ == "__main__":
    run = strop.load(json.loads('''{run}'''))
    {call}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "strop.start(run, callbacks=[Tell()]).wait()",
        *nightly("strop.train(run, callbacks=[Tell()])", "asyncio.run(cell(run))"),
    ],
)
def test_ctrl_c_in_a_script_prints_one_line_and_saves_the_state(values, tmp_path, monkeypatch, call):
    run = values(trainer__duration="1000 steps", checkpoint={"every": "never"}, record__monitors=[])
    (tmp_path / "user_script.py").write_text(SCRIPT.format(run=json.dumps(run), call=call))
    monkeypatch.syspath_prepend(str(tmp_path))
    with (tmp_path / "errors.txt").open("w+") as file:
        process = start_module("user_script", imports=IMPORTS, stdout=subprocess.PIPE, stderr=file.fileno())
        try:
            assert process.stdout is not None and process.stdout.readline() == b"step\n"
            process.send_signal(signal.SIGINT)
            code = process.wait(600)
        finally:
            process.kill()
        file.seek(0)
        errors = file.read()
    lines = [line for line in errors.splitlines() if "Warning" not in line]
    assert code == 130, errors
    assert "Traceback" not in errors
    assert lines[-1].startswith("Stopped by SIGINT. The state after step ")
    assert list((tmp_path / "runs").rglob("checkpoints/step-*"))


def test_the_state_of_an_earlier_version_is_read(tmp_path):
    best = {"step": 2, "value": 0.5, "metric": "eval/a/reward", "mode": "max"}
    former = {"step": 3, "updates": 6, "kl_coef": None, "expert_position": 0, "plateau": None, "best": best}
    former |= {"position": 24, "taken": ["train-000003-00000"], "shift": -2, "owes_evaluation": True}
    (tmp_path / "state.json").write_text(json.dumps(former))
    state = RunState.load(tmp_path)
    assert (state.tasks_taken, state.unacknowledged) == (24, ("train-000003-00000",))
    assert (state.group_offset, state.evaluation_pending) == (-2, True)
    state.save(tmp_path)
    assert RunState.load(tmp_path) == state


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_remembered_until_someone_checks(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.received == number
        with pytest.raises(Interrupted) as caught:
            stop.check()
        assert caught.value.exit_code == 128 + number
        assert signal.getsignal(number) == before, "a second signal must end the process"
    assert signal.getsignal(number) == before


def test_other_threads_get_no_signals_and_no_error():
    seen = []

    def work():
        with StopSignal() as stop:
            stop.check()
            seen.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
