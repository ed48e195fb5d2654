"""GRPO's whole objective: against a naive loop, and its invariances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.scored import Scored
from strop.algorithms.supervised import supervised_loss
from strop.algorithms.table import advantages, loss_fn, needs_entropy_gradient, needs_reference
from strop.config.schema.algorithm import Aggregation, ClippedLoss, Grpo, KlEstimator, KlLoss
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch, split

SHAPES = [(3, 4), (2, 1), (5, 0), (1, 6)]
LIMIT = 8
FULL = Grpo(
    kl_loss=KlLoss(estimator="k3", coef=0.1), entropy_coef=0.05, policy_loss=ClippedLoss(clip_high=0.3)
)


def model_outputs(batch: MicroBatch, seed: int = 5) -> tuple[torch.Tensor, TokenOutputs]:
    """Parameters, and log-probs and entropies that depend on them."""
    tokens = len(batch.loss_mask)
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.randn(2, tokens, generator=generator) * 0.3
    parameters.requires_grad_()
    return parameters, TokenOutputs(parameters[0] - 1, parameters[1].square() + 1)


def run(config: Grpo, batch: MicroBatch, counts: GlobalCounts, outputs: TokenOutputs) -> LossOutput:
    return loss_fn(config, max_response_tokens=LIMIT)(batch, outputs, counts)


def naive(config: Grpo, batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> dict[str, float]:
    """The definitions in plain Python, token by token."""
    assert outputs.entropy is not None and batch.ref_logprobs is not None and config.kl_loss is not None
    logprobs, entropy = outputs.logprobs.tolist(), outputs.entropy.tolist()
    sums = dict.fromkeys(("policy_loss", "kl_loss", "entropy_bonus", "kl/ref", "kl/old", "ratio/mean"), 0.0)
    for s in range(batch.segments):
        start, end = int(batch.cu_seqlens[s]), int(batch.cu_seqlens[s + 1])
        targets = [t for t in range(start, end) if batch.loss_mask[t]]
        for t in targets:
            logprob, advantage = logprobs[t], float(batch.advantages[t])
            old = logprob if batch.old_logprobs is None else float(batch.old_logprobs[t])
            ratio = math.exp(logprob - old)
            low, high = 1 - config.policy_loss.clip_low, 1 + config.policy_loss.clip_high
            surrogate = min(ratio * advantage, min(max(ratio, low), high) * advantage)
            if config.policy_loss.dual_clip and advantage < 0:
                surrogate = max(surrogate, config.policy_loss.dual_clip * advantage)
            difference = float(batch.ref_logprobs[t]) - logprob
            k3 = math.exp(difference) - 1 - difference
            kl = {"k1": -difference, "abs": abs(difference), "k2": difference**2 / 2, "k3": k3}
            divisor = {
                "token-mean": counts.tokens,
                "seq-mean-token-sum": counts.sequences,
                "seq-mean-token-mean": counts.sequences * len(targets),
                "seq-mean-token-sum-norm": counts.sequences * LIMIT,
            }[config.aggregation]
            weight = float(batch.weight[s]) / divisor
            sums["policy_loss"] -= surrogate * weight
            sums["kl_loss"] += config.kl_loss.coef * kl[config.kl_loss.estimator] * weight
            sums["entropy_bonus"] += config.entropy_coef * entropy[t] * weight
            sums["kl/ref"] += k3 / counts.tokens
            sums["kl/old"] += (ratio - 1 - (logprob - old)) / counts.tokens
            sums["ratio/mean"] += ratio / counts.tokens
    sums["loss"] = sums["policy_loss"] + sums["kl_loss"] - sums["entropy_bonus"]
    return sums


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("estimator", get_args(KlEstimator))
@pytest.mark.parametrize("on_policy", [True, False])
def test_equals_the_naive_loop(aggregation: Aggregation, estimator: KlEstimator, on_policy: bool) -> None:
    config = FULL.model_copy(
        update={"aggregation": aggregation, "kl_loss": KlLoss(estimator=estimator, coef=0.1)}
    )
    batch = make_batch(SHAPES, on_policy=on_policy)
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
    metrics = run(Grpo(), batch, counts_of(batch), TokenOutputs(logprobs)).metrics
    found = {name: value.item() for name, value in metrics.items()}
    assert found["clip_fraction"] == 3 / 4
    assert [found[f"clip_fraction/{side}"] for side in ("high", "low", "dual")] == [1 / 4] * 3
    assert found["ratio/mean"] == pytest.approx((2 + 0.5 + 4 + 1) / 4)
    # The sampler against the log-probs at the step's start: |0.1|, |0.1|, |0.3|, |0.3|.
    assert found["logprob_diff/mean_abs"] == pytest.approx(0.2)
    assert found["logprob_diff/mean_square"] == pytest.approx((0.01 + 0.01 + 0.09 + 0.09) / 4)


def test_on_policy_the_sampler_is_compared_with_the_current_logprobs() -> None:
    batch = replace(make_batch([(1, 2)], on_policy=True), policy_logprobs=torch.tensor([0.0, -1, -2]))
    metrics = run(Grpo(), batch, counts_of(batch), TokenOutputs(torch.tensor([0.0, -1.5, -2]))).metrics
    assert metrics["logprob_diff/mean_abs"].item() == pytest.approx(0.25)


@given(
    st.sampled_from(get_args(Aggregation)),
    st.sampled_from(get_args(KlEstimator)),
    st.booleans(),
    st.integers(0, 4),
)
def test_two_halves_give_the_loss_and_gradient_of_the_whole(
    aggregation: Aggregation, estimator: KlEstimator, on_policy: bool, cut: int
) -> None:
    config = FULL.model_copy(update={"aggregation": aggregation, "kl_loss": KlLoss(estimator=estimator)})
    batch = make_batch(SHAPES, on_policy=on_policy)
    counts = counts_of(batch)
    parameters, outputs = model_outputs(batch)
    whole = run(config, batch, counts, outputs)
    (gradient,) = torch.autograd.grad(whole.loss, parameters, retain_graph=True)

    edge, entropy = int(batch.cu_seqlens[cut]), outputs.entropy
    assert entropy is not None
    first, second = split(batch, cut)
    halves = [
        run(config, first, counts, TokenOutputs(outputs.logprobs[:edge], entropy[:edge])),
        run(config, second, counts, TokenOutputs(outputs.logprobs[edge:], entropy[edge:])),
    ]
    total = halves[0].loss + halves[1].loss
    torch.testing.assert_close(total, whole.loss)
    torch.testing.assert_close(torch.autograd.grad(total, parameters)[0], gradient)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(halves[0].metrics[name] + halves[1].metrics[name], value, msg=name)


@pytest.mark.parametrize("on_policy", [True, False])
def test_nan_beside_the_targets_changes_nothing(on_policy: bool) -> None:
    batch = make_batch(SHAPES, on_policy=on_policy)
    names = ["advantages", "policy_logprobs", "sampler_logprobs", "ref_logprobs"]
    names += [] if on_policy else ["old_logprobs"]

    def spoilt(values: torch.Tensor) -> torch.Tensor:
        return torch.where(batch.loss_mask, values, math.nan)

    dirty = replace(batch, **{name: spoilt(getattr(batch, name)) for name in names})
    results: list[Any] = []
    for one in (batch, dirty):
        parameters, outputs = model_outputs(batch)
        assert outputs.entropy is not None
        if one is dirty:
            outputs = TokenOutputs(spoilt(outputs.logprobs), spoilt(outputs.entropy))
        for loss in (loss_fn(FULL, max_response_tokens=LIMIT), supervised_loss):
            output = loss(one, outputs, counts_of(batch))
            gradient = torch.autograd.grad(output.loss, parameters, retain_graph=True, allow_unused=True)[0]
            results.append((output.loss, gradient, dict(output.metrics)))
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0)
    assert results[0][1][:, ~batch.loss_mask].count_nonzero() == 0


def test_equal_rewards_give_no_gradient() -> None:
    config = Grpo(rollouts_per_task=4)
    batch = make_batch(SHAPES, on_policy=True)
    scored = Scored(torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int64), torch.tensor([4, 1, 6]))
    batch.advantages[batch.loss_mask] = advantages(config, scored, max_response_tokens=LIMIT)
    parameters, outputs = model_outputs(batch)
    (gradient,) = torch.autograd.grad(run(config, batch, counts_of(batch), outputs).loss, parameters)
    assert gradient.count_nonzero() == 0


def test_what_is_wanted_and_missing_is_said() -> None:
    batch = make_batch(SHAPES)
    _, outputs = model_outputs(batch)
    with pytest.raises(ValueError, match="reference"):
        run(FULL, replace(batch, ref_logprobs=None), counts_of(batch), outputs)
    with pytest.raises(ValueError, match="entropy"):
        run(FULL, batch, counts_of(batch), TokenOutputs(outputs.logprobs))


def test_table_says_what_a_loss_needs() -> None:
    assert (needs_reference(Grpo()), needs_entropy_gradient(Grpo())) == (False, False)
    assert (needs_reference(FULL), needs_entropy_gradient(FULL)) == (True, True)


def test_without_a_reference_or_entropy_nothing_is_said_of_them() -> None:
    batch = replace(make_batch(SHAPES), ref_logprobs=None)
    metrics = run(Grpo(), batch, counts_of(batch), TokenOutputs(model_outputs(batch)[1].logprobs)).metrics
    assert not {"kl_loss", "kl/ref", "entropy", "entropy_bonus"} & set(metrics)


def test_supervised_loss_is_torchs_cross_entropy() -> None:
    batch = make_batch([(2, 3), (1, 4)])
    batch.weight.fill_(1)
    logits = torch.randn(10, 11, generator=torch.Generator().manual_seed(2))
    tokens = torch.arange(10)
    logprobs = logits.log_softmax(-1)[torch.arange(10), tokens]
    expected = torch.nn.functional.cross_entropy(logits[batch.loss_mask], tokens[batch.loss_mask])
    found = supervised_loss(batch, TokenOutputs(logprobs), counts_of(batch))
    torch.testing.assert_close(found.loss, expected)
