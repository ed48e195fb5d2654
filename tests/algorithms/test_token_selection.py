"""Tokens that a loss treats differently or leaves out: Clip-Cov, KL-Cov, M2PO, Clip_B and Clip_V."""

from __future__ import annotations

import math

import pytest
import torch

from strop.algorithms.losses.policy_losses import clip_b, clip_v, excess_tokens, select_tokens
from strop.config.schema.policy_loss import ClipCovLossConfig, KlCovLossConfig

# Means -2 and 0: the covariances are 3, -1, -2, 2, 0 and 0.
LOGPROBS = torch.tensor([-0.5, -1.0, -3.0, -3.0, -2.0, -2.5])
ADVANTAGES = torch.tensor([2.0, -1.0, 2.0, -2.0, -1.0, 0.0])


def chosen(config: ClipCovLossConfig | KlCovLossConfig, seed: int = 0) -> list[int]:
    return select_tokens(config, LOGPROBS, ADVANTAGES, seed=seed).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("fraction", "expected"), [(2 / 6, [0, 3]), (1e-6, [0]), (1.0, [0, 1, 2, 3, 4, 5])], ids=str
)
def test_kl_cov_takes_the_largest_covariances_and_at_least_one(fraction: float, expected: list[int]) -> None:
    assert chosen(KlCovLossConfig(token_fraction=fraction)) == expected


def test_clip_cov_takes_some_between_its_bounds() -> None:
    config = ClipCovLossConfig(token_fraction=1.0, covariance_low=-1.5, covariance_high=2.5)
    assert chosen(config) == [1, 3, 4, 5]

    one = config.model_copy(update={"token_fraction": 0.2})
    found = [chosen(one, seed) for seed in range(20)]
    assert all(len(each) == 1 and each[0] in (1, 3, 4, 5) for each in found)
    assert len({each[0] for each in found}) > 1
    assert found[0] == chosen(one)

    none = config.model_copy(update={"covariance_low": 10.0, "covariance_high": 20.0})
    assert chosen(none) == []


@pytest.mark.parametrize(
    ("log_ratio", "advantages", "bound", "expected"),
    [
        # Squares 1, 4 and 9 of the first three tokens, which move away; means 1, 2.5 and 14/3 in ascending order. The
        # last tokens move back to the old policy, or have no advantage.
        ([1, -2, 3, -9, 9, 9], [2, -1, 1, 1, -1, 0], 5.0, []),
        ([1, -2, 3, -9, 9, 9], [2, -1, 1, 1, -1, 0], 2.5, [2]),
        ([1, -2, 3, -9, 9, 9], [2, -1, 1, 1, -1, 0], 2.4, [1, 2]),
        ([1, -2, 3, -9, 9, 9], [2, -1, 1, 1, -1, 0], 0.9, [0, 1, 2]),
        # On policy nothing is left out.
        ([0, 0], [1, -1], 0.0, []),
    ],
)
def test_m2po_leaves_out_the_largest_log_ratios(log_ratio, advantages, bound, expected):
    ratio, signs = torch.tensor(log_ratio, dtype=torch.float32), torch.tensor(advantages)
    assert excess_tokens(ratio, signs, max_second_moment=bound).nonzero().flatten().tolist() == expected


@pytest.mark.parametrize("bound", [0.01, 0.1, 0.3, 0.5, 0.8, 1.2, 2.0])
def test_m2po_leaves_out_as_few_as_possible(bound: float) -> None:
    """Remove the largest until the mean of the rest is within the bound (arXiv 2510.01161, algorithm 1)."""
    for seed in range(15):
        ratio, advantages = torch.randn(2, 30, generator=torch.Generator().manual_seed(seed))
        moving = [i for i in range(30) if ratio[i] * advantages[i] > 0]
        rest = list(moving)
        while rest and sum(float(ratio[i].double()) ** 2 for i in rest) / len(rest) > bound:
            rest.remove(max(rest, key=lambda i: abs(float(ratio[i]))))
        found = excess_tokens(ratio, advantages, max_second_moment=bound).tolist()
        assert found == [i in moving and i not in rest for i in range(30)]


