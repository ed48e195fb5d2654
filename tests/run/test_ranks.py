"""Runs whose trainer has several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.run.test_ppo import folder_of, learned, ppo, train

Values = Callable[..., dict[str, Any]]


def on(ranks: int) -> dict[str, Any]:
    return {"type": "fsdp2", "ranks": ranks, "device": "cpu"} if ranks > 1 else {"type": "local"}


def close(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Metrics of each step up to rounding; a shorter run also evaluates its last step."""
    assert len(first) == len(second)
    for row, other in zip(map(step_of, first), map(step_of, second), strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=2e-4)


def step_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in learned(row).items() if not name.startswith("eval/")}


@pytest.mark.slow
def test_a_run_gives_the_same_metrics_on_one_two_and_three_ranks_and_resumes_on_any(values: Values) -> None:
    algorithm = ppo(schedule="constant")
    alone = train(values(name="alone", algorithm=algorithm))
    short = {"name": "two", "algorithm": algorithm, "checkpoint": {"every": "1 steps", "async_save": True}}
    two = train(values(**short, trainer__engine=on(2), trainer__duration="2 steps"))
    close(two, alone[:3])
    three = train(values(**short, trainer__engine=on(3), trainer__duration="3 steps"))
    close(three, alone[:4])
    one = values(name="two", algorithm=algorithm, trainer__engine=on(1))
    close(train(one), alone)
    final = [load_file(folder_of(v) / "model" / "model.safetensors") for v in (values(name="alone"), one)]
    torch.testing.assert_close(final[0], final[1], atol=1e-4, rtol=1e-3)
