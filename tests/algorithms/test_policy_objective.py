"""The policy objective with every loss: against a naive loop, and invariants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.rejection import kept_targets
from strop.algorithms.losses.sft import SftLoss
from strop.algorithms.registry import compute_advantages, make_loss_fn
from strop.algorithms.requirements import vanishes_at_zero_advantage
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import CustomConfig, ReinforcePlusPlusBaselineConfig
from strop.config.schema.group_baselines import (
    GpgConfig,
    GrpoConfig,
    GrpoPasskConfig,
    OpmdConfig,
    OpoConfig,
    RlooConfig,
)
from strop.config.schema.off_policy import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.config.schema.policy_gradient import Aggregation, KlLossConfig, KlLossEstimator
from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClipCovLossConfig,
    ClippedLossConfig,
    DppoKlLossConfig,
    DppoTvLossConfig,
    DroLossConfig,
    GmpoLossConfig,
    GpgLossConfig,
    GspoLossConfig,
    ImportanceSamplingLossConfig,
    KlCovLossConfig,
    OpmdLossConfig,
    PolicyLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch, split
from tests.algorithms.naive_losses import naive_losses

SHAPES = [(3, 4), (2, 1), (5, 0), (1, 6)]
LIMIT = 8
FULL = GrpoConfig(
    kl_loss=KlLossConfig(estimator="k3", coef=0.1),
    entropy_coef=0.05,
    policy_loss=ClippedLossConfig(clip_high=0.3),
)


LOSSES = [
    FULL.policy_loss,
    GspoLossConfig(clip_low=0.05, clip_high=0.05),
    CispoLossConfig(clip_low=0.2, clip_high=0.3),
    GpgLossConfig(),
    OpmdLossConfig(tau=0.5),
    ToprLossConfig(threshold=0.2),
    SppoLossConfig(clip=0.3),
    RecLossConfig(clipping="ring", weight="ratio", regularizer="k2", regularizer_coef=0.1),
    RecLossConfig(clipping="one_side", weight="advantage", temperature=2.0),
    SapoLossConfig(tau_pos=0.5, tau_neg=2.0),
    SapoLossConfig(gate="weight"),
    GmpoLossConfig(clip_low=0.1, clip_high=0.2),
    DppoTvLossConfig(divergence_low=0.05, divergence_high=0.1),
    DppoKlLossConfig(divergence_low=0.01, divergence_high=0.02, ratio_cap=1.1),
    ImportanceSamplingLossConfig(),
    DroLossConfig(beta=0.5),
    ClipCovLossConfig(clip_low=0.1, clip_high=0.2),
    KlCovLossConfig(kl_coef=0.5),
]
CORRECTIONS = [
    None,
    ImportanceCorrectionConfig(level="token", cap=1.1),
    ImportanceCorrectionConfig(level="sequence"),
    ImportanceCorrectionConfig(level="geometric", floor=0.9, cap=1.3),
]
REJECTIONS = [
    (RejectionRuleConfig(low=0.8, high=1.2),),
    (RejectionRuleConfig(over="mean", low=0.9, high=1.1), RejectionRuleConfig(estimator="k3", high=0.05)),
]


def with_parts(**parts: Any) -> GrpoConfig:
    return FULL.model_copy(update=parts)


def model_outputs(batch: MicroBatch, seed: int = 5) -> tuple[torch.Tensor, TokenOutputs]:
    """Parameters, and log-probs, entropies and divergences that depend on them."""
    tokens = len(batch.loss_mask)
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(3, tokens, generator=generator) * 0.3
    parameters.requires_grad_()
    return parameters, TokenOutputs(parameters[0] - 1, parameters[1].square() + 1, parameters[2].square())


def map_outputs(outputs: TokenOutputs, change: Callable[[torch.Tensor], torch.Tensor]) -> TokenOutputs:
    """The same change to each."""
    assert outputs.entropy is not None and outputs.divergence is not None
    return TokenOutputs(change(outputs.logprobs), change(outputs.entropy), change(outputs.divergence))


def run(config: GrpoConfig, batch: MicroBatch, counts: GlobalCounts, outputs: TokenOutputs) -> LossOutput:
    return make_loss_fn(config, max_response_tokens=LIMIT)(batch, outputs, counts)


def naive_policy_losses(
    config: GrpoConfig, logprobs: list[float], batch: MicroBatch, targets: list[int]
) -> list[float]:
    """One answer's policy losses, in plain Python; corrected for the sampler where that is asked."""
    old = logprobs if batch.old_logprobs is None else batch.old_logprobs.tolist()
    sampler = batch.sampler_logprobs.tolist()
    whole = math.exp(sum(old[t] - sampler[t] for t in targets))
    advantages = batch.advantages.tolist()
    assert batch.selected is not None
    losses = naive_losses(
        config.policy_loss,
        *([values[t] for t in targets] for values in (logprobs, old, advantages, batch.selected.tolist())),
    )
    if config.importance_correction is None:
        return losses
    level, cap = config.importance_correction.level, config.importance_correction.cap
    floor = config.importance_correction.floor
    found = []
    for t, loss in zip(targets, losses, strict=True):
        token = math.exp(old[t] - sampler[t])
        weight = {"token": token, "sequence": whole, "geometric": whole ** (1 / len(targets))}[level]
        found.append(loss * (min(weight, cap) if floor is None else weight * (floor <= weight <= cap)))
    return found


