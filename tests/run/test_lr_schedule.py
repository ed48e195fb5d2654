"""Learning rate, weight decay and schedule-free weights over whole runs."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from strop.config.load.loader import load_values
from strop.config.semantic_diff import resume_differences
from strop.training.engine import PolicyEngine

from .mechanisms import PLATEAU
from .results import WEIGHTS, checkpoint, train


def test_a_resume_may_not_change_evaluations_that_the_rate_follows(values):
    for schedule, free in (("constant", True), (PLATEAU, False)):
        changed = [
            load_values(values(trainer__schedule=schedule, evaluate={"every": f"{n} steps"})).run
            for n in (1, 2)
        ]
        assert (resume_differences(*changed) == []) == free


def test_the_weight_decay_increases(values, monkeypatch):
    seen = []
    monkeypatch.setattr(PolicyEngine, "set_weight_decay", lambda self, value: seen.append(value))
    increase = {"style": "linear", "start": 0.0}
    train(
        values(
            trainer__weight_decay_increase=increase,
            trainer__optimizer__weight_decay=0.4,
            evaluate={},
            data__eval=[],
        )
    )
    assert seen == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])


def test_a_schedule_free_run_exports_the_average(values):
    pytest.importorskip("pytorch_optimizer")
    optimizer = {"type": "schedule_free_sgd", "lr": 0.05}
    folder = train(values(trainer__optimizer=optimizer, trainer__duration="2 steps")).folder
    last = load_file(checkpoint(folder, 2) / "weights.safetensors")
    exported = load_file(folder / "model" / WEIGHTS)
    assert all((exported[name] == tensor).all() for name, tensor in last.items())


@pytest.mark.parametrize("name", ["lomo", "adalomo"])
def test_a_fused_optimizer_trains_on_one_micro_batch_per_update(values, name):
    one = {"type": name, "lr": 1e-3}
    run = values(
        trainer__optimizer=one, trainer__max_grad_norm=None, trainer__duration="1 steps", data__eval=[]
    )
    assert train(run | {"evaluate": {}}).steps == 1
