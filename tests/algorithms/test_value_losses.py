"""The critic's loss: by hand, against a naive loop, and invariants."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.value_losses import ValueLoss, explained_variance, value_loss_terms
from strop.algorithms.registry import compute_advantages_and_returns
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.policy_gradient import OverlongPenaltyConfig
from strop.types import GlobalCounts, MicroBatch
from tests.algorithms.batches import counts_of, make_batch, split

SHAPES = [(3, 4), (2, 1), (1, 6)]
numbers = st.floats(-10, 10, width=32)


def with_values(batch: MicroBatch, *, seed: int = 1) -> tuple[MicroBatch, torch.Tensor]:
    """Return a batch with old values and returns, and the critic's values with a gradient."""
    generator = torch.Generator().manual_seed(seed)
    said, old, returns = (torch.randn(len(batch.token_ids), generator=generator) for _ in range(3))
    return replace(batch, values=old, returns=returns), said.requires_grad_()


def test_by_hand() -> None:
    """A clip of 0.5. The return is 1 and the old value 0, so that a value counts up to 0.5.

    0.2 is free: (0.2 - 1)^2 / 2 = 0.32. 0.8 counts as 0.5, which is worse: (0.5 - 1)^2 / 2 = 0.125
    and no gradient. -0.9 counts as -0.5, which is better, so the value itself counts: 1.9^2 / 2 = 1.805.
    """
    values = torch.tensor([0.2, 0.8, -0.9], requires_grad=True)
    terms = value_loss_terms(values, torch.zeros(3), torch.ones(3), clip=0.5)
    torch.testing.assert_close(terms.loss, torch.tensor([0.32, 0.125, 1.805]))
    assert terms.clipped.tolist() == [False, True, False]
    terms.loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([-0.8, 0.0, -1.9]))


def test_without_clipping_the_loss_is_half_the_squared_error() -> None:
    values, old, returns = torch.randn(3, 20).unbind()
    terms = value_loss_terms(values, old, returns, clip=None)
    torch.testing.assert_close(
        terms.loss, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2
    )
    assert not terms.clipped.any()


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1), st.floats(0.01, 5))
def test_against_a_naive_loop(rows: list[tuple[float, float, float]], clip: float) -> None:
    terms = value_loss_terms(*torch.tensor(rows, dtype=torch.float64).T, clip=clip)
    for (value, old, target), loss, clipped in zip(
        rows, terms.loss.tolist(), terms.clipped.tolist(), strict=True
    ):
        bounded = min(max(value, old - clip), old + clip)
        assert loss == pytest.approx(max((value - target) ** 2, (bounded - target) ** 2) / 2)
        assert clipped == ((bounded - target) ** 2 > (value - target) ** 2)


def test_the_loss_is_the_mean_over_the_targets_of_the_update() -> None:
    batch, said = with_values(replace(make_batch(SHAPES), weight=torch.ones(3)))
    result = ValueLoss(0.5)(batch, said, counts_of(batch))
    mask = batch.loss_mask
    assert batch.values is not None and batch.returns is not None
    terms = value_loss_terms(said[mask], batch.values[mask], batch.returns[mask], clip=0.5)
    torch.testing.assert_close(result.loss, terms.loss.mean())
    assert float(result.metrics["clip_fraction"]) == pytest.approx(float(terms.clipped.float().mean()))


def test_the_gradient_does_not_depend_on_the_micro_batches() -> None:
    batch, said = with_values(make_batch(SHAPES))
    counts = counts_of(batch)
    whole = ValueLoss(0.5)(batch, said, counts)
    whole.loss.backward()
    expected, total = said.grad, 0.0
    said.grad = None
    cut = int(batch.cu_seqlens[1])
    bare = replace(batch, values=None, returns=None)
    for part, tokens in zip(split(bare, 1), (slice(None, cut), slice(cut, None)), strict=True):
        assert batch.values is not None and batch.returns is not None
        part = replace(part, values=batch.values[tokens], returns=batch.returns[tokens])
        loss = ValueLoss(0.5)(part, said[tokens], counts).loss
        loss.backward()
        total += loss.item()
    torch.testing.assert_close(said.grad, expected)
    assert total == pytest.approx(whole.loss.item())