def naive(
    config: GrpoConfig, batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts
) -> dict[str, float]:
    """The definitions in plain Python, token by token."""
    assert batch.ref_logprobs is not None and config.kl_loss is not None
    assert outputs.entropy is not None and outputs.divergence is not None
    logprobs, entropy, full = (x.tolist() for x in (outputs.logprobs, outputs.entropy, outputs.divergence))
    sums = dict.fromkeys(
        ("policy_loss", "kl_loss", "entropy_bonus", "kl/ref", "approx_kl", "ratio/mean"), 0.0
    )
    for s in range(batch.num_segments):
        start, end = int(batch.cu_seqlens[s]), int(batch.cu_seqlens[s + 1])
        targets = [t for t in range(start, end) if batch.loss_mask[t]]
        losses = naive_policy_losses(config, logprobs, batch, targets)
        for t, loss in zip(targets, losses, strict=True):
            divisor = {
                "token-mean": counts.tokens,
                "seq-mean-token-sum": counts.sequences,
                "seq-mean-token-mean": counts.sequences * len(targets),
                "seq-mean-token-sum-norm": counts.sequences * LIMIT,
            }[config.aggregation]
            weight = float(batch.weight[s]) / divisor
            difference = float(batch.ref_logprobs[t]) - logprobs[t]
            k3 = math.exp(difference) - 1 - difference
            kl = {"k1": -difference, "abs": abs(difference), "k2": difference**2 / 2, "k3": k3}
            kl |= {f"{name}+": kl[name] for name in ("k1", "abs", "k3")}
            kl["full"] = full[t]
            moved = 0.0 if batch.old_logprobs is None else logprobs[t] - float(batch.old_logprobs[t])
            if config.kl_loss.weight_by_ratio:
                kl["k3"] *= min(math.exp(moved), config.kl_loss.max_ratio or math.inf)
            sums["policy_loss"] += loss * weight
            sums["kl_loss"] += config.kl_loss.coef * kl[config.kl_loss.estimator] * weight
            sums["entropy_bonus"] += config.entropy_coef * entropy[t] * weight
            sums["kl/ref"] += full[t] / counts.tokens
            sums["approx_kl"] += (math.exp(moved) - 1 - moved) / counts.tokens
            sums["ratio/mean"] += math.exp(moved) / counts.tokens
    sums["loss"] = sums["policy_loss"] + sums["kl_loss"] - sums["entropy_bonus"]
    return sums


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
@pytest.mark.parametrize("on_policy", [True, False])
def test_equals_the_naive_loop(
    loss: PolicyLossConfig, correction: ImportanceCorrectionConfig | None, on_policy: bool
) -> None:
    config = with_parts(policy_loss=loss, importance_correction=correction)
    check_naive(config, make_batch(SHAPES, on_policy=on_policy))


