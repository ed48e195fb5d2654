"""Properties of every loss, and of the advantages of every algorithm, that the registry has."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.algorithms.registry import compute_advantages, make_loss_fn
from strop.config.schema.algorithm import CriticFreeConfig, GrpoConfig
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, PolicyLossConfig
from strop.types import MicroBatch
from tests.algorithms.batches import counts_of, make_batch, make_rollouts, split
from tests.algorithms.objectives import (
    EVERY_LOSS,
    LIMIT,
    REGISTERED,
    LossCase,
    config_of,
    distillation,
    map_outputs,
    members,
    model_outputs,
    policy_loss,
)

SHAPES = [(3, 4), (2, 1), (5, 0), (1, 6)]
EXTREMES = (-math.inf, -200.0, -89.0, -20.5, 20.5, 89.0, 200.0, math.inf)


def batch_for(case: LossCase, **settings: Any) -> MicroBatch:
    return replace(make_batch(SHAPES, **settings), role=case.roles * 2)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("on_policy", [True, False])
def test_two_micro_batches_give_the_loss_the_gradient_and_the_metrics_of_one(name, on_policy):
    case = EVERY_LOSS[name]
    batch = batch_for(case, on_policy=on_policy)
    parameters, outputs = model_outputs(batch)
    whole = case.on(batch, outputs)
    (gradient,) = torch.autograd.grad(whole.loss, parameters, retain_graph=True)
    for cut in (2,) if "chosen" in case.roles else (1, 2, 3):
        edge = int(batch.cu_seqlens[cut])
        sides = (slice(None, edge), slice(edge, None))
        halves = [
            case.loss(part, map_outputs(outputs, lambda each, side=side: each[side]), counts_of(batch))
            for part, side in zip(split(batch, cut), sides, strict=True)
        ]
        total = halves[0].loss + halves[1].loss
        torch.testing.assert_close(total, whole.loss)
        (found,) = torch.autograd.grad(total, parameters, retain_graph=True)
        torch.testing.assert_close(found, gradient)
        assert halves[0].metrics.keys() == whole.metrics.keys()
        for metric, value in whole.metrics.items():
            torch.testing.assert_close(sum(half.metrics[metric] for half in halves), value, msg=metric)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("on_policy", [True, False])
def test_nan_outside_targets_changes_nothing(name: str, on_policy: bool) -> None:
    case = EVERY_LOSS[name]
    batch = batch_for(case, on_policy=on_policy)

    def spoilt(values: torch.Tensor) -> torch.Tensor:
        return torch.where(batch.loss_mask, values, math.nan)

    inputs = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "weight"}
    numbers = {key: each for key, each in inputs.items() if getattr(each, "dtype", None) == torch.float32}
    dirty = replace(batch, **{key: spoilt(each) for key, each in numbers.items()})
    results: list[Any] = []
    for one in (batch, dirty):
        parameters, outputs = model_outputs(batch)
        result = case.on(one, map_outputs(outputs, spoilt) if one is dirty else outputs)
        (gradient,) = torch.autograd.grad(result.loss, parameters)
        results.append((result.loss, gradient, dict(result.metrics)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert results[0][1][:, ~batch.loss_mask].count_nonzero() == 0


def short_batch(case: LossCase) -> MicroBatch:
    """Two sequences with eight targets in all."""
    return replace(make_batch([(1, 4), (1, 4)]), role=case.roles)


def on_logprobs(case: LossCase, batch: MicroBatch, logprobs: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """The loss, and its gradient with respect to the log-probs, or to scores of the same values."""
    leaf = logprobs.clone().requires_grad_()
    outputs = replace(map_outputs(model_outputs(batch)[1], torch.Tensor.detach), logprobs=leaf, scores=leaf)
    result = case.on(batch, outputs)
    (gradient,) = torch.autograd.grad(result.loss, leaf, allow_unused=True, materialize_grads=True)
    return result, gradient


@pytest.mark.parametrize("name", REGISTERED)
def test_every_loss_is_finite_for_extreme_log_ratios(name: str) -> None:
    case = REGISTERED[name]
    batch = short_batch(case)
    targets = batch.loss_mask.nonzero().squeeze(1)
    logprobs = torch.full((len(batch.token_ids),), -1.0)
    for sign in (1.0, -1.0):
        # Both signs of the advantage meet every log-ratio, which comes from the other model's log-prob.
        other = torch.full_like(logprobs, -1.0)
        other[targets] = -1.0 - torch.tensor(EXTREMES)
        advantages = torch.zeros_like(logprobs).index_fill_(0, targets, sign)
        extreme = replace(
            batch, old_logprobs=other, ref_logprobs=other, sampler_logprobs=logprobs, advantages=advantages
        )
        result, gradient = on_logprobs(case, extreme, logprobs)
        assert result.loss.isfinite() and gradient.isfinite().all()
        means = {name: each for name, each in result.metrics.items() if not name.startswith("logprob_diff/")}
        assert all(value.isfinite() for value in means.values()), means


@pytest.mark.parametrize("name", REGISTERED)
def test_the_bounds_of_log_ratios_leave_ordinary_values_their_bits(name, monkeypatch):
    """Without the bounds, losses, gradients and metrics of log-ratios up to 8 are the same bit for bit."""
    case = REGISTERED[name]
    batch = short_batch(case)
    logprobs = torch.linspace(-8, 7, len(batch.token_ids))
    bounded, gradient = on_logprobs(case, batch, logprobs)
    for module in ("kl", "losses.aggregation", "losses.policy_losses"):
        monkeypatch.setattr(f"strop.algorithms.{module}.bound_exponent", lambda x: x)
    for module in ("kl", "losses.aggregation", "losses.preference_losses"):
        monkeypatch.setattr(f"strop.algorithms.{module}.bound_log_ratio", lambda x: x)
    plain, plain_gradient = on_logprobs(case, batch, logprobs)
    torch.testing.assert_close(bounded.metrics, plain.metrics, rtol=0, atol=0)
    assert torch.equal(bounded.loss, plain.loss) and torch.equal(gradient, plain_gradient)


SCALED = [
    policy_loss("kl_cov", kl_coef=0.0),
    policy_loss("rec", regularizer="k2", regularizer_coef=0.1),
    policy_loss("rec", regularizer="forward_kl", regularizer_coef=0.1),
    policy_loss("rec", regularizer="k2", weight="advantage"),
]


@pytest.mark.parametrize("loss", [*(kind() for kind in members(PolicyLossConfig)), *SCALED], ids=str)
@pytest.mark.parametrize("on_policy", [True, False])
def test_a_loss_vanishes_at_zero_advantages_where_its_definition_says_so(loss, on_policy):
    batch = make_batch(SHAPES, on_policy=on_policy)
    batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    config = GrpoConfig(policy_loss=loss, importance_correction=ImportanceCorrectionConfig())
    parameters, outputs = model_outputs(batch)
    result = make_loss_fn(config, max_response_tokens=LIMIT)(batch, outputs, counts_of(batch))
    (gradient,) = torch.autograd.grad(result.loss, parameters)
    vanishes = not gradient.any() and result.loss.item() == 0
    # On policy, a penalty on the ratio is at its minimum.
    assert config.vanishes_at_zero_advantage == vanishes or (on_policy and vanishes)


@pytest.mark.parametrize(
    ("section", "whole", "ratio"),
    [
        ({"type": "grpo", "kl_loss": {"coef": 0.1}}, False, True),
        ({"type": "grpo", "kl_loss": {"coef": 0.1, "weight_by_ratio": True}}, False, False),
        ({"type": "grpo", "entropy_coef": 0.1}, False, True),
        ({"type": "grpo", "distillation": distillation("reverse_kl")}, False, True),
        ({"type": "custom", "loss": "file.py:loss"}, False, False),
        ({"type": "custom", "advantages": "file.py:advantages"}, True, True),
    ],
    ids=str,
)
def test_other_terms_do_not_vanish_at_zero_advantages(section, whole, ratio):
    config = config_of(section)
    assert (config.vanishes_at_zero_advantage, config.ratio_vanishes_at_zero_advantage) == (whole, ratio)


ESTIMATORS: dict[str, Any] = {
    str(section): config_of(section)
    for section in (
        *(
            {"type": each.model_fields["type"].default}
            for each in members(CriticFreeConfig)
            if each.model_fields["type"].default not in ("custom", "distillation")
        ),
        {"type": "grpo", "divide_by_std": False},
        {"type": "grpo", "std_over": "step"},
        {"type": "grpo", "divide_by_sequences": True},
        {"type": "grpo_passk", "k": 3},
        {"type": "grpo_passk", "k": 2, "divide_by_std": False},
        {"type": "opmd", "baseline": {"type": "log_avg_exp", "tau": 0.7}},
        {"type": "gigpo", "turn_weight": 0.5, "gamma": 0.5, "states_over": "step"},
        {"type": "self_play", "baseline_over": "step"},
        {"type": "gpg", "scale": "nonzero"},
        {"type": "gpg", "scale": "none"},
    )
}


def advantages_of(config: CriticFreeConfig, scored: RolloutBatch) -> torch.Tensor:
    return compute_advantages(config, scored, max_response_tokens=LIMIT).advantages


OF_TARGETS = ("kl_penalties", "gradient_norms", "process_rewards", "intermediate_rewards", "turns")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_order_and_group_numbers_of_rollouts_do_not_matter(name: str) -> None:
    for seed in range(40):
        scored = make_rollouts(seed)
        order = torch.randperm(len(scored.rewards), generator=torch.Generator().manual_seed(seed))
        spans = torch.arange(scored.num_targets).split(scored.tokens.tolist())
        targets = torch.cat([spans[rollout] for rollout in order])
        shuffled = {}
        for field in fields(scored):
            value = getattr(scored, field.name)
            if value is not None and field.name != "turn_states":
                shuffled[field.name] = value[targets if field.name in OF_TARGETS else order]
        shuffled["group"] = 1000 - 7 * shuffled["group"]
        found = advantages_of(ESTIMATORS[name], replace(scored, **shuffled))
        expected = advantages_of(ESTIMATORS[name], scored)
        torch.testing.assert_close(found, expected[targets], rtol=1e-4, atol=1e-5)


WITHOUT_BASELINE = ("reinforce", "raft", "asymre")
ROUNDED = ("optimal_token_baseline", "prime")


@pytest.mark.parametrize(
    "name", [name for name, each in ESTIMATORS.items() if each.type not in WITHOUT_BASELINE + ROUNDED]
)
def test_equal_rewards_give_exactly_zero(name: str) -> None:
    for seed in range(40):
        draw = random.Random(seed)
        reward, count = draw.uniform(-1, 1) * 10 ** draw.randint(-6, 6), draw.randint(1, 64)
        lengths = torch.tensor([draw.randint(1, 20) for _ in range(count)])
        scored = RolloutBatch(
            rewards=torch.full((count,), reward),
            group=torch.arange(count) % 3,
            tokens=lengths,
            baselines=torch.full((count,), reward),
            reward_parts=torch.full((count, 2), reward),
            turns=torch.arange(count).repeat_interleave(lengths),
            turn_states=torch.arange(count) % 2,
            sequences=torch.ones(count, dtype=torch.int64),
        )
        assert advantages_of(ESTIMATORS[name], scored).count_nonzero() == 0
