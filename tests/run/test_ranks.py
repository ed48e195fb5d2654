"""A whole run whose trainer has several ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.cases import nightly

from .conftest import Values
from .results import WEIGHTS, rows_of, train
from .test_ppo import ppo

WORKERS = {"type": "local", "workers": 2}


def on(ranks: int) -> dict[str, Any]:
    return {"type": "fsdp2", "ranks": ranks, "device": "cpu"} if ranks > 1 else {"type": "local"}


def close(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Metrics of each step up to rounding; a shorter run also evaluates its last step."""
    assert len(first) == len(second)
    for row, other in zip(map(of_step, first), map(of_step, second), strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=2e-4)


def of_step(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("eval/")}


@pytest.mark.slow
def test_a_run_gives_the_same_metrics_on_one_two_and_three_ranks_and_resumes_on_any(values: Values) -> None:
    algorithm = ppo(schedule="constant")
    alone = train(values(name="alone", algorithm=algorithm)).folder
    parts = {"name": "parts", "algorithm": algorithm, "checkpoint": {"every": "1 steps", "async_save": True}}
    for ranks, steps in ((2, 2), (3, 3), (1, 4)):
        run = values(**parts, trainer__engine=on(ranks), trainer__duration=f"{steps} steps")
        folder = train(run).folder
        close(rows_of(folder), rows_of(alone)[: steps + 1])
    final = [load_file(each / "model" / WEIGHTS) for each in (alone, folder)]
    torch.testing.assert_close(*final, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [WORKERS, on(2), *nightly({"type": "deepspeed", "ranks": 2})], ids=lambda each: each["type"]
)
def test_a_process_reward_model_is_trained_beside_the_policy(values: Values, engine: dict[str, Any]) -> None:
    """A second language model on the same ranks, and the run resumes."""
    algorithm = {"type": "prime", "rollouts_per_task": 4, "process_reward": {"optimizer": {"lr": 1e-3}}}
    alone = train(values(name="alone", algorithm=algorithm, trainer__duration="2 steps")).folder
    parts = {
        "name": "parts",
        "algorithm": algorithm,
        "checkpoint": {"every": "1 steps"},
        "trainer__engine": engine,
    }
    for steps in (1, 2):
        folder = train(values(**parts, trainer__duration=f"{steps} steps")).folder
    close(rows_of(folder), rows_of(alone))
    assert rows_of(folder)[-1]["process_reward/grad_norm"] > 0
