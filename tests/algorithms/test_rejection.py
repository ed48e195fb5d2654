"""Rejection of tokens and responses by the difference between trainer and sampler."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.rejection import kept_targets
from strop.config.schema.off_policy import RejectionRuleConfig
from tests.algorithms.batches import make_batch

# Two answers of two tokens and one. The trainer's probability over the sampler's: 4, 1/2 and 3.
TARGETS = TargetTokens.of(make_batch([(1, 2), (2, 1)]))
SAMPLER = torch.tensor([0.2, 0.6, 0.1]).log()
TRAINER = torch.tensor([0.8, 0.3, 0.3]).log()
K3 = [3 - math.log(4), -0.5 + math.log(2), 2 - math.log(3)]  # 1.61, 0.19, 0.90


def keep(*rules: dict[str, Any]) -> list[bool]:
    parsed = [RejectionRuleConfig.model_validate(rule) for rule in rules]
    return kept_targets(TRAINER, SAMPLER, TARGETS, parsed).tolist()


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({"high": 3.5}, [False, True, True]),
        ({"low": 0.6, "high": 5}, [True, False, True]),
        # The product of the first answer is 2, its geometric mean sqrt(2).
        ({"over": "sum", "high": 2.5}, [True, True, False]),
        ({"over": "sum", "low": 2.5, "high": 4}, [False, False, True]),
        ({"over": "mean", "high": 1.5}, [True, True, False]),
        ({"over": "mean", "low": 1.5}, [False, False, True]),
        ({"over": "max", "low": 0.6}, [False, False, True]),
        ({"over": "max", "low": 0.4, "high": 3.5}, [False, False, True]),
        ({"estimator": "k2", "high": math.log(3.5) ** 2 / 2}, [False, True, True]),
        ({"estimator": "k3", "high": 1.0}, [False, True, True]),
        ({"estimator": "k3", "over": "sum", "high": K3[0] + K3[1] + 0.01}, [True, True, True]),
        ({"estimator": "k3", "over": "sum", "high": K3[0] + K3[1] - 0.01}, [False, False, True]),
        # The mean of the first answer is 0.9034, the second answer's only value 0.9014.
        ({"estimator": "k3", "over": "mean", "high": 0.902}, [False, False, True]),
        ({"estimator": "k3", "over": "mean", "high": 0.905}, [True, True, True]),
        ({"estimator": "k3", "over": "max", "high": 1.0}, [False, False, True]),
    ],
)
def test_by_hand(rule: dict[str, Any], kept: list[bool]) -> None:
    assert keep(rule) == kept


def test_a_target_must_pass_every_rule() -> None:
    assert keep({"low": 0.6, "high": 5}, {"over": "sum", "high": 2.5}) == [True, False, False]
    assert keep() == [True, True, True]


def oracle(log_ratios: list[list[float]], rule: RejectionRuleConfig) -> list[bool]:
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
def test_equals_the_definition(
    log_ratios: list[list[float]], estimator: str, over: str, bound: float
) -> None:
    bounds = {"low": 1 / (1 + bound), "high": 1 + bound} if estimator == "k1" else {"high": bound}
    rule = RejectionRuleConfig.model_validate({"estimator": estimator, "over": over, **bounds})
    targets = TargetTokens.concatenated(torch.tensor([len(answer) for answer in log_ratios]))
    flat = torch.tensor([x for answer in log_ratios for x in answer], dtype=torch.float64)
    assert kept_targets(flat, torch.zeros_like(flat), targets, [rule]).tolist() == oracle(log_ratios, rule)


def test_equal_policies_reject_nothing() -> None:
    rules = [
        RejectionRuleConfig(over=over, low=0.999, high=1.001) for over in ("token", "sum", "mean", "max")
    ]
    assert kept_targets(SAMPLER, SAMPLER, TARGETS, rules).all()


def test_a_probability_of_zero_rejects_its_response() -> None:
    vanished = torch.tensor([0.0, -math.inf, 0.0])
    rule = RejectionRuleConfig(over="max", low=1e-4)
    assert kept_targets(vanished, torch.zeros(3), TARGETS, [rule]).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "no bound"),
        ({"estimator": "k3", "low": 0.5, "high": 1.0}, "write only high"),
        ({"low": 2.0, "high": 1.0}, "swap them"),
    ],
)
def test_faulty_rules(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RejectionRuleConfig.model_validate(rule)
