"""The four aggregations: by hand, and against padded tensors as verl reduces them."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import TargetTokens, token_weights
from strop.config.schema.policy_gradient import Aggregation
from strop.types import GlobalCounts, MicroBatch
from tests.algorithms.batches import counts_of, make_batch

ALL: tuple[Aggregation, ...] = get_args(Aggregation)


def reduced(values: torch.Tensor, batch: MicroBatch, how: Aggregation, counts: GlobalCounts) -> float:
    targets = TargetTokens.of(batch)
    weights = token_weights(targets, how, counts, max_response_tokens=10)
    return float((weights * targets.take(values)).sum())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # Two answers, with losses 1 2 3 and 6; weights 1 and 1; the limit is 10 tokens.
        ("token-mean", (1 + 2 + 3 + 6) / 4),
        ("seq-mean-token-sum", (6 + 6) / 2),
        ("seq-mean-token-mean", (2 + 6) / 2),
        ("seq-mean-token-sum-norm", (6 / 10 + 6 / 10) / 2),
    ],
)
def test_by_hand(how: Aggregation, expected: float) -> None:
    batch = make_batch([(2, 3), (1, 1)])
    batch.weight.fill_(1)
    values = torch.tensor([9.0, 9, 1, 2, 3, 9, 6])
    assert reduced(values, batch, how, counts_of(batch)) == pytest.approx(expected)


def test_a_sequences_weight_multiplies_its_loss_but_not_the_divisor() -> None:
    batch = make_batch([(1, 1), (1, 1)])
    batch.weight.copy_(torch.tensor([3.0, 0.0]))
    values = torch.tensor([9.0, 2, 9, 100])
    for how in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        assert reduced(values, batch, how, counts_of(batch)) == pytest.approx(3 * 2 / 2)


lengths = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=6)


@given(lengths, st.integers(0, 99))
def test_equals_the_padded_formulas(shapes: list[tuple[int, int]], seed: int) -> None:
    shapes = [(before, max(1, targets)) for before, targets in shapes]
    batch = make_batch(shapes, seed=seed)
    batch.weight.fill_(1)
    values = torch.randn(len(batch.loss_mask), generator=torch.Generator().manual_seed(seed))
    longest = max(before + targets for before, targets in shapes)
    padded, mask = torch.zeros(len(shapes), longest), torch.zeros(len(shapes), longest)
    for row, (start, end) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        padded[row, : end - start] = values[start:end]
        mask[row, : end - start] = batch.loss_mask[start:end]
    sums, tokens = (padded * mask).sum(1), mask.sum(1)
    expected = {
        "token-mean": sums.sum() / tokens.sum(),
        "seq-mean-token-sum": sums.mean(),
        "seq-mean-token-mean": (sums / tokens).mean(),
        "seq-mean-token-sum-norm": (sums / 10).mean(),
    }
    for how in ALL:
        found = reduced(values, batch, how, counts_of(batch))
        assert found == pytest.approx(expected[how].item(), rel=1e-5, abs=1e-5)
