"""`checkpoint.best`: a run exports the model of its best evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import strop
from strop.config.load.loader import load_values
from strop.errors import CheckpointError, ConfigError, Interrupted, TrainingError
from strop.run.drivers.evaluator import Evaluator
from strop.run.optimize.rollout_updater import RolloutUpdater
from strop.run.state.best_checkpoint import BestCheckpoint, BestCheckpointRule

METRIC = "eval/held-out/reward"
SCORES = {1: 0.2, 2: 0.5, 3: 0.4, 4: 0.5, 5: 0.1, 6: 0.3}
"""Score of each step's evaluation: step 2 is the best, and step 4 equals it."""


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations with fixed scores."""
    scores = {0: 0.9, **SCORES}
    monkeypatch.setattr(Evaluator, "evaluate", lambda self, step: {METRIC: scores[step]})


@pytest.fixture
def best(values):
    """The values of a run with `checkpoint.best`, evaluated after every step, and at the start."""

    def make(checkpoint=None, **changes):
        kept = {"every": "never", "keep": 2, "best": {}} | (checkpoint or {})
        changes = {"trainer__duration": "6 steps", "record__rollouts_every": "never"} | changes
        return values(checkpoint=kept, evaluate={"every": "1 steps"}, **changes)

    return make


def train(values):
    return strop.train(strop.load(values))


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_best_checkpoint_is_kept_and_exported(best, scored):
    result = train(best({"export": True}))
    assert (result.steps, result.model_step) == (6, 2)
    assert saved(result.folder) == ["step-000002", "step-000006"]
    kept = result.folder / "checkpoints"
    assert weights(result.model) == weights(kept / "step-000002" / "model")
    assert weights(result.model) != weights(kept / "step-000006" / "model")
    state = json.loads((kept / "step-000006" / "state.json").read_text())
    assert state["best"] == {"step": 2, "value": 0.5, "metric": METRIC, "mode": "max"}


def test_mode_min_selects_the_smallest_value(best, scored):
    assert train(best({"best": {"metric": METRIC, "mode": "min"}})).model_step == 5


@pytest.mark.slow
def test_a_resumed_run_remembers_the_best(best, scored, monkeypatch):
    update = RolloutUpdater.update

    def stopped(self, batch, *, step, updates_done):
        if step == 5:
            raise Interrupted("Stopped by SIGTERM.", 15)
        return update(self, batch, step=step, updates_done=updates_done)

    whole = train(best(name="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(RolloutUpdater, "update", stopped)
        with pytest.raises(Interrupted):
            train(best(name="parts"))
    parts = train(best(name="parts"))
    assert parts.model_step == 2
    assert weights(parts.model) == weights(whole.model)
    again = train(best(name="parts"))
    assert (again.model_step, weights(again.model)) == (2, weights(whole.model))
    last = train(best({"best": None}, name="parts"))
    assert last.model_step == 6 and weights(last.model) != weights(whole.model)


@pytest.mark.slow
def test_a_run_from_another_runs_checkpoint_selects_its_own_best(best, scored):
    whole = train(best(name="whole"))
    start = str(whole.folder / "checkpoints" / "step-000006")
    longer = best(name="longer", resume=start, trainer__duration="6 steps")
    assert train(longer).model_step == 6


def test_a_damaged_best_checkpoint_is_an_error(best, scored, monkeypatch):
    result = train(best())
    (result.folder / "checkpoints" / "step-000002" / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(
        CheckpointError, match=r"best checkpoint of the run \(eval/held-out/reward 0.5\).*best: null"
    ):
        train(best())


def test_the_evaluation_of_the_run_decides(best):
    """Without fixed scores: the exported model has the reward of its evaluation."""
    run = best(trainer__duration="3 steps")
    result = train(run)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    rewards = {row["step"]: row[METRIC] for row in rows if row["step"] > 0}
    assert result.model_step == max(rewards, key=rewards.__getitem__)
    measured = strop.evaluate(
        strop.load(run), checkpoint=result.folder / "checkpoints" / f"step-{result.model_step:06d}"
    )
    assert measured[METRIC] == pytest.approx(rewards[result.model_step])


def test_the_earlier_of_two_equal_values_wins_and_nan_never_does(best):
    rule = BestCheckpointRule.of(load_values(best()).run)
    assert rule == BestCheckpointRule(METRIC, "max")
    found = None
    for step, value in enumerate([math.nan, 0.1, 0.1, math.nan, 0.2], start=1):
        found = rule.update(found, step, {METRIC: value})
        assert found is None or found.step in (2, 5)
    assert found == BestCheckpoint(5, 0.2, METRIC, "max")
    with pytest.raises(
        TrainingError, match=r"checkpoint.best.metric is .*reward.*It has eval/held-out/other"
    ):
        rule.update(None, 1, {"eval/held-out/other": 1.0})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data__eval": []}, "checkpoint.best requires an evaluation, and there is none"),
        (
            {"checkpoint": {"best": {"metric": "reward"}}},
            "checkpoint.best.metric .reward. is not an evaluation metric",
        ),
        ({"checkpoint": {"best": {"mode": "most"}}}, "checkpoint.best.mode"),
    ],
)
def test_invalid_best_settings_are_refused_at_load(best, changes, says):
    with pytest.raises(ConfigError, match=says):
        load_values(best(**changes))
