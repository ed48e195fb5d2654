"""A signal in an evaluation: the step's training metrics are kept, and the resumed run ends like the whole one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import Interrupted
from tests.files import digest

CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")


class SignalInEvaluation(strop.Callback):
    """Has the reward of the eval taskset send a signal in the evaluation after `step`."""

    def __init__(self, file: Path, step: int, number: int) -> None:
        self.file, self.step, self.number = file, step, number
        self.steps = 0

    def on_rollouts(self, groups: Any) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.file.write_text(f"{os.getpid()} {int(self.number)}")


def run_of(values: Any, name: str) -> strop.LoadedRun:
    run = values(name=name, checkpoint={"every": "2 steps", "best": {}})
    run["data"]["eval"][0]["reward"] = run["reward"].replace("digit_share", "signals_the_run")
    return strop.load(run)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if not name.startswith(CLOCKS)} for row in rows]


def last_state(folder: Path) -> str:
    return (folder / "checkpoints" / "step-000004" / "state.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("step", "number"), [(2, signal.SIGTERM), (4, signal.SIGINT)])
def test_a_signal_in_an_evaluation_loses_no_metrics(values, tmp_path, monkeypatch, step, number):
    signal_file = tmp_path / "signal"
    monkeypatch.setenv("STROP_TEST_SIGNAL", str(signal_file))
    whole = strop.train(run_of(values, "whole"))

    run = run_of(values, "stopped")
    callback = SignalInEvaluation(signal_file, step, number)
    with pytest.raises(Interrupted, match=f"{number.name}. The state after step {step}"):
        strop.train(run, callbacks=[callback])
    stopped = rows_of(run.run.folder_path)
    assert [row["step"] for row in stopped] == list(range(step + 1))
    assert {"reward/mean", "loss", "grad_norm"} <= stopped[-1].keys()
    assert "eval/held-out/reward" not in stopped[-1]

    resumed = strop.train(run)
    assert rows_of(resumed.folder) == rows_of(whole.folder)
    assert [list(row) for row in rows_of(resumed.folder)] == [list(row) for row in rows_of(whole.folder)]
    assert last_state(resumed.folder) == last_state(whole.folder)
    for file in ("model.safetensors", "config.json"):
        assert digest(resumed.folder / "model" / file) == digest(whole.folder / "model" / file)


def test_metrics_of_an_evaluation_join_the_row_of_their_step(tmp_path):
    from .test_recorder import recorder, rows

    with recorder(tmp_path) as record:
        record.log_step(1, {"reward/mean": 0.5})
        record.log_step(2, {"reward/mean": 0.25})
        before = (tmp_path / "metrics.jsonl").read_bytes().splitlines()
        record.add_to_step(2, {"eval/sums/reward": 1.0})
        record.log_step(3, {"reward/mean": 0.125})
        record.add_to_step(2, {"eval/sums/reward": 0.75})  # an explorer's evaluation of an earlier version
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines()[0] == before[0]
    found = [{name: row[name] for name in row if name != "memory/peak_mb"} for row in rows(tmp_path)]
    assert found == [
        {"step": 1, "reward/mean": 0.5},
        {"step": 2, "reward/mean": 0.25, "eval/sums/reward": 1.0},
        {"step": 3, "reward/mean": 0.125},
        {"step": 2, "eval/sums/reward": 0.75},
    ]