def test_tokens_that_are_not_targets_have_no_influence() -> None:
    batch, said = with_values(make_batch(SHAPES))
    expected = ValueLoss(0.5)(batch, said, counts_of(batch)).loss
    nan = torch.tensor(math.nan)
    assert batch.values is not None and batch.returns is not None
    broken = replace(
        batch,
        values=batch.values.where(batch.loss_mask, nan),
        returns=batch.returns.where(batch.loss_mask, nan),
    )
    loss = ValueLoss(0.5)(broken, said.where(batch.loss_mask, nan), counts_of(batch)).loss
    assert torch.equal(loss, expected)
    loss.backward()
    assert said.grad is not None and torch.isfinite(said.grad).all()


def test_a_batch_without_values_is_refused() -> None:
    batch = make_batch(SHAPES)
    with pytest.raises(ValueError, match="old values and returns"):
        ValueLoss(0.5)(batch, torch.zeros(len(batch.token_ids)), GlobalCounts(1, 1))


def test_explained_variance() -> None:
    """Returns 1, 2, 3 have a variance of 2/3; what 1, 2, 4 leaves of them (0, 0, -1) one of 2/9."""
    returns = torch.tensor([1.0, 2, 3])
    assert explained_variance(torch.tensor([1.0, 2, 4]), returns) == pytest.approx(2 / 3)
    assert explained_variance(returns + 5, returns) == pytest.approx(1)
    assert explained_variance(torch.ones(3), returns) == pytest.approx(0)
    assert explained_variance(returns, torch.ones(3)) is None


SCORED = RolloutBatch(rewards=torch.tensor([1.0, 0]), group=torch.tensor([0, 1]), tokens=torch.tensor([3, 2]))
VALUES = torch.tensor([0.5, 0.25, 0.75, 0.5, 0.25])


def test_an_estimate_by_hand() -> None:
    """gamma 1, lam 0.5, so that A_t = delta_t + A_(t+1) / 2.

    First rollout: deltas -0.25, 0.5 and 1 - 0.75 = 0.25, so A = 0.0625, 0.625, 0.25.
    Second: deltas -0.25 and -0.25, so A = -0.375, -0.25. Returns are A + V.
    """
    found = compute_advantages_and_returns(
        PpoConfig(lam=0.5, whiten=False), SCORED, VALUES, max_response_tokens=8
    )
    torch.testing.assert_close(found.advantages, torch.tensor([0.0625, 0.625, 0.25, -0.375, -0.25]))
    torch.testing.assert_close(found.returns, torch.tensor([0.5625, 0.875, 1.0, 0.125, 0.0]))


def test_whitening_applies_to_advantages_only() -> None:
    plain = compute_advantages_and_returns(
        PpoConfig(lam=0.5, whiten=False), SCORED, VALUES, max_response_tokens=8
    )
    white = compute_advantages_and_returns(PpoConfig(lam=0.5), SCORED, VALUES, max_response_tokens=8)
    assert torch.equal(white.returns, plain.returns)
    assert float(white.advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(white.advantages.std()) == pytest.approx(1, rel=1e-5)


def test_the_overlong_penalty_is_in_the_reward() -> None:
    """The last 2 of at most 4 tokens have a penalty: the response of 3 tokens loses 0.5 at its end."""
    section = PpoConfig(lam=1.0, whiten=False, overlong_penalty=OverlongPenaltyConfig(buffer_tokens=2))
    found = compute_advantages_and_returns(section, SCORED, torch.zeros(5), max_response_tokens=4)
    torch.testing.assert_close(found.returns, torch.tensor([0.5, 0.5, 0.5, 0, 0]))
