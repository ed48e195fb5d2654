"""Decisions by evaluations: `checkpoint.best`, the exported model, and `evaluate.stop_when`, the early end of a run."""

from __future__ import annotations

import math

import pytest

import strop
from strop.config.load.loader import load_values
from strop.errors import CheckpointError, TrainingError
from strop.run.drivers.evaluation import Evaluator
from strop.run.state.tracked_metric import BestCheckpoint, BestCheckpointRule, EarlyStopRule, EvaluationRecord

from .results import checkpoint, rows_of, state, steps_of, train, weights

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
        short = {
            "trainer__duration": "6 steps",
            "trainer__tasks_per_step": 4,
            "record__rollouts_every": "never",
        }
        changes = {**short, "algorithm__rollouts_per_task": 2, **changes}
        return values(checkpoint=kept, evaluate={"every": "1 steps"}, **changes)

    return make


def test_the_best_checkpoint_is_kept_and_exported(best, scored):
    result = train(best({"export": True}))
    assert (result.steps, result.model_step) == (6, 2)
    saved = sorted((result.folder / "checkpoints").iterdir())
    assert [path.name for path in saved] == ["step-000002", "step-000006"]
    model = weights(result.folder)
    assert [weights(path) == model for path in saved] == [True, False]
    assert state(result.folder, 6)["best"] == {"step": 2, "value": 0.5, "metric": METRIC, "mode": "max"}
    again = train(best({"export": True}))
    assert (again.model_step, weights(again.folder)) == (2, model), "a finished run remembers it"
    last = train(best({"export": True, "best": None}))
    assert last.model_step == 6 and weights(last.folder) != model


def test_mode_min_selects_the_smallest_value(best, scored):
    assert train(best({"best": {"metric": METRIC, "mode": "min"}})).model_step == 5


def test_a_run_from_another_runs_checkpoint_selects_its_own_best(best, scored):
    whole = train(best(name="whole"))
    assert train(best(name="longer", resume=str(checkpoint(whole.folder, 6)))).model_step == 6


def test_a_damaged_best_checkpoint_is_an_error(best, scored):
    (checkpoint(train(best()).folder, 2) / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(
        CheckpointError, match=r"best checkpoint of the run \(eval/held-out/reward 0.5\).*best: null"
    ):
        train(best())


def test_the_evaluation_of_the_run_decides(best):
    """Without fixed scores: the exported model has the reward of its evaluation."""
    run = best(trainer__duration="3 steps")
    result = train(run)
    rewards = {row["step"]: row[METRIC] for row in rows_of(result.folder)[1:]}
    assert result.model_step == max(rewards, key=rewards.__getitem__)
    measured = strop.evaluate(strop.load(run), checkpoint=checkpoint(result.folder, result.model_step))
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


def early_stop(mode: str = "max", value: float | None = None, patience: int | None = None) -> EarlyStopRule:
    return EarlyStopRule("eval/a/reward", mode, value, patience)


def test_a_value_is_reached() -> None:
    for mode, values, ends in (("max", (0.5, 0.9), 0.8), ("min", (0.5, 0.1), 0.2)):
        record, stop = EvaluationRecord(), early_stop(mode, value=ends)
        reasons = []
        for value in values:
            record = stop.update(record, {"eval/a/reward": value})
            reasons.append(stop.reason(record))
        assert reasons[0] is None and "reached" in str(reasons[1])


def test_patience_counts_evaluations_without_improvement() -> None:
    record, stop = EvaluationRecord(), early_stop(patience=2)
    seen = []
    for value in (0.5, 0.4, 0.6, 0.6, math.nan):
        record = stop.update(record, {"eval/a/reward": value})
        seen.append(record.without_improvement)
    assert seen == [0, 1, 0, 1, 2]
    assert "has not improved in 2 evaluations" in str(stop.reason(record))


def test_a_run_ends_early_and_stays_ended(values, capsys) -> None:
    run = values(evaluate={"every": "1 steps", "stop_when": {"value": -1.0}})
    for said in ("The run ends after step 1 of 4: eval/held-out/reward reached", "Resuming after step 1"):
        result = train(run)
        assert result.steps == 1 and (result.model / "config.json").is_file()
        assert said in capsys.readouterr().out
    assert steps_of(result.folder) == [0, 1]
