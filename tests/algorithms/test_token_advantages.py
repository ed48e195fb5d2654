"""Token advantages: by hand, against naive implementations, and invariants."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.rollout_batch import RolloutBatch
from strop.algorithms.token_advantages import (
    gae,
    gdpo,
    logit_gradient_norms,
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
    whiten,
)

numbers = st.floats(-10, 10, width=32)


@st.composite
def steps(draw: st.DrawFn) -> RolloutBatch:
    """A step of ragged rollouts, in groups of any size, with penalties and greedy rewards."""
    tokens = draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))

    def some(count: int) -> torch.Tensor:
        return torch.tensor(draw(st.lists(numbers, min_size=count, max_size=count)))

    return RolloutBatch(
        rewards=some(len(tokens)),
        group=torch.tensor(draw(st.lists(st.integers(0, 3), min_size=len(tokens), max_size=len(tokens)))),
        tokens=torch.tensor(tokens),
        kl_penalties=some(sum(tokens)),
        baselines=some(len(tokens)),
    )


def test_gdpo_by_hand() -> None:
    """Two rollouts, of two and of three tokens: accuracy 1 and 0, format 0 and 10, which the group's statistics put
    on one scale; format has half the weight, so that accuracy decides."""
    scored = RolloutBatch(
        rewards=torch.zeros(2),
        group=torch.zeros(2, dtype=torch.int64),
        tokens=torch.tensor([2, 3]),
        reward_parts=torch.tensor([[1.0, 0], [0, 10]]),
    )
    # Both rollouts have +-0.5 / sqrt(2); over five tokens, the mean is 1/5 of the difference below the middle.
    plus, minus = 0.6 * math.sqrt(10 / 3), -0.4 * math.sqrt(10 / 3)
    found = gdpo(scored, weights=[1, 0.5], epsilon=1e-12)
    assert found.tolist() == pytest.approx([plus, plus, minus, minus, minus], rel=1e-6)


def test_optimal_token_baseline_by_hand() -> None:
    """Rewards 1 and 0; the first has two tokens of norms 1 and 2, the second three of norms 3, 1 and 1.

    Token 1: (1 * 1 + 0 * 3) / 4 = 1/4; token 2: (1 * 3 + 0 * 4) / 7 = 3/7; token 3 has the second rollout only.
    """
    scored = RolloutBatch(
        rewards=torch.tensor([1.0, 0.0]),
        group=torch.zeros(2, dtype=torch.int64),
        tokens=torch.tensor([2, 3]),
        gradient_norms=torch.tensor([1.0, 2, 3, 1, 1]),
    )
    expected = [3 / 4, 4 / 7, -1 / 4, -3 / 7, 0]
    assert optimal_token_baseline(scored).tolist() == pytest.approx(expected, abs=1e-6)
    longest = replace(scored, rewards=torch.tensor([0.0, 1.0]))
    assert optimal_token_baseline(longest)[-1].item() == 1, "without another response there is no baseline"


@given(steps(), st.integers(0, 99))
def test_optimal_token_baseline_equals_its_definition(scored: RolloutBatch, seed: int) -> None:
    norms = torch.rand(scored.num_targets, generator=torch.Generator().manual_seed(seed)) + 0.1
    found = optimal_token_baseline(replace(scored, gradient_norms=norms)).tolist()
    rewards = scored.token_rewards().tolist()
    ends = scored.tokens.cumsum(0).tolist()
    spans = [range(end - count, end) for end, count in zip(ends, scored.tokens.tolist(), strict=True)]
    returns = [[math.fsum(rewards[t : span.stop]) for t in span] for span in spans]
    energy = [[math.fsum(norms[span.start : t + 1].tolist()) for t in span] for span in spans]
    expected = []
    for i, span in enumerate(spans):
        for t in range(len(span)):
            alive = [j for j, s in enumerate(spans) if scored.group[j] == scored.group[i] and len(s) > t]
            top = math.fsum(returns[j][t] * energy[j][t] for j in alive)
            baseline = top / math.fsum(energy[j][t] for j in alive) if len(alive) > 1 else 0.0
            expected.append(returns[i][t] - baseline)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_the_gradient_norm_is_that_of_the_log_softmax() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 3, 6, 2, 2])
    logprobs = logits.log_softmax(-1)
    picked = logprobs[torch.arange(5), labels]
    (gradient,) = torch.autograd.grad(picked.sum(), logits)
    weights = torch.tensor([1.0, 2, 1, 1, 0.5])
    found = logit_gradient_norms(picked.detach(), logprobs.detach().exp().square().sum(-1), weights)
    torch.testing.assert_close(found, gradient.square().sum(-1) * weights.square())


@given(st.data())
def test_gdpo_equals_its_definition(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 7))
    group = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    tokens = data.draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    parts = data.draw(
        st.lists(st.lists(st.integers(-3, 3), min_size=size, max_size=size), min_size=1, max_size=3)
    )
    weights = data.draw(st.lists(st.floats(0.5, 2), min_size=len(parts), max_size=len(parts)))
    sums = [0.0] * size
    for weight, part in zip(weights, parts, strict=True):
        for i in range(size):
            same = [part[j] for j in range(size) if group[j] == group[i]]
            deviation = statistics.stdev(same) if len(same) > 1 else 0.0
            sums[i] += weight * (part[i] - statistics.mean(same)) / (deviation + 1e-6)
    flat = [value for value, count in zip(sums, tokens, strict=True) for _ in range(count)]
    mean = statistics.mean(flat)
    expected = [(value - mean) / math.sqrt(statistics.variance(flat) + 1e-8) for value in flat]
    scored = RolloutBatch(
        rewards=torch.zeros(size),
        group=torch.tensor(group),
        tokens=torch.tensor(tokens),
        reward_parts=torch.tensor(parts, dtype=torch.float32).T,
    )
    assert gdpo(scored, weights=weights).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_gdpo_needs_the_parts_of_the_reward() -> None:
    scored = RolloutBatch(torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.tensor([1]))
    with pytest.raises(ValueError, match="reward_parts"):
        gdpo(scored, weights=[1])


def naive_rewards(scored: RolloutBatch) -> list[list[float]]:
    """Per rollout: minus the penalty of each token, and the reward at the last."""
    assert scored.kl_penalties is not None
    rewards = []
    penalties = iter(scored.kl_penalties.tolist())
    for reward, tokens in zip(scored.rewards.tolist(), scored.tokens.tolist(), strict=True):
        row = [-next(penalties) for _ in range(tokens)]
        row[-1] += reward
        rewards.append(row)
    return rewards


def naive_returns(scored: RolloutBatch, gamma: float) -> list[list[float]]:
    return [
        [sum(gamma**later * r for later, r in enumerate(row[t:])) for t in range(len(row))]
        for row in naive_rewards(scored)
    ]


def naive_whiten(values: list[float]) -> list[float]:
    mean = statistics.fmean(values)
    variance = statistics.variance(values) if len(values) > 1 else 0.0
    return [(v - mean) / math.sqrt(variance + 1e-8) for v in values]


def flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


TWO = RolloutBatch(
    rewards=torch.tensor([1.0, 0]),
    group=torch.tensor([0, 0]),
    tokens=torch.tensor([2, 1]),
    kl_penalties=torch.tensor([0.1, 0.2, 0.3]),
    baselines=torch.tensor([0.5, 0.25]),
)
"""Token rewards -0.1, 0.8 and -0.3."""


def test_reinforce_plus_plus_by_hand() -> None:
    # gamma 0.5: returns -0.1 + 0.5 * 0.8 = 0.3, then 0.8, and -0.3. Mean 0.8 / 3 = 0.266667;
    # distances 0.033333, 0.533333, -0.566667; squares sum to 0.606667, over 2 is 0.303333; std 0.550757.
    found = reinforce_plus_plus(TWO, gamma=0.5)
    assert found.tolist() == pytest.approx([0.060523, 0.968364, -1.028887], abs=1e-6)


def test_reinforce_plus_plus_baseline_by_hand() -> None:
    # Scores 1 - 0.1 - 0.2 = 0.7 and 0 - 0.3 = -0.3, group mean 0.2: 0.5, 0.5 and -0.5 for the tokens.
    # Their mean is 1/6, distances 1/3, 1/3, -2/3, squares sum to 6/9, over 2 is 1/3; std 0.577350.
    found = reinforce_plus_plus_baseline(TWO)
    assert found.tolist() == pytest.approx([0.577350, 0.577350, -1.154701], abs=1e-6)


def test_remax_by_hand() -> None:
    # Returns 0.7, 0.8 and -0.3, less 0.5, 0.5 and 0.25.
    assert remax(TWO).tolist() == pytest.approx([0.2, 0.3, -0.55])


def test_gae_by_hand() -> None:
    # gamma 0.9, lambda 0.8; reward 1 at the end; values 0.5, 0.6, 0.7.
    # delta_2 = 1 - 0.7 = 0.3, delta_1 = 0.9 * 0.7 - 0.6 = 0.03, delta_0 = 0.9 * 0.6 - 0.5 = 0.04.
    # A_2 = 0.3, A_1 = 0.03 + 0.72 * 0.3 = 0.246, A_0 = 0.04 + 0.72 * 0.246 = 0.21712.
    one = RolloutBatch(torch.tensor([1.0]), torch.tensor([0]), torch.tensor([3]))
    found = gae(one, torch.tensor([0.5, 0.6, 0.7]), gamma=0.9, lam=0.8)
    assert found.advantages.tolist() == pytest.approx([0.21712, 0.246, 0.3])
    assert found.returns.tolist() == pytest.approx([0.71712, 0.846, 1.0])


@given(steps(), st.floats(0, 1))
def test_reinforce_plus_plus_equals_a_naive_version(scored: RolloutBatch, gamma: float) -> None:
    expected = naive_whiten(flat(naive_returns(scored, gamma)))
    assert reinforce_plus_plus(scored, gamma=gamma).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(steps())
def test_reinforce_plus_plus_baseline_equals_a_naive_version(scored: RolloutBatch) -> None:
    scores = [sum(row) for row in naive_rewards(scored)]
    group, tokens = scored.group.tolist(), scored.tokens.tolist()
    means = [statistics.fmean(s for s, h in zip(scores, group, strict=True) if h == g) for g in group]
    expected = naive_whiten(flat([[s - m] * n for s, m, n in zip(scores, means, tokens, strict=True)]))
    found = reinforce_plus_plus_baseline(scored).tolist()
    # Where the scores of each group are equal up to rounding, whitening divides that by epsilon's root.
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)


@given(steps())
def test_remax_equals_a_naive_version(scored: RolloutBatch) -> None:
    assert scored.baselines is not None
    expected = [
        [value - baseline for value in row]
        for row, baseline in zip(naive_returns(scored, 1.0), scored.baselines.tolist(), strict=True)
    ]
    assert remax(scored).tolist() == pytest.approx(flat(expected), rel=1e-6, abs=1e-6)


@given(steps(), st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_its_definition(scored: RolloutBatch, gamma: float, lam: float, seed: int) -> None:
    """A_t = sum over l of (gamma lambda)^l delta_(t + l), rollout by rollout."""
    values = torch.randn(scored.num_targets, generator=torch.Generator().manual_seed(seed))
    expected, start = [], 0
    for row in naive_rewards(scored):
        v = [*values[start : start + len(row)].tolist(), 0.0]
        deltas = [r + gamma * v[t + 1] - v[t] for t, r in enumerate(row)]
        expected += [
            sum((gamma * lam) ** later * d for later, d in enumerate(deltas[t:])) for t in range(len(row))
        ]
        start += len(row)
    found = gae(scored, values, gamma=gamma, lam=lam)
    assert found.advantages.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(found.returns, found.advantages + values.double())


@given(steps(), st.integers(0, 99))
def test_gae_with_lambda_one_returns_the_discounted_rewards(scored: RolloutBatch, seed: int) -> None:
    """For any values of the critic."""
    values = torch.randn(scored.num_targets, generator=torch.Generator().manual_seed(seed))
    returns = gae(scored, values, gamma=0.9, lam=1.0).returns
    torch.testing.assert_close(returns, rewards_to_go(scored.token_rewards(), scored.tokens, gamma=0.9))


@given(st.lists(st.integers(-999, 999), min_size=2, max_size=50).filter(lambda v: len(set(v)) > 1))
def test_whitened_values_have_mean_zero_and_variance_one(values: list[int]) -> None:
    found = whiten(torch.tensor(values, dtype=torch.float64))
    assert float(found.mean()) == pytest.approx(0, abs=1e-9)
    assert float(found.var()) == pytest.approx(1, rel=1e-6)


def test_a_single_value_is_whitened_to_zero() -> None:
    assert whiten(torch.tensor([3.0], dtype=torch.float64)).tolist() == [0]


@given(st.floats(-100, 100, width=32), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_equal_rewards_give_exactly_zero(reward: float, tokens: list[int]) -> None:
    count = len(tokens)
    scored = RolloutBatch(
        torch.full((count,), reward),
        torch.arange(count) % 3,
        torch.tensor(tokens),
        baselines=torch.full((count,), reward),
    )
    assert reinforce_plus_plus(scored, gamma=1.0).count_nonzero() == 0
    assert reinforce_plus_plus_baseline(scored).count_nonzero() == 0
    assert remax(scored).count_nonzero() == 0


def test_remax_without_greedy_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match="greedy"):
        remax(
            RolloutBatch(torch.ones(1), torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
        )
