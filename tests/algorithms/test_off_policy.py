"""Differences between the policies of sampler and trainer: importance weights, rejection of tokens and responses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import (
    ImportanceWeights,
    TargetTokens,
    compute_importance_weights,
    kept_targets,
)
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, RejectionRuleConfig

# Two answers of two tokens and one. The trainer's probability over the sampler's: 4, 1/2 and 3.
TARGETS = TargetTokens.concatenated(torch.tensor([2, 1]))
SAMPLER = torch.tensor([0.2, 0.6, 0.1]).log()
TRAINER = torch.tensor([0.8, 0.3, 0.3]).log()
K3 = [3 - math.log(4), -0.5 + math.log(2), 2 - math.log(3)]  # 1.61, 0.19, 0.90
ROOT = 2**0.5


def weigh(section: dict[str, Any], trainer: torch.Tensor = TRAINER) -> ImportanceWeights:
    config = ImportanceCorrectionConfig.model_validate(section)
    return compute_importance_weights(trainer, SAMPLER, TARGETS, config)


@pytest.mark.parametrize(
    ("section", "weights", "capped"),
    [
        ({"level": "token", "cap": 9}, [4, 0.5, 3], []),
        ({"level": "token", "cap": 2}, [2, 0.5, 2], [0, 2]),
        # The first answer's weight is 4 * 1/2 = 2.
        ({"level": "sequence", "cap": 9}, [2, 2, 3], []),
        ({"level": "sequence", "cap": 2.5}, [2, 2, 2.5], [2]),
        ({"level": "geometric", "cap": 9}, [ROOT, ROOT, 3], []),
        # IcePop: weights outside the bounds are 0.
        ({"level": "token", "floor": 1.5, "cap": 3.5}, [0, 0, 3], [0, 1]),
        ({"level": "sequence", "floor": 1.5, "cap": 3.5}, [2, 2, 3], []),
        ({"level": "geometric", "floor": 1.5, "cap": 3.5}, [0, 0, 3], [0, 1]),
    ],
    ids=str,
)
def test_importance_weights_by_hand(section: dict[str, Any], weights: list[float], capped: list[int]) -> None:
    found = weigh(section, TRAINER.clone().requires_grad_())
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.capped.nonzero().flatten().tolist() == capped
    assert not found.weights.requires_grad


@pytest.mark.parametrize(
    ("section", "mean"),
    [
        ({"level": "token", "cap": 9}, (4 + 0.5 + 3) / 3),
        ({"level": "sequence", "cap": 9}, (2 + 3) / 2),
        ({"level": "geometric", "cap": 9}, (ROOT + 3) / 2),
        ({"floor": 10, "cap": 20, "normalize": True}, 1),  # all are 0
    ],
    ids=str,
)
def test_the_mean_weight_is_over_tokens_or_over_responses(section: dict[str, Any], mean: float) -> None:
    config = ImportanceCorrectionConfig.model_validate(section)
    assert weigh(section).mean(TARGETS, config) == pytest.approx(mean)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_equal_policies_have_weight_1_and_a_ratio_beyond_float32_the_cap(level: str) -> None:
    assert weigh({"level": level}, SAMPLER).weights.tolist() == [1, 1, 1]
    assert weigh({"level": level}, SAMPLER + torch.tensor([350.0, 200, 200])).weights.tolist() == [2, 2, 2]


def test_sequence_weights_give_the_expectation_under_the_trainer() -> None:
    """Over all answers of two tokens from three: E under the sampler of w f is E under the trainer of f."""
    generator = torch.Generator().manual_seed(1)
    sampler, trainer = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    worth = torch.randn(9, generator=generator, dtype=torch.float64)
    drawn = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    places = torch.arange(2).expand(9, 2)
    found = compute_importance_weights(
        trainer[places, drawn].flatten(),
        sampler[places, drawn].flatten(),
        TargetTokens.concatenated(torch.full((9,), 2)),
        ImportanceCorrectionConfig(level="sequence", cap=1e9),
    )
    under_sampler = (sampler[places, drawn].sum(1).exp() * found.weights.view(9, 2)[:, 0] * worth).sum()
    under_trainer = (trainer[places, drawn].sum(1).exp() * worth).sum()
    torch.testing.assert_close(under_sampler, under_trainer)


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ([], [0, 1, 2]),
        ([{"high": 3.5}], [1, 2]),
        ([{"low": 0.6, "high": 5}], [0, 2]),
        # The product of the first answer is 2, its geometric mean sqrt(2).
        ([{"over": "sum", "high": 2.5}], [0, 1]),
        ([{"over": "sum", "low": 2.5, "high": 4}], [2]),
        ([{"over": "mean", "high": 1.5}], [0, 1]),
        ([{"over": "mean", "low": 1.5}], [2]),
        ([{"over": "max", "low": 0.6}], [2]),
        ([{"over": "max", "low": 0.4, "high": 3.5}], [2]),
        ([{"estimator": "k2", "high": math.log(3.5) ** 2 / 2}], [1, 2]),
        ([{"estimator": "k3", "high": 1.0}], [1, 2]),
        ([{"estimator": "k3", "over": "sum", "high": K3[0] + K3[1] + 0.01}], [0, 1, 2]),
        ([{"estimator": "k3", "over": "sum", "high": K3[0] + K3[1] - 0.01}], [2]),
        # The mean of the first answer is 0.9034, the second answer's only value 0.9014.
        ([{"estimator": "k3", "over": "mean", "high": 0.902}], [2]),
        ([{"estimator": "k3", "over": "mean", "high": 0.905}], [0, 1, 2]),
        ([{"estimator": "k3", "over": "max", "high": 1.0}], [2]),
        # A target must pass every rule.
        ([{"low": 0.6, "high": 5}, {"over": "sum", "high": 2.5}], [0]),
    ],
    ids=str,
)
def test_rejection_by_hand(rules: list[dict[str, Any]], kept: list[int]) -> None:
    parsed = [RejectionRuleConfig.model_validate(rule) for rule in rules]
    assert kept_targets(TRAINER, SAMPLER, TARGETS, parsed).nonzero().flatten().tolist() == kept


def naive_kept(log_ratios: list[list[float]], rule: RejectionRuleConfig) -> list[bool]:
    """The rule for plain lists, one per answer, from the definitions."""
    found = []
    for answer in log_ratios:
        if rule.estimator == "k1":
            reduced = {"token": answer, "sum": [sum(answer)], "mean": [sum(answer) / len(answer)]}
            low, high = rule.low or 0.0, rule.high or math.inf
            passes = [low <= math.exp(value) <= high for value in reduced.get(rule.over, answer)]
        else:
            each = [x * x / 2 if rule.estimator == "k2" else math.exp(x) - 1 - x for x in answer]
            reduced = {"token": each, "sum": [sum(each)], "mean": [sum(each) / len(each)], "max": [max(each)]}
            assert rule.high is not None
            passes = [value <= rule.high for value in reduced[rule.over]]
        found += passes if rule.over == "token" else [all(passes)] * len(answer)
    return found


@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["k1", "k2", "k3"]),
    st.sampled_from(["token", "sum", "mean", "max"]),
    st.floats(0.0123, 2.3),
)
def test_rejection_equals_its_definition(log_ratios, estimator, over, bound):
    bounds = {"low": 1 / (1 + bound), "high": 1 + bound} if estimator == "k1" else {"high": bound}
    rule = RejectionRuleConfig.model_validate({"estimator": estimator, "over": over, **bounds})
    targets = TargetTokens.concatenated(torch.tensor([len(answer) for answer in log_ratios]))
    flat = torch.tensor([x for answer in log_ratios for x in answer], dtype=torch.float64)
    assert kept_targets(flat, torch.zeros_like(flat), targets, [rule]).tolist() == naive_kept(
        log_ratios, rule
    )


def test_equal_policies_reject_nothing_and_a_probability_of_zero_its_response() -> None:
    overs = ("token", "sum", "mean", "max")
    rules = [RejectionRuleConfig.model_validate({"over": over, "low": 1, "high": 1}) for over in overs]
    assert kept_targets(SAMPLER, SAMPLER, TARGETS, rules).all()
    vanished, rule = torch.tensor([0.0, -math.inf, 0.0]), RejectionRuleConfig(over="max", low=1e-4)
    assert kept_targets(vanished, torch.zeros(3), TARGETS, [rule]).tolist() == [False, False, True]
