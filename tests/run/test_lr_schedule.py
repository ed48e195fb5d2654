"""Learning rate, weight decay and schedule-free weights over whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import strop
from strop.config.load.loader import load_values
from strop.config.resume_compatibility import resume_differences
from strop.errors import ConfigError, Interrupted, TrainingError
from strop.run.drivers import evaluator, train_loop

PLATEAU = {
    "type": "reduce_lr_on_plateau",
    "patience": 0,
    "factor": 0.5,
    "threshold": 10.0,
    "threshold_mode": "abs",
}
"""No evaluation improves by 10, so each evaluation after the first reduces the rate."""


def train(values):
    return strop.train(strop.load(values))


def rates(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["lr"] for row in rows if "lr" in row]


def model(folder: Path):
    (file,) = (folder / "model").glob("*.safetensors")
    return file.read_bytes()


@pytest.fixture
def plateau(values):
    return lambda **changes: values(
        trainer__schedule=PLATEAU, trainer__duration="6 steps", evaluate={"every": "2 steps"}, **changes
    )


@pytest.mark.slow
def test_a_plateau_reduces_the_rate_and_survives_a_resume(plateau):
    whole = train(plateau(checkpoint={"every": "1 steps", "keep": None}))
    assert rates(whole.folder) == [1e-3] * 4 + [5e-4] * 2
    state = json.loads((whole.folder / "checkpoints" / "step-000005" / "state.json").read_text())
    assert state["plateau"]["ratio"] == 0.5
    again = train(plateau(name="again", resume=str(whole.folder / "checkpoints" / "step-000003")))
    assert rates(again.folder) == [1e-3, 5e-4, 5e-4]
    assert model(again.folder) == model(whole.folder)


@pytest.mark.slow
def test_an_interrupted_evaluation_is_repeated_after_a_resume(plateau, monkeypatch):
    whole = train(plateau())
    evaluate = train_loop.TrainLoop._evaluate_after_step

    def stopped(self):
        if self._state.step == 4:
            patch.setattr(evaluator.Evaluator, "evaluate", interrupt)
        return evaluate(self)

    def interrupt(self, step):
        raise Interrupted("Stopped.", 2)

    with monkeypatch.context() as patch:
        patch.setattr(train_loop.TrainLoop, "_evaluate_after_step", stopped)
        with pytest.raises(Interrupted):
            train(plateau(name="stopped"))
    again = train(plateau(name="stopped"))
    assert rates(again.folder)[-2:] == rates(whole.folder)[-2:] == [5e-4, 5e-4]
    assert model(again.folder) == model(whole.folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"evaluate": {"every": "never"}}, "requires evaluations during the run"),
        ({"data__eval": []}, "requires evaluations during the run"),
        ({"trainer__schedule": {**PLATEAU, "metric": "reward/mean"}}, "starts with eval/held-out/"),
    ],
)
def test_a_plateau_schedule_without_evaluations_is_refused_at_load(values, changes, says):
    with pytest.raises(ConfigError, match=says):
        strop.load(values(**({"trainer__schedule": PLATEAU, "evaluate": {"every": "2 steps"}} | changes)))


def test_a_missing_metric_of_the_schedule_is_named(plateau):
    run = plateau()
    run["trainer"]["schedule"] = {**PLATEAU, "metric": "eval/held-out/pass@9"}
    with pytest.raises(TrainingError, match=r"pass@9, .* eval/held-out/reward"):
        train(run)


def test_a_resume_may_not_change_evaluations_that_the_rate_follows(values):
    for schedule, free in (("constant", True), (PLATEAU, False)):
        changed = [
            load_values(values(trainer__schedule=schedule, evaluate={"every": f"{n} steps"})).run
            for n in (1, 2)
        ]
        assert (resume_differences(*changed) == []) == free


def test_the_weight_decay_increases(values, monkeypatch):
    from strop.training.backends.local import LocalEngine

    seen = []
    monkeypatch.setattr(LocalEngine, "set_weight_decay", lambda self, value: seen.append(value))
    increase = {"style": "linear", "start": 0.0}
    train(values(trainer__weight_decay_increase=increase, trainer__optimizer__weight_decay=0.4))
    assert seen == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])


def test_a_decreasing_weight_decay_is_refused(values):
    with pytest.raises(
        ConfigError, match=r"start \(0\.5\) is above its final value, optimizer\.weight_decay"
    ):
        strop.load(values(trainer__weight_decay_increase={"start": 0.5}))


@pytest.mark.slow
def test_a_schedule_free_run_resumes_bit_for_bit_and_exports_the_average(values):
    pytest.importorskip("pytorch_optimizer")
    optimizer = {"type": "schedule_free_sgd", "lr": 0.05}
    whole = train(values(trainer__optimizer=optimizer, checkpoint={"every": "1 steps", "keep": None}))
    checkpoints = whole.folder / "checkpoints"
    again = train(values(trainer__optimizer=optimizer, name="again", resume=str(checkpoints / "step-000002")))
    assert model(again.folder) == model(whole.folder)
    last = load_file(checkpoints / "step-000004" / "weights.safetensors")
    (file,) = (whole.folder / "model").glob("*.safetensors")
    exported = load_file(file)
    assert all((exported[name] == tensor).all() for name, tensor in last.items())


@pytest.mark.parametrize("name", ["lomo", "adalomo"])
def test_a_fused_optimizer_refuses_clipping_and_gradient_accumulation(values, name):
    with pytest.raises(ConfigError, match="write max_grad_norm: null"):
        strop.load(values(trainer__optimizer={"type": name}))
    one = {"type": name, "lr": 1e-3}
    with pytest.raises(ConfigError, match="microbatch: 16 sequences"):
        strop.load(
            values(trainer__optimizer=one, trainer__max_grad_norm=None, trainer__microbatch="8 sequences")
        )
    with pytest.raises(TrainingError, match=r"must be one micro-batch; this one holds \d+ of"):
        train(values(trainer__optimizer=one, trainer__max_grad_norm=None, trainer__microbatch="60 tokens"))
    assert train(values(name="whole", trainer__optimizer=one, trainer__max_grad_norm=None)).steps == 4
