"""Cross entropy of demonstrations, alone and mixed with rollouts: by hand, and invariants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms import registry, requirements
from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.losses.sft import MixedLoss, SftLoss
from strop.config.schema.algorithm import SftConfig
from strop.config.schema.group_baselines import GrpoConfig, MixConfig, TokenWeight
from strop.types import GlobalCounts, MicroBatch, SegmentRole, TokenOutputs
from tests.algorithms.batches import make_batch, split

LENGTHS = [(2, 3), (1, 1), (0, 4), (3, 2)]
ROLES: tuple[SegmentRole, ...] = ("rl", "sft", "rl", "sft")
MIXED = MixedLoss(0.25, PolicyObjective(MixConfig(), 8))


def outputs_of(batch: MicroBatch, seed: int = 0) -> TokenOutputs:
    generator = torch.Generator().manual_seed(seed)
    values = -torch.rand(len(batch.token_ids), generator=generator)
    return TokenOutputs(torch.where(batch.loss_mask, values, 0.0).requires_grad_())


def mixed_counts(batch: MicroBatch) -> GlobalCounts:
    """Counts of the sequences in ROLES."""
    expert = torch.tensor([role == "sft" for role in batch.role])[batch.segment_of_token()] & batch.loss_mask
    tokens = int((batch.loss_mask & ~expert).sum())
    return GlobalCounts(tokens=tokens, sequences=2, expert_tokens=int(expert.sum()))


def test_by_hand() -> None:
    # Two answers of 1 and 3 tokens, all of weight 1: -(-1 - 2 - 3 - 6) / 4 = 3, and not (1 + 11/3) / 2.
    batch = replace(make_batch([(1, 1), (2, 3)]), weight=torch.ones(2))
    logprobs = torch.tensor([0.0, -1, 0, 0, -2, -3, -6])
    found = SftLoss()(batch, TokenOutputs(logprobs), GlobalCounts(tokens=4, sequences=2))
    assert found.loss.item() == 3
    assert found.metrics["sft_loss"].item() == 3


@pytest.mark.parametrize(
    ("token_weight", "expected"),
    # Probabilities 1/2 and 1/4, of which the weights have no gradient.
    [("none", [1.0, 1.0]), ("p", [0.5, 0.25]), ("p_one_minus_p", [0.25, 3 / 16])],
)
def test_weights_of_tokens_by_hand(token_weight: TokenWeight, expected: list[float]) -> None:
    batch = replace(make_batch([(1, 2)]), weight=torch.ones(1))
    logprobs = torch.tensor([0.0, 0.5, 0.25]).clamp(min=1e-3).log().requires_grad_()
    found = SftLoss(token_weight)(batch, TokenOutputs(logprobs), GlobalCounts(tokens=2, sequences=1)).loss
    assert found.item() == pytest.approx((expected[0] * math.log(2) + expected[1] * math.log(4)) / 2)
    (gradient,) = torch.autograd.grad(found, logprobs)
    assert gradient[1:].tolist() == pytest.approx([-each / 2 for each in expected])


def test_the_mix_by_hand() -> None:
    """One rollout with log-prob -1, advantage 2 and ratio 1: a loss of -2. An expert's two tokens, -1 and
    -3: a cross entropy of 2. With mu 0.25: 0.75 * -2 + 0.25 * 2 = -1."""
    batch = replace(
        make_batch([(1, 1), (1, 2)], on_policy=True),
        weight=torch.ones(2),
        role=("rl", "sft"),
        advantages=torch.tensor([0.0, 2, 0, 9, 9]),
    )
    outputs = TokenOutputs(torch.tensor([0.0, -1, 0, -1, -3]))
    found = MIXED(batch, outputs, GlobalCounts(tokens=1, sequences=1, expert_tokens=2))
    assert found.loss.item() == pytest.approx(-1)
    assert found.metrics["policy_loss"].item() == pytest.approx(-2)
    assert found.metrics["sft_loss"].item() == pytest.approx(2)


def test_the_registry() -> None:
    assert registry.make_loss_fn(SftConfig(), max_response_tokens=4) == SftLoss()
    mixed = registry.make_loss_fn(MixConfig(mu=0.3), max_response_tokens=4)
    assert isinstance(mixed, MixedLoss) and mixed.mu == 0.3
    assert not requirements.needs_reference_model(SftConfig()) and not requirements.needs_entropy(SftConfig())


def test_without_demonstrations_mix_is_a_fraction_of_grpo() -> None:
    batch = make_batch(LENGTHS)
    counts = GlobalCounts(tokens=int(batch.loss_mask.sum()), sequences=4)
    alone = PolicyObjective(GrpoConfig(), 8)(batch, outputs_of(batch), counts)
    assert MIXED(batch, outputs_of(batch), counts).loss.item() == pytest.approx(0.75 * alone.loss.item())


@pytest.mark.parametrize("loss", [SftLoss(), MIXED])
def test_tokens_that_are_not_targets_have_no_influence(loss) -> None:  # type: ignore[no-untyped-def]
    batch = replace(make_batch(LENGTHS), role=ROLES)
    counts = mixed_counts(batch)
    nan = torch.where(batch.loss_mask, outputs_of(batch).logprobs.detach(), torch.nan).requires_grad_()
    clean = outputs_of(batch).logprobs
    expected, found = loss(batch, TokenOutputs(clean), counts), loss(batch, TokenOutputs(nan), counts)
    assert torch.equal(expected.loss, found.loss)
    expected.loss.backward()
    found.loss.backward()
    assert torch.equal(clean.grad[batch.loss_mask], nan.grad[batch.loss_mask])
    assert not nan.grad[~batch.loss_mask].any()


@pytest.mark.parametrize("loss", [SftLoss(), MIXED])
@given(cut=st.integers(1, 3), seed=st.integers(0, 50))
def test_micro_batches_of_an_update_add_up(loss, cut: int, seed: int) -> None:  # type: ignore[no-untyped-def]
    batch = replace(make_batch(LENGTHS, seed=seed), role=ROLES)
    counts, outputs = mixed_counts(batch), outputs_of(batch, seed)
    whole = loss(batch, outputs, counts)
    at = int(batch.cu_seqlens[cut])
    halves = (outputs.logprobs[:at], outputs.logprobs[at:])
    parts = [
        loss(part, TokenOutputs(logprobs), counts)
        for part, logprobs in zip(split(batch, cut), halves, strict=True)
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(sum(part.metrics[name] for part in parts), value)
