"""Comparison of rewards up to rounding."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from strop.algorithms.advantages import preferred, raft
from strop.algorithms.algorithm import has_reward_variance, resampling_weights
from strop.config.schema.algorithm import RewardResamplingConfig
from strop.reward_comparison import are_equal, exceeds, reaches
from strop.run.state.tracked_metric import BestCheckpoint, BestCheckpointRule, EarlyStopRule, EvaluationRecord

JUST_BELOW = 0.7 + 0.2 + 0.1
NOISY = [0.3, 0.1 + 0.2]


def test_the_examples_have_rounding_errors() -> None:
    assert JUST_BELOW < 1 and NOISY[0] != NOISY[1]


def test_all_weights_in_tenths_that_add_up_to_1_reach_1() -> None:
    for weights in itertools.product([i / 10 for i in range(1, 9)], repeat=3):
        if math.isclose(sum(weights), 1):
            total = 0.0
            for weight in weights:
                total += weight * 1.0
            assert reaches(total, 1) and not exceeds(total, 1)
            assert are_equal([total, 1.0])


@pytest.mark.parametrize(
    ("value", "threshold", "is_reached", "is_exceeded"),
    [
        (1.0, 1.0, True, False),
        (JUST_BELOW, 1.0, True, False),
        (1.0000000000000002, 1.0, True, False),
        (0.9999, 1.0, False, False),
        (1.0001, 1.0, True, True),
        (float(np.float32(0.7)), 0.7, True, False),
        (0.1 + 0.2 - 0.3, 0.0, True, False),
        (0.001, 0.0, True, True),
        (-1.0, -1.0, True, False),
        (1e6 + 0.5, 1e6, True, False),
        (math.nan, 0.0, False, False),
    ],
)
def test_thresholds(value: float, threshold: float, is_reached: bool, is_exceeded: bool) -> None:
    assert (bool(reaches(value, threshold)), bool(exceeds(value, threshold))) == (is_reached, is_exceeded)
    for array in (np.array([value]), torch.tensor([value], dtype=torch.float64)):
        assert bool(reaches(array, threshold)[0]) == is_reached
        assert bool(exceeds(array, threshold)[0]) == is_exceeded


@pytest.mark.parametrize(
    ("rewards", "equal"),
    [
        ([], True),
        ([0.5], True),
        (NOISY, True),
        ([0.0, 0.0], True),
        ([0.0, 1e-9], False),
        ([1e-8, 2e-8], False),
        ([0.5, 0.501], False),
        ([float(np.float32(0.1) + np.float32(0.2)), 0.3], True),
    ],
)
def test_equality_is_relative_to_the_rewards(rewards: list[float], equal: bool) -> None:
    assert are_equal(rewards) == equal
    assert has_reward_variance(rewards) == (not equal)


def test_algorithms_compare_rewards_up_to_rounding() -> None:
    group = torch.tensor([0, 0])
    noisy = torch.tensor(NOISY, dtype=torch.float64)
    assert preferred(noisy, group, beta=1.0).tolist() == [0, 0]
    assert raft(torch.tensor([JUST_BELOW, 0.5], dtype=torch.float64), min_reward=1.0).tolist() == [1, 0]
    section = RewardResamplingConfig(method="max_random")
    weights = resampling_weights(torch.tensor([*NOISY, 0.0], dtype=torch.float64), section)
    assert weights[0] == weights[1] > weights[2]


def test_a_rounding_error_is_no_better_checkpoint() -> None:
    rule, first = (
        BestCheckpointRule("eval/x/reward", "max"),
        BestCheckpoint(1, NOISY[0], "eval/x/reward", "max"),
    )
    assert rule.update(first, 2, {"eval/x/reward": NOISY[1]}) == first
    assert rule.update(first, 2, {"eval/x/reward": 0.31}) != first
    lowest = BestCheckpointRule("eval/x/loss", "min")
    best = BestCheckpoint(1, NOISY[1], "eval/x/loss", "min")
    assert lowest.update(best, 2, {"eval/x/loss": NOISY[0]}) == best


def test_a_run_ends_at_a_value_that_rounding_misses() -> None:
    rule = EarlyStopRule("eval/x/reward", "max", 1.0, 2)
    assert rule.reason(EvaluationRecord(JUST_BELOW)) is not None
    assert rule.update(EvaluationRecord(NOISY[0]), {"eval/x/reward": NOISY[1]}).without_improvement == 1