SCALED = [
    KlCovLossConfig(kl_coef=0.0),
    RecLossConfig(regularizer="k2", regularizer_coef=0.1),
    RecLossConfig(regularizer="forward_kl", regularizer_coef=0.1),
    RecLossConfig(regularizer="k2", weight="advantage"),
]


@pytest.mark.parametrize("loss", [*(kind() for kind in get_args(PolicyLossConfig)), *SCALED], ids=str)
def test_a_loss_vanishes_at_zero_advantages_where_its_definition_says_so(loss: PolicyLossConfig) -> None:
    batch = make_batch(SHAPES)
    batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    config = GrpoConfig(policy_loss=loss, importance_correction=ImportanceCorrectionConfig())
    parameters, outputs = model_outputs(batch)
    result = run(config, batch, counts_of(batch), outputs)
    (gradient,) = torch.autograd.grad(result.loss, parameters)
    assert vanishes_at_zero_advantage(config) == (not gradient.any() and result.loss.item() == 0)


@pytest.mark.parametrize(
    "parts", [{"kl_loss": KlLossConfig(coef=0.1)}, {"entropy_coef": 0.1}], ids=["kl_loss", "entropy_coef"]
)
def test_a_divergence_and_an_entropy_bonus_do_not_vanish_at_zero_advantages(parts: dict[str, Any]) -> None:
    assert not vanishes_at_zero_advantage(GrpoConfig(**parts))
    assert not vanishes_at_zero_advantage(CustomConfig(loss="file.py:loss"))
    assert vanishes_at_zero_advantage(CustomConfig(advantages="file.py:advantages"))


@pytest.mark.parametrize("loss", LOSSES[:3], ids=lambda loss: loss.type)
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_equals_the_naive_loop_with_every_aggregation(
    loss: PolicyLossConfig, aggregation: Aggregation
) -> None:
    check_naive(with_parts(policy_loss=loss, aggregation=aggregation), make_batch(SHAPES))


@pytest.mark.parametrize("estimator", get_args(KlLossEstimator))
def test_equals_the_naive_loop_with_every_divergence(estimator: KlLossEstimator) -> None:
    check_naive(with_parts(kl_loss=KlLossConfig(estimator=estimator, coef=0.1)), make_batch(SHAPES))


@pytest.mark.parametrize("max_ratio", [None, 1.1])
def test_equals_the_naive_loop_with_a_divergence_weighted_by_the_ratio(max_ratio: float | None) -> None:
    kl_loss = KlLossConfig(estimator="k3", coef=0.1, weight_by_ratio=True, max_ratio=max_ratio)
    check_naive(with_parts(kl_loss=kl_loss), make_batch(SHAPES))


def check_naive(config: GrpoConfig, batch: MicroBatch) -> None:
    _, outputs = model_outputs(batch)
    counts = GlobalCounts(tokens=23, sequences=7)
    found, expected = run(config, batch, counts, outputs), naive(config, batch, outputs, counts)
    assert found.loss.item() == pytest.approx(expected.pop("loss"), rel=1e-5)
    for name, value in expected.items():
        assert found.metrics[name].item() == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_metrics_by_hand() -> None:
    """Four targets with ratios 2, 1/2, 4 and 1, and advantages 1, -1, -1 and 1."""
    batch = make_batch([(1, 4)])
    logprobs = torch.tensor([0.0, *map(math.log, (2, 0.5, 4, 1))])
    batch = replace(
        batch,
        old_logprobs=torch.zeros(5),
        advantages=torch.tensor([0.0, 1, -1, -1, 1]),
        policy_logprobs=torch.tensor([9.0, 0.1, -0.1, 0.3, -0.3]),
    )
    metrics = run(GrpoConfig(), batch, counts_of(batch), TokenOutputs(logprobs)).metrics
    found = {name: value.item() for name, value in metrics.items()}
    assert found["clip_fraction"] == 3 / 4
    assert [found[f"clip_fraction/{side}"] for side in ("high", "low", "dual")] == [1 / 4] * 3
    assert found["ratio/mean"] == pytest.approx((2 + 0.5 + 4 + 1) / 4)
    # The sampler against the log-probs at the step's start: |0.1|, |0.1|, |0.3|, |0.3|.
    assert found["logprob_diff/mean_abs"] == pytest.approx(0.2)
    assert found["logprob_diff/mean_square"] == pytest.approx((0.01 + 0.01 + 0.09 + 0.09) / 4)


