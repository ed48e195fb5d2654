"""Losses and held-out measures of a reward model, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from strop.algorithms.losses.reward_modeling import (
    calibration_error,
    held_out_pairs,
    held_out_scores,
    held_out_steps,
)
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.preference import RewardModelingConfig
from strop.types import MicroBatch, SegmentRole, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch

SCORES = torch.tensor([9.0, 9, 2, 9, 1])
"""2 for the first sequence and 1 for the second; other tokens have scores that nothing reads."""


def two_responses(first: SegmentRole, second: SegmentRole) -> MicroBatch:
    """Sequences with two targets and one, of which the first learns 0.25, a score or a margin, and the second 0."""
    return replace(
        make_batch([(1, 2), (1, 1)]),
        role=(first, second),
        weight=torch.ones(2),
        returns=torch.tensor([0.0, 0.25, 0.25, 0, 0]),
    )


@pytest.mark.parametrize(
    ("section", "roles", "expected"),
    [
        # -log sigmoid(2 - 1 - 1/4)
        ("", ("chosen", "rejected"), math.log1p(math.exp(-0.75))),
        ("centering_coef: 0.01", ("chosen", "rejected"), math.log1p(math.exp(-0.75)) + 0.01 * 3**2),
        ("loss: squared_error", ("scored", "scored"), (1.75**2 + 1**2) / 2),
    ],
)
def test_losses_by_hand(section: str, roles: tuple[SegmentRole, SegmentRole], expected: float) -> None:
    config = RewardModelingConfig.model_validate(yaml.safe_load(f"{{type: reward_model, {section}}}"))
    batch = two_responses(*roles)
    outputs = TokenOutputs(torch.zeros(5), scores=SCORES)
    found = make_loss_fn(config, max_response_tokens=4)(batch, outputs, counts_of(batch))
    assert float(found.loss) == pytest.approx(expected)
    if roles[0] == "chosen":
        assert found.metrics["pairs/margin"] == 1 and found.metrics["pairs/accuracy"] == 1
    else:
        assert found.metrics["reward_model/score"] == 1.5
        assert found.metrics["reward_model/score_error"] == (1.75 + 1) / 2


def test_the_cross_entropy_of_steps_by_hand() -> None:
    """The first sequence has a step of score 9, which is correct, and a wrong one of 2; the second one of 1."""
    config = RewardModelingConfig(loss="cross_entropy")
    batch = replace(
        make_batch([(1, 2), (1, 1)]),
        role=("stepwise", "stepwise"),
        weight=torch.ones(2),
        returns=torch.tensor([0.0, 1, 0, 0, 1]),
    )
    outputs = TokenOutputs(torch.zeros(5), scores=SCORES)
    found = make_loss_fn(config, max_response_tokens=4)(batch, outputs, counts_of(batch))
    expected = (math.log1p(math.exp(-9)) + math.log1p(math.exp(2)) + math.log1p(math.exp(-1))) / 3
    assert float(found.loss) == pytest.approx(expected)
    assert float(found.metrics["reward_model/step_accuracy"]) == pytest.approx(2 / 3)
    held_out = held_out_steps(np.array([9.0, 2, 1], np.float32), np.array([1.0, 0, 1], np.float32))
    assert held_out["loss"] == pytest.approx(expected)
    assert held_out["reward_model/step_accuracy"] == pytest.approx(2 / 3)


def test_a_split_pair_is_refused() -> None:
    batch = replace(two_responses("rejected", "chosen"))
    loss = make_loss_fn(RewardModelingConfig(), max_response_tokens=4)
    with pytest.raises(ValueError, match="directly before its rejected one"):
        loss(batch, TokenOutputs(torch.zeros(5), scores=SCORES), counts_of(batch))


def test_held_out_pairs_by_hand() -> None:
    chosen, rejected = np.array([2.0, 0], np.float32), np.array([1.0, 1], np.float32)
    found = held_out_pairs(
        RewardModelingConfig(centering_coef=0.5), chosen, rejected, np.zeros(2, np.float32)
    )
    sigma = 1 / (1 + math.exp(-1))
    assert found == pytest.approx(
        {
            "loss": (-math.log(sigma) - math.log(1 - sigma)) / 2 + 0.5 * (9 + 1) / 2,
            "pairs/margin": 0.0,
            "pairs/margin_std": 1.0,
            "pairs/accuracy": 0.5,
            "pairs/calibration_error": sigma - 0.5,  # both in one bin, of which one is right
        }
    )


def test_held_out_scores_by_hand() -> None:
    found = held_out_scores(np.array([0.0, 1], np.float32), np.array([0.0, 3], np.float32))
    assert found == pytest.approx(
        {"loss": 2.0, "reward_model/score_error": 1.0, "reward_model/score_correlation": 1.0}
    )
    constant = held_out_scores(np.zeros(2, np.float32), np.array([0.0, 3], np.float32))
    assert "reward_model/score_correlation" not in constant


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([1.0, 1.0], 0.0),  # sure, and right
        ([0.0, 0.0], 1.0),  # sure, and wrong
        ([0.75] * 3 + [0.25], 0.0),  # three of four are right
        ([0.5, 1.0], 0.25),  # a tie is no correct prediction
    ],
)
def test_the_calibration_error_by_hand(probabilities: list[float], expected: float) -> None:
    assert calibration_error(torch.tensor(probabilities, dtype=torch.float64)) == pytest.approx(expected)