# Four distributions over two tokens: S of each sampled token is p (H + log p).
PROBABILITIES = torch.tensor([0.9, 0.9, 0.9, 0.1])
ENTROPY = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))


@pytest.mark.parametrize(
    ("advantages", "deviations", "kept"),
    [
        # The last token is sqrt(3) = 1.732 standard deviations below the mean of three equal ones and itself.
        ([-1, -1, -1, -1], 1.73, [True, True, True, False]),
        ([-1, -1, -1, -1], 1.74, [True] * 4),
        # Other advantages keep their tokens.
        ([-1, -1, -1, 1], 0.1, [True] * 4),
        ([-1, -1, -1, 0], 0.1, [True] * 4),
    ],
)
def test_clip_b_leaves_out_unlikely_tokens_with_a_negative_advantage(advantages, deviations, kept):
    logprobs, entropies = PROBABILITIES.log(), torch.full((4,), ENTROPY)
    assert clip_b(logprobs, entropies, torch.tensor(advantages), deviations=deviations).tolist() == kept


def test_clip_b_keeps_equal_tokens() -> None:
    same = torch.full((3,), -0.5)
    assert clip_b(same, torch.ones(3), -torch.ones(3), deviations=0.1).all()


@pytest.mark.parametrize(
    ("effects", "advantages", "bound", "fraction", "left_out"),
    [
        # Differences of standard deviation 1: those above 2 without a positive advantage are left out.
        ([3, 1, 1, 3], [-1, -1, 1, 1], 2.0, None, [0]),
        ([3, 1, 1, 3], [0, -1, 1, -1], 2.0, None, [0, 3]),
        ([3, 1, 1, 3], [-1, -1, 1, 1], 3.5, None, []),
        ([2, 2, 2, 2], [-1, -1, -1, -1], 0.1, None, []),
        # The largest differences, of a fraction of the tokens and at least one.
        ([5, 4, 6, 0], [-1, -1, -1, -1], 0.5, 0.25, [2]),
        ([5, 4, 6, 0], [-1, -1, -1, -1], 0.5, 1e-4, [2]),
        ([5, 4, 6, 0], [-1, -1, -1, -1], 0.5, 0.75, [0, 1, 2]),
    ],
)
def test_clip_v_compares_with_the_expectation(effects, advantages, bound, fraction, left_out):
    """Tokens of probability 1 and entropy 0, so that S is 0 and the difference is the expectation."""
    zero, expected, signs = torch.zeros(4), torch.tensor(effects), torch.tensor(advantages)
    kept = clip_v(zero, zero, expected, signs, deviations=bound, max_fraction=fraction)
    assert (~kept).nonzero().flatten().tolist() == left_out


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_clip_v_is_that_of_trinity(fraction: float) -> None:
    """trinity 0.6.0 advantage_fn/clipv_advantage.py, token by token."""
    for seed in range(40):
        generator, count = torch.Generator().manual_seed(seed), 50
        logprobs, entropies = torch.rand(2, count, generator=generator, dtype=torch.float64) * 2
        logprobs = -logprobs
        expected = torch.randn(count, generator=generator, dtype=torch.float64) / 3
        advantages = torch.randint(-1, 2, (count,), generator=generator).double()
        difference = expected - logprobs.exp() * (entropies + logprobs)
        limit = 0.8 * float(difference.std(correction=0))
        out = [i for i in range(count) if advantages[i] <= 0 and float(difference[i]) > limit]
        punished = sorted((i for i in out if advantages[i] < 0), key=lambda i: -float(difference[i]))
        most = max(int(fraction * count), 1)
        if len(out) > fraction * count and len(punished) > most:
            out = [i for i in out if i not in punished[most:]]
        found = clip_v(logprobs, entropies, expected, advantages, deviations=0.8, max_fraction=fraction)
        assert found.tolist() == [i not in out for i in range(count)]
