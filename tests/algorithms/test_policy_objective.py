"""The policy objective: against a naive loop, its metrics by hand, rejected targets, and missing inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from strop.algorithms.kl import sampled_divergence
from strop.algorithms.losses.aggregation import TargetTokens, kept_targets
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.distillation import DistillationConfig, SampledKlLossConfig
from strop.config.schema.policy_gradient import Aggregation, KlLossConfig, KlLossEstimator
from strop.config.schema.policy_loss import GpgLossConfig, ImportanceCorrectionConfig, RejectionRuleConfig
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch
from tests.algorithms.naive import naive_objective
from tests.algorithms.objectives import (
    CORRECTIONS,
    LIMIT,
    LOSSES,
    REJECTIONS,
    distillation,
    model_outputs,
    with_parts,
)

SHAPES = [(3, 4), (2, 1), (5, 0), (1, 6)]


def run(config: GrpoConfig, batch: MicroBatch, counts: GlobalCounts, outputs: TokenOutputs) -> LossOutput:
    return make_loss_fn(config, max_response_tokens=LIMIT)(batch, outputs, counts)


def taught(divergence: str, coef: float = 1.0) -> DistillationConfig:
    return DistillationConfig.model_validate(distillation(divergence, coef))


def check_naive(config: GrpoConfig, batch: MicroBatch) -> None:
    _, outputs = model_outputs(batch)
    counts = GlobalCounts(tokens=23, sequences=7)
    found = run(config, batch, counts, outputs)
    expected = naive_objective(config, batch, outputs, counts, LIMIT)
    assert found.loss.item() == pytest.approx(expected.pop("loss"), rel=1e-5)
    for name, value in expected.items():
        assert found.metrics[name].item() == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.type)
@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
@pytest.mark.parametrize("on_policy", [True, False])
def test_equals_the_naive_loop(loss, correction, on_policy):
    config = with_parts(policy_loss=loss, importance_correction=correction)
    check_naive(config, make_batch(SHAPES, on_policy=on_policy))


KL_LOSSES = [
    *(KlLossConfig(estimator=estimator, coef=0.1) for estimator in get_args(KlLossEstimator)),
    KlLossConfig(estimator="k3", coef=0.1, weight_by_ratio=True),
    KlLossConfig(estimator="k3", coef=0.1, weight_by_ratio=True, max_ratio=1.1),
    KlLossConfig(estimator="k3", coef=0.1, weight_by_ratio=True, ratio_level="sequence"),
]


@pytest.mark.parametrize(
    "parts",
    [
        *({"policy_loss": loss, "aggregation": a} for loss in LOSSES[:3] for a in get_args(Aggregation)),
        *({"kl_loss": kl_loss} for kl_loss in KL_LOSSES),
    ],
    ids=str,
)
def test_equals_the_naive_loop_with_every_aggregation_and_divergence(parts: dict[str, Any]) -> None:
    check_naive(with_parts(**parts), make_batch(SHAPES))


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
def test_rejected_targets_are_out_of_every_term(rules, aggregation, known):
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


def test_a_sequence_without_old_logprobs_is_on_policy_and_left_out_of_the_comparison() -> None:
    batch = make_batch(SHAPES)
    logprobs = model_outputs(batch)[1].logprobs.detach()
    last = batch.segment_of_token() == 3
    counts = replace(counts_of(batch), compared_tokens=5)
    assert batch.old_logprobs is not None
    results = [
        run(GrpoConfig(), replace(batch, old_logprobs=old), counts, TokenOutputs(logprobs))
        for old in (batch.old_logprobs.masked_fill(last, math.nan), batch.old_logprobs.where(~last, logprobs))
    ]
    torch.testing.assert_close(results[0].loss, results[1].loss)
    ratios = (logprobs - batch.old_logprobs).exp()[batch.loss_mask & ~last]
    torch.testing.assert_close(results[0].metrics["ratio/mean"], ratios.mean())


@pytest.mark.parametrize(
    ("parts", "missing", "said"),
    [
        ({}, "ref_logprobs", "algorithm.kl_loss needs the reference's log-probs"),
        ({}, "entropy", "algorithm.entropy_coef needs the entropy"),
        ({"kl_loss": KlLossConfig(estimator="full")}, "divergence", "full needs the divergence"),
        ({"distillation": taught("reverse_kl")}, "teacher_divergence", "needs the teacher's divergence"),
        ({"distillation": taught("sampled_kl")}, "teacher_logprobs", "needs the teacher's log-probs"),
    ],
    ids=str,
)
def test_missing_inputs_are_reported(parts, missing, said):
    batch = make_batch(SHAPES)
    outputs = model_outputs(batch)[1]
    if missing.endswith("logprobs"):
        batch = replace(batch, **{missing: None})
    else:
        outputs = replace(outputs, **{missing: None})
    with pytest.raises(ValueError, match=said):
        run(with_parts(**parts), batch, counts_of(batch), outputs)


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


@pytest.mark.parametrize("divergence", ["reverse_kl", "sampled_kl"])
def test_a_teachers_divergence_is_aggregated_like_the_policy_loss(divergence: str) -> None:
    """A token beyond the bound, which is 1, counts as the bound."""
    batch = make_batch([(2, 3), (1, 4)])
    logprobs = torch.randn(len(batch.loss_mask), generator=torch.Generator().manual_seed(0)) * 0.3 - 1
    each = torch.linspace(0.1, 3, len(batch.loss_mask))
    outputs = TokenOutputs(logprobs, torch.ones(len(each)), None, each)
    if divergence == "sampled_kl":
        batch = replace(batch, teacher_logprobs=torch.linspace(-3, 0, len(each)))
        each = sampled_divergence(logprobs, batch.teacher_logprobs, SampledKlLossConfig())
    counts = GlobalCounts(tokens=7, sequences=2)
    base = GrpoConfig(aggregation="seq-mean-token-mean")
    plain = run(base, batch, counts, outputs)
    found = run(
        base.model_copy(update={"distillation": taught(divergence, coef=0.5)}), batch, counts, outputs
    )
    means = [each[2:5].clamp(max=1).mean() * batch.weight[0], each[6:].clamp(max=1).mean() * batch.weight[1]]
    expected = float(0.5 * sum(means) / 2)
    assert found.metrics["distillation_loss"] == pytest.approx(expected)
    assert found.loss == pytest.approx(float(plain.loss) + expected)
    mean = float(each[batch.loss_mask].sum() / 7)
    assert found.metrics["distillation_loss/divergence"] == pytest.approx(mean)