def test_on_policy_the_sampler_is_compared_with_the_current_logprobs() -> None:
    batch = replace(make_batch([(1, 2)], on_policy=True), policy_logprobs=torch.tensor([0.0, -1, -2]))
    metrics = run(GrpoConfig(), batch, counts_of(batch), TokenOutputs(torch.tensor([0.0, -1.5, -2]))).metrics
    assert metrics["logprob_diff/mean_abs"].item() == pytest.approx(0.25)
    unknown = replace(batch, policy_logprobs=None)
    metrics = run(GrpoConfig(), unknown, counts_of(unknown), TokenOutputs(torch.zeros(3))).metrics
    assert "logprob_diff/mean_abs" not in metrics


@pytest.mark.parametrize("rules", REJECTIONS)
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("known", [True, False], ids=["decoupled", "bypass"])
def test_rejected_targets_are_out_of_every_term(
    rules: tuple[RejectionRuleConfig, ...], aggregation: Aggregation, known: bool
) -> None:
    """A batch with rejected targets has the loss of the batch without these targets, divided by its own counts."""
    batch = make_batch(SHAPES)
    config = with_parts(
        aggregation=aggregation, rejection=rules, old_policy="trainer" if known else "sampler"
    )
    parameters, outputs = model_outputs(batch)
    assert batch.old_logprobs is not None
    trainer = batch.old_logprobs if known else outputs.logprobs.detach()
    targets = TargetTokens.of(batch)
    kept = kept_targets(targets.take(trainer), targets.take(batch.sampler_logprobs), targets, rules)
    assert 0 < kept.sum() < len(kept), "the rules must keep some targets and reject some"
    mask = torch.zeros_like(batch.loss_mask).index_put((targets.index[kept],), torch.tensor(True))
    counts = counts_of(batch)

    found = run(config, batch, replace(counts, kept_tokens=int(kept.sum()) if known else None), outputs)
    denominators = replace(counts, tokens=int(kept.sum())) if known else counts
    expected = run(
        with_parts(aggregation=aggregation),
        replace(batch, targets=np.flatnonzero(mask)),
        denominators,
        outputs,
    )
    torch.testing.assert_close(found.loss, expected.loss)
    gradients = [
        torch.autograd.grad(result.loss, parameters, retain_graph=True)[0] for result in (found, expected)
    ]
    torch.testing.assert_close(*gradients)
    assert found.metrics["rejection/token_fraction"].item() == pytest.approx(1 - kept.float().mean().item())


def test_a_rejection_of_everything_is_no_loss() -> None:
    batch = make_batch(SHAPES)
    config = with_parts(rejection=(RejectionRuleConfig(low=50.0, high=60.0),))
    found = run(config, batch, replace(counts_of(batch), kept_tokens=0), model_outputs(batch)[1])
    assert found.loss.item() == 0
    assert found.metrics["rejection/token_fraction"].item() == pytest.approx(1)


def test_importance_weights_are_divided_by_their_mean() -> None:
    batch, config = make_batch(SHAPES), GrpoConfig(importance_correction=ImportanceCorrectionConfig())
    _, outputs = model_outputs(batch)
    whole = run(config, batch, counts_of(batch), outputs)
    scaled = run(config, batch, replace(counts_of(batch), mean_importance_weight=4.0), outputs)
    torch.testing.assert_close(scaled.loss * 4, whole.loss)


