"""Metrics of rollouts: parts, sources, and what verl counts in a validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strop.run.rollout.rollout_metrics import evaluation_metrics, source_metrics, training_metrics
from strop.runs.metrics import metric_of
from strop.types import Rollout, RolloutGroup
from tests.rewards.builders import group

Scored = tuple[float | None, dict[str, float]]


def scored(source: str, rollouts: Sequence[Scored], predictions: Sequence[str | None] = ()) -> RolloutGroup:
    """A group whose rollouts have these rewards and parts; None for a rollout that no function scores."""
    made = group(["x"] * len(rollouts), source=source, name=f"{source}-{len(rollouts)}")
    preds = predictions or [None] * len(rollouts)
    return replace(made, rollouts=tuple(map(_with, made.rollouts, rollouts, preds)))


def _with(rollout: Rollout, one: Scored, prediction: str | None) -> Rollout:
    reward, parts = one
    error: dict[str, Any] = (
        {"status": "error", "error": "no", "failure_cause": "unscored"} if reward is None else {}
    )
    return replace(rollout, reward=reward, reward_parts=parts, prediction=prediction, **error)


MIXED = [
    scored("math", [(1.0, {"math_only": 1.0}), (0.0, {"math_only": 0.0})]),
    scored("org/code", [(-0.5, {"code_only": -0.5}), (None, {})]),
]


def test_a_part_is_the_mean_over_the_rollouts_that_have_it() -> None:
    """Before, the parts of the first rollout were those of all."""
    found = training_metrics(MIXED)
    assert found["reward/part/math_only"] == 0.5
    assert found["reward/part/code_only"] == -0.5
    assert found["reward/source/math/mean"] == 0.5
    assert found["reward/source/org/code/mean"] == -0.5
    assert found["reward/source/org/code/part/code_only"] == -0.5
    assert "reward/source/math/part/code_only" not in found
    assert found["rollouts/unscored_fraction"] == 0.25 and found["rollouts/error_fraction"] == 0
    held_out = evaluation_metrics("val", MIXED)
    assert held_out["eval/val/part/math_only/mean"] == 0.5
    assert held_out["eval/val/part/code_only/mean"] == -0.5
    assert held_out["eval/val/source/math/reward/mean@2"] == 0.5
    assert held_out["eval/val/source/org/code/code_only/mean@2"] == -0.5
    for name in (*found, *held_out):
        assert metric_of(name).definition


def test_tasks_without_a_source_have_no_metrics_of_one() -> None:
    groups = [scored("", [(1.0, {"a": 1.0})])]
    assert not any(
        "/source/" in name for name in (*training_metrics(groups), *evaluation_metrics("v", groups))
    )


@pytest.mark.parametrize(
    ("rewards", "correct_at", "solved"),
    [
        ([0.7 + 0.2 + 0.1, 0.0], 1.0, 1.0),
        ([0.9, 0.0], 1.0, 0.0),
        ([0.9, 0.0], 0.9, 1.0),
        ([0.3 * 3, 0.0], 0.9, 1.0),
        ([-1.0, -1.0], 1.0, 0.0),
    ],
)
def test_pass_at_k_counts_rewards_from_correct_at_on(
    rewards: list[float], correct_at: float, solved: float
) -> None:
    groups = [scored("", [(reward, {}) for reward in rewards])]
    assert evaluation_metrics("t", groups, correct_at)["eval/t/pass@2"] == solved


def test_a_task_that_no_function_scores_does_not_count_in_pass_at_k() -> None:
    groups = [scored("", [(1.0, {}), (0.0, {})]), scored("", [(None, {}), (None, {})])]
    assert evaluation_metrics("t", groups)["eval/t/pass@2"] == 1.0


def test_equal_rewards_up_to_rounding_have_no_variance() -> None:
    groups = [scored("", [(0.3, {}), (0.1 + 0.2, {})])]
    assert training_metrics(groups)["groups/zero_variance_fraction"] == 1.0


def verl_counts(values: Sequence[float], predictions: Sequence[str], k: int) -> tuple[float, float]:
    """best@k/mean and maj@k/mean of one task, by the definition in verl's `bootstrap_metric` and `calc_maj_val`.

    1,000 draws with replacement after `np.random.seed(42)`; of equally frequent predictions the first one counts.
    """
    draws = np.random.RandomState(42).choice(len(values), size=(1000, k), replace=True)
    best = [max(values[i] for i in draw) for draw in draws]
    majority = []
    for draw in draws:
        votes: dict[str, list[float]] = {}
        for i in draw:
            votes.setdefault(predictions[i], []).append(values[i])
        majority.append(max(votes.values(), key=len)[0])
    return float(np.mean(best)), float(np.mean(majority))


def test_a_source_has_verls_metrics() -> None:
    """`acc` is the core variable where a function returns it; the sum of the parts otherwise."""
    rewards = [1.0, -1.0, -1.0, 1.0]
    preds = ["7", "8", "8", "7 "]
    with_acc = [(reward, {"dapo": reward, "dapo/acc": float(reward > 0)}) for reward in rewards]
    other = [(0.25, {"dapo": 0.25, "dapo/acc": 0.0})] * 4
    found = source_metrics([scored("aime", with_acc, preds), scored("aime", other, ["a", "b", "b", "c"])], 4)
    best, majority = verl_counts([1.0, 0.0, 0.0, 1.0], preds, 4)
    assert found["aime/acc/mean@4"] == 0.25 and found["aime/reward/mean@4"] == 0.125
    assert found["aime/acc/best@4/mean"] == best / 2
    assert found["aime/acc/maj@4/mean"] == majority / 2
    plain = source_metrics([scored("gsm8k", [(value, {}) for value in (0.0, 0.5, 1.0)], ["a", "b", "a"])], 3)
    best, majority = verl_counts([0.0, 0.5, 1.0], ["a", "b", "a"], 3)
    assert plain == {
        "gsm8k/reward/mean@3": 0.5,
        "gsm8k/reward/best@3/mean": pytest.approx(best, abs=1e-12),
        "gsm8k/reward/maj@3/mean": pytest.approx(majority, abs=1e-12),
    }


def test_one_rollout_has_a_mean_only_and_a_missing_prediction_no_majority() -> None:
    assert source_metrics([scored("a", [(1.0, {})], ["x"])], 1) == {"a/reward/mean@1": 1.0}
    pair = scored("a", [(1.0, {}), (1.0, {})], ["x", None])
    assert source_metrics([pair], 2) == {"a/reward/mean@2": 1.0, "a/reward/best@2/mean": 1.0}
