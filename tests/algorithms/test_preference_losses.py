"""DPO by hand, and invariants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.preference_losses import DpoLoss
from strop.config.schema.algorithm import DpoConfig
from strop.types import GlobalCounts, MicroBatch, SegmentRole, TokenOutputs
from tests.algorithms.batches import make_batch, split

LENGTHS = [(2, 3), (2, 1), (1, 4), (1, 2), (3, 1), (3, 2)]
ROLES: tuple[SegmentRole, ...] = ("chosen", "rejected") * 3
COUNTS = GlobalCounts(tokens=13, sequences=6, pairs=3)


def pairs(seed: int = 0) -> tuple[MicroBatch, torch.Tensor]:
    """Three pairs, and log-probs of their tokens."""
    batch = replace(make_batch(LENGTHS, seed=seed), role=ROLES, weight=torch.ones(6))
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.where(batch.loss_mask, -torch.rand(len(batch.token_ids), generator=generator), 0.0)
    return batch, logprobs.requires_grad_()


def by_hand(label_smoothing: float) -> float:
    """One pair: the chosen answer gained 3 nats on the reference and the rejected one 1; beta 0.5. Implied
    rewards 1.5 and 0.5, a margin of 1."""
    batch = replace(
        make_batch([(1, 2), (1, 1)]),
        role=("chosen", "rejected"),
        weight=torch.ones(2),
        ref_logprobs=torch.tensor([0.0, -2, -2, 0, -4]),
    )
    outputs = TokenOutputs(torch.tensor([0.0, -1, 0, 0, -3]))
    found = DpoLoss(DpoConfig(beta=0.5, label_smoothing=label_smoothing))(
        batch, outputs, GlobalCounts(3, 2, pairs=1)
    )
    assert found.metrics["dpo/chosen_reward"].item() == pytest.approx(1.5)
    assert found.metrics["dpo/rejected_reward"].item() == pytest.approx(0.5)
    assert found.metrics["dpo/margin"].item() == pytest.approx(1.0)
    assert found.metrics["dpo/accuracy"].item() == 1.0
    return found.loss.item()


def test_by_hand() -> None:
    # -log sigmoid(1) = log(1 + e^-1); the other way round it is 1 more.
    assert by_hand(0.0) == pytest.approx(math.log(1 + math.exp(-1)))
    assert by_hand(0.1) == pytest.approx(math.log(1 + math.exp(-1)) + 0.1)


def test_at_the_reference_the_loss_is_log_2_and_pulls_each_token_by_half_of_beta() -> None:
    batch, logprobs = pairs()
    at = replace(batch, ref_logprobs=logprobs.detach())
    loss = DpoLoss(DpoConfig(beta=0.2))(at, TokenOutputs(logprobs), COUNTS).loss
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    sign = torch.tensor([-1.0, 1] * 3)[batch.segment_of_token()]
    expected = torch.where(batch.loss_mask, sign * 0.2 * 0.5 / 3, 0.0)
    torch.testing.assert_close(logprobs.grad, expected)


def test_tokens_that_are_not_targets_have_no_influence() -> None:
    batch, logprobs = pairs()
    clean = DpoLoss(DpoConfig())(batch, TokenOutputs(logprobs), COUNTS)
    assert batch.ref_logprobs is not None
    nan_batch = replace(batch, ref_logprobs=torch.where(batch.loss_mask, batch.ref_logprobs, torch.nan))
    nan = torch.where(batch.loss_mask, logprobs.detach(), torch.nan).requires_grad_()
    dirty = DpoLoss(DpoConfig())(nan_batch, TokenOutputs(nan), COUNTS)
    assert torch.equal(clean.loss, dirty.loss)
    clean.loss.backward()
    dirty.loss.backward()
    assert torch.equal(nan.grad, torch.where(batch.loss_mask, logprobs.grad, 0.0))


@given(cut=st.sampled_from([2, 4]), seed=st.integers(0, 50))
def test_micro_batches_of_an_update_add_up(cut: int, seed: int) -> None:
    batch, logprobs = pairs(seed)
    loss = DpoLoss(DpoConfig(label_smoothing=0.2))
    whole = loss(batch, TokenOutputs(logprobs), COUNTS)
    at = int(batch.cu_seqlens[cut])
    parts = [
        loss(part, TokenOutputs(values), COUNTS)
        for part, values in zip(split(batch, cut), (logprobs[:at], logprobs[at:]), strict=True)
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(sum(part.metrics[name] for part in parts), value)


def test_a_split_pair_is_refused() -> None:
    batch, logprobs = pairs()
    first, _ = split(batch, 3)
    with pytest.raises(ValueError, match="directly before its rejected"):
        DpoLoss(DpoConfig())(first, TokenOutputs(logprobs[: len(first.token_ids)]), COUNTS)


def test_without_a_reference_it_is_refused() -> None:
    batch, logprobs = pairs()
    with pytest.raises(ValueError, match="reference"):
        DpoLoss(DpoConfig())(replace(batch, ref_logprobs=None), TokenOutputs(logprobs), COUNTS)