def test_reinforce_without_old_logprobs_is_weighted_by_the_current_policy() -> None:
    """verl's bypass mode with `reinforce`: -A log pi, times pi / pi_sampler of the current weights."""
    batch = make_batch(SHAPES)
    config = GrpoConfig(
        policy_loss=GpgLossConfig(),
        old_policy="sampler",
        importance_correction=ImportanceCorrectionConfig(cap=1.1),
    )
    _, outputs = model_outputs(batch)
    mask = batch.loss_mask
    logprobs = outputs.logprobs.detach()[mask]
    weights = (logprobs - batch.sampler_logprobs[mask]).exp().clamp(max=1.1)
    sizes = torch.tensor([targets for _, targets in SHAPES])
    per_sequence = batch.weight.repeat_interleave(sizes)
    expected = -(per_sequence * batch.advantages[mask] * logprobs * weights).sum() / mask.sum()
    torch.testing.assert_close(run(config, batch, counts_of(batch), outputs).loss.detach(), expected)


@given(
    st.sampled_from(LOSSES),
    st.sampled_from(CORRECTIONS),
    st.sampled_from([(), *REJECTIONS]),
    st.sampled_from(get_args(Aggregation)),
    st.sampled_from(get_args(KlLossEstimator)),
    st.booleans(),
    st.integers(0, 4),
)
def test_two_micro_batches_give_the_loss_and_gradient_of_one(
    loss: PolicyLossConfig,
    correction: ImportanceCorrectionConfig | None,
    rules: tuple[RejectionRuleConfig, ...],
    aggregation: Aggregation,
    estimator: KlLossEstimator,
    on_policy: bool,
    cut: int,
) -> None:
    config = with_parts(
        policy_loss=loss,
        importance_correction=correction,
        rejection=rules,
        aggregation=aggregation,
        kl_loss=KlLossConfig(estimator=estimator),
    )
    batch = make_batch(SHAPES, on_policy=on_policy)
    counts = counts_of(batch)
    parameters, outputs = model_outputs(batch)
    whole = run(config, batch, counts, outputs)
    (gradient,) = torch.autograd.grad(whole.loss, parameters, retain_graph=True)

    edge = int(batch.cu_seqlens[cut])
    first, second = split(batch, cut)
    halves = [
        run(config, first, counts, map_outputs(outputs, lambda each: each[:edge])),
        run(config, second, counts, map_outputs(outputs, lambda each: each[edge:])),
    ]
    total = halves[0].loss + halves[1].loss
    torch.testing.assert_close(total, whole.loss)
    torch.testing.assert_close(torch.autograd.grad(total, parameters)[0], gradient)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(halves[0].metrics[name] + halves[1].metrics[name], value, msg=name)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
@pytest.mark.parametrize(
    ("correction", "estimator", "on_policy"),
    [(None, "k3", True), (CORRECTIONS[1], "full", False), (CORRECTIONS[2], "k3", False)],
)
def test_nan_outside_targets_changes_nothing(
    loss: PolicyLossConfig,
    correction: ImportanceCorrectionConfig | None,
    estimator: KlLossEstimator,
    on_policy: bool,
) -> None:
    kl_loss = KlLossConfig(estimator=estimator, coef=0.1)
    config = with_parts(policy_loss=loss, importance_correction=correction, kl_loss=kl_loss)
    batch = make_batch(SHAPES, on_policy=on_policy)
    names = ["advantages", "policy_logprobs", "sampler_logprobs", "ref_logprobs"]
    names += [] if on_policy else ["old_logprobs"]

    def spoilt(values: torch.Tensor) -> torch.Tensor:
        return torch.where(batch.loss_mask, values, math.nan)

    dirty = replace(batch, **{name: spoilt(getattr(batch, name)) for name in names})
    results: list[Any] = []
    for one in (batch, dirty):
        parameters, outputs = model_outputs(batch)
        if one is dirty:
            outputs = map_outputs(outputs, spoilt)
        for function in (make_loss_fn(config, max_response_tokens=LIMIT), SftLoss()):
            output = function(one, outputs, counts_of(batch))
            gradient = torch.autograd.grad(output.loss, parameters, retain_graph=True, allow_unused=True)[0]
            results.append((output.loss, gradient, dict(output.metrics)))
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0)
    assert results[0][1][:, ~batch.loss_mask].count_nonzero() == 0


