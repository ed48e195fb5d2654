"""Extreme log-ratios: every loss and its gradient stay finite, and ordinary values keep their bits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter

from strop.algorithms.kl import estimate_kl
from strop.algorithms.log_ratios import bound_exponent, bound_log_ratio
from strop.algorithms.losses.policy_losses import log_ratio
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.algorithm import AlgorithmConfig, CustomConfig, DistillationOnlyConfig
from strop.config.schema.policy_gradient import SampledKl
from strop.config.schema.policy_loss import PolicyLossConfig
from strop.types import GlobalCounts, LossOutput, MicroBatch, SegmentRole, TokenOutputs
from tests.algorithms.batches import make_batch

EXTREMES = (-math.inf, -200.0, -89.0, -20.5, 20.5, 89.0, 200.0, math.inf)
NEED_MORE = (CustomConfig, DistillationOnlyConfig)
"""Algorithms that name functions or models; the second has the losses of the others, and a divergence."""
ROLES: dict[str, tuple[SegmentRole, SegmentRole]] = {
    "dpo": ("chosen", "rejected"),
    "mix": ("rl", "sft"),
    "sft": ("sft", "sft"),
}


def _types(union: Any) -> list[str]:
    members = get_args(get_args(union)[0]) if hasattr(union, "__metadata__") else get_args(union)
    return [member.model_fields["type"].default for member in members if member not in NEED_MORE]


def _sections() -> list[dict[str, Any]]:
    """Every algorithm; then GRPO with every policy loss, KL estimator and importance correction."""
    sections: list[dict[str, Any]] = [{"type": name} for name in _types(AlgorithmConfig)]
    sections += [{"type": "grpo", "policy_loss": {"type": name}} for name in _types(PolicyLossConfig)]
    sections.append({"type": "grpo", "policy_loss": {"type": "clip", "dual_clip": None}})
    sections += [
        {"type": "grpo", "kl_loss": {"estimator": name, "coef": 0.1}} for name in get_args(SampledKl)
    ]
    sections += [{"type": "grpo", "importance_correction": {"level": name}} for name in ("token", "sequence")]
    return sections


def _run(
    section: dict[str, Any], batch: MicroBatch, logprobs: torch.Tensor
) -> tuple[LossOutput, torch.Tensor]:
    config: Any = TypeAdapter(AlgorithmConfig).validate_python(section)
    leaf = logprobs.clone().requires_grad_()
    loss = make_loss_fn(config, max_response_tokens=8)
    tokens = int(batch.loss_mask.sum())
    counts = GlobalCounts(tokens=tokens, sequences=2, pairs=1, expert_tokens=tokens)
    result = loss(batch, TokenOutputs(leaf, entropy=torch.ones_like(leaf)), counts)
    (gradient,) = torch.autograd.grad(result.loss, leaf)
    return result, gradient


def _batch(section: dict[str, Any]) -> MicroBatch:
    return replace(make_batch([(1, 4), (1, 4)]), role=ROLES.get(section["type"], ("rl", "rl")))


@pytest.mark.parametrize("section", _sections(), ids=str)
def test_every_loss_is_finite_for_extreme_log_ratios(section: dict[str, Any]) -> None:
    batch = _batch(section)
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
        result, gradient = _run(section, extreme, logprobs)
        assert result.loss.isfinite(), (section, result.loss)
        assert gradient.isfinite().all(), (section, gradient)
        means = {n: v for n, v in result.metrics.items() if not n.startswith("logprob_diff/")}
        assert all(value.isfinite() for value in means.values()), (section, result.metrics)


@pytest.mark.parametrize("section", _sections(), ids=str)
def test_ordinary_values_keep_their_bits(section: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the bounds, losses, gradients and metrics of log-ratios up to 8 are the same bit for bit."""
    batch = _batch(section)
    logprobs = torch.linspace(-8, 7, len(batch.token_ids))
    bounded, gradient = _run(section, batch, logprobs)
    for module in ("kl", "losses.importance", "losses.policy_losses", "losses.policy_objective"):
        monkeypatch.setattr(f"strop.algorithms.{module}.bound_exponent", lambda x: x, raising=False)
    for module in ("kl", "losses.importance", "losses.preference_losses"):
        monkeypatch.setattr(f"strop.algorithms.{module}.bound_log_ratio", lambda x: x)
    plain, plain_gradient = _run(section, batch, logprobs)
    assert torch.equal(bounded.loss, plain.loss) and torch.equal(gradient, plain_gradient)
    assert all(torch.equal(bounded.metrics[name], plain.metrics[name]) for name in plain.metrics)


def test_bounds_by_hand() -> None:
    values = torch.tensor([-math.inf, -20.0, 0.1, 20.0, 21.0, math.inf])
    assert bound_exponent(values).tolist() == [-20, -20, torch.tensor(0.1).item(), 20, 20, 20]
    assert bound_log_ratio(values)[[0, 4, 5]].tolist() == [-1e4, 21, 1e4]
    assert log_ratio(torch.tensor([0.0]), torch.tensor([-300.0])).item() == 20


def test_k3_by_hand() -> None:
    """Beyond +-20 the value stays, and is not bounded to 10: at log r = 5 it is e^5 - 6."""
    reference = torch.tensor([5.0, 300.0, -300.0])
    found = estimate_kl(torch.zeros(3), reference, "k3").tolist()
    assert found == pytest.approx([math.exp(5) - 6, math.exp(20) - 21, math.exp(-20) + 19], rel=1e-6)
