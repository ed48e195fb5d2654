"""Losses on labeled responses, and the reference points that they are compared with, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from strop.algorithms.losses.preference_losses import BcoLoss, KtoLoss
from strop.algorithms.reference_point import RunningMean, kl_estimate, log_ratios, mismatched_pairs
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.preference import BcoConfig, KtoConfig
from strop.types import GlobalCounts, MicroBatch, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch
from tests.algorithms.objectives import config_of
from tests.models.models import experience

LOGPROBS = torch.tensor([0.0, -1, 0, 0, -3])


def two_responses() -> MicroBatch:
    """Log-ratios to the reference of 1 and 2 at a desirable response's tokens, and of 1 at an undesirable one's."""
    return replace(
        make_batch([(1, 2), (1, 1)]),
        role=("desirable", "undesirable"),
        weight=torch.ones(2),
        ref_logprobs=torch.tensor([0.0, -2, -2, 0, -4]),
    )


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        # beta 1/2, reference point 2: arguments of 1/2 (3 - 2) and 1/2 (2 - 1).
        ("type: kto", (2 - 2 * sigma(0.5)) / 2),
        ("type: kto, desirable_weight: 3, undesirable_weight: 1", 4 * (1 - sigma(0.5)) / 2),
        ("type: bco", math.log1p(math.exp(-0.5))),
    ],
)
def test_labeled_losses_by_hand(section: str, expected: float) -> None:
    loss = make_loss_fn(config_of(yaml.safe_load(f"{{{section}, beta: 0.5}}")), max_response_tokens=4)
    counts = GlobalCounts(3, 2, desirable=1, undesirable=1, reference_point=2.0)
    found = loss(two_responses(), TokenOutputs(LOGPROBS), counts)
    assert found.loss.item() == pytest.approx(expected)
    metrics = {name: value.item() for name, value in found.metrics.items()}
    assert metrics == pytest.approx(
        {
            "preference_loss": expected,
            "labels/accuracy": 1,
            "labels/reference_point": 2,
            "labels/desirable_reward": 1.5,
            "labels/undesirable_reward": 0.5,
            "labels/margin": 1,
        }
    )


def test_apo_zero_compares_with_zero() -> None:
    loss = KtoLoss(KtoConfig(loss="apo_zero_unpaired", beta=0.5))
    found = loss(two_responses(), TokenOutputs(LOGPROBS), GlobalCounts(3, 2, desirable=1, undesirable=1))
    assert found.loss.item() == pytest.approx((1 - sigma(1.5) + sigma(0.5)) / 2)


def test_an_update_with_one_label_has_no_mean_of_the_other() -> None:
    batch = replace(two_responses(), role=("desirable",) * 2)
    found = KtoLoss(KtoConfig())(batch, TokenOutputs(LOGPROBS), counts_of(batch))
    assert {"labels/margin", "labels/undesirable_reward"}.isdisjoint(found.metrics)


def test_a_missing_reference_and_an_unlabeled_sequence_are_refused() -> None:
    batch = two_responses()
    for faulty, message in (
        (replace(batch, ref_logprobs=None), "needs the reference's log-probs"),
        (replace(batch, role=("desirable", "sft")), "a sequence with the role sft"),
    ):
        with pytest.raises(ValueError, match=message):
            BcoLoss(BcoConfig())(faulty, TokenOutputs(LOGPROBS), GlobalCounts(3, 2))


def test_each_prompt_gets_the_response_of_the_row_before_it() -> None:
    rows = [
        experience([1, 2], [3, 4], id="a"),
        experience([5], [6, 7, 8], id="b"),
        experience([9, 10, 11], [12], id="c"),
    ]
    found = mismatched_pairs(rows, 5)
    assert [each.token_ids.tolist() for each in found] == [[1, 2, 12], [5, 3, 4], [9, 10, 11, 6, 7]]
    assert [each.loss_mask.tolist() for each in found] == [
        [False, False, True],
        [False, True, True],
        [False, False, False, True, True],
    ]
    assert len({each.id for each in found}) == 3


def test_turns_of_others_in_a_response_stay_untrained() -> None:
    talk = experience([1], [2, 3, 4])
    talk = replace(talk, loss_mask=np.array([False, True, False, True]))
    assert mismatched_pairs([experience([7, 8], [9]), talk], 9)[0].loss_mask.tolist() == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_log_ratios_are_sums_over_targets() -> None:
    row = experience([1, 2], [3, 4])
    policy, reference = np.array([9, 9, -1, -2], np.float32), np.array([5, 5, -3, -1], np.float32)
    assert log_ratios([row], [policy], [reference]) == [1.0]


def test_the_estimate_of_the_divergence_is_not_negative() -> None:
    assert kl_estimate([3.0, 1.0, -1.0]) == 1.0
    assert kl_estimate([-3.0, 1.0]) == 0.0


def test_a_running_mean_counts_each_value_once() -> None:
    mean = RunningMean().updated([1.0, 2.0, 3.0]).updated([6.0])
    assert (mean.mean, mean.count) == (3.0, 4)