UNREGULARIZED = [
    loss
    for loss in LOSSES
    if loss.type not in ("dro", "kl_cov") and getattr(loss, "regularizer", "none") == "none"
]


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        *(
            (kind, FULL.policy_loss)
            for kind in (GrpoPasskConfig, RlooConfig, OpoConfig, GpgConfig, OpmdConfig)
        ),
        (ReinforcePlusPlusBaselineConfig, FULL.policy_loss),
        *((GrpoConfig, loss) for loss in UNREGULARIZED),
    ],
)
@pytest.mark.parametrize("on_policy", [True, False])
def test_equal_rewards_give_no_gradient(
    kind: type[GrpoConfig], loss: PolicyLossConfig, on_policy: bool
) -> None:
    config = kind(policy_loss=loss)
    batch = make_batch(SHAPES, on_policy=on_policy)
    scored = RolloutBatch(torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int64), torch.tensor([4, 1, 6]))
    batch.advantages[batch.loss_mask] = compute_advantages(config, scored, max_response_tokens=LIMIT)
    parameters, outputs = model_outputs(batch)
    (gradient,) = torch.autograd.grad(run(config, batch, counts_of(batch), outputs).loss, parameters)
    assert gradient.count_nonzero() == 0


def test_missing_inputs_are_reported() -> None:
    batch = make_batch(SHAPES)
    _, outputs = model_outputs(batch)
    with pytest.raises(ValueError, match="reference"):
        run(FULL, replace(batch, ref_logprobs=None), counts_of(batch), outputs)
    with pytest.raises(ValueError, match="entropy"):
        run(FULL, batch, counts_of(batch), TokenOutputs(outputs.logprobs))
    with pytest.raises(ValueError, match="divergence"):
        full = with_parts(kl_loss=KlLossConfig(estimator="full"))
        run(full, batch, counts_of(batch), TokenOutputs(outputs.logprobs, outputs.entropy))


def test_the_kl_metric_is_estimated_without_an_exact_divergence() -> None:
    batch = make_batch(SHAPES)
    assert batch.ref_logprobs is not None
    logprobs = model_outputs(batch)[1].logprobs
    log_ratio = (batch.ref_logprobs - logprobs)[batch.loss_mask]
    found = run(GrpoConfig(), batch, counts_of(batch), TokenOutputs(logprobs)).metrics["kl/ref"]
    torch.testing.assert_close(found, (log_ratio.exp() - 1 - log_ratio).mean())


def test_without_a_reference_or_entropy_their_metrics_are_absent() -> None:
    batch = replace(make_batch(SHAPES), ref_logprobs=None)
    metrics = run(
        GrpoConfig(), batch, counts_of(batch), TokenOutputs(model_outputs(batch)[1].logprobs)
    ).metrics
    assert not {"kl_loss", "kl/ref", "entropy", "entropy_bonus"} & set(metrics)


def test_the_sft_loss_matches_torchs_cross_entropy() -> None:
    batch = make_batch([(2, 3), (1, 4)])
    batch.weight.fill_(1)
    logits = torch.randn(10, 11, generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(10)
    logprobs = logits.log_softmax(-1)[torch.arange(10), tokens]
    expected = torch.nn.functional.cross_entropy(logits[batch.loss_mask], tokens[batch.loss_mask])
    found = SftLoss()(batch, TokenOutputs(logprobs), counts_of(batch))
    torch.testing.assert_close(found.loss, expected)
