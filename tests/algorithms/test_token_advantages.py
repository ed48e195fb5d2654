"""Advantages with one value per token or turn, and their input: by hand, and against naive implementations."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import (
    gae,
    gdpo,
    gigpo,
    logit_gradient_norms,
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
    whiten,
)
from strop.algorithms.algorithm import RolloutBatch
from strop.algorithms.process_rewards import implicit_rewards, prime
from strop.run.optimize.advantage_inputs import make_rollout_batch
from tests.algorithms.batches import make_rollouts, rollouts
from tests.models.models import experience

some_rollouts = st.integers(0, 2**32).map(make_rollouts)
GOOD: dict[str, Any] = {
    "rewards": torch.tensor([1.0, 2]),
    "group": torch.tensor([5, 5]),
    "tokens": torch.tensor([1, 2]),
    "kl_penalties": torch.tensor([0.5, 0.25, 0.125]),
    "baselines": torch.tensor([0.0, 1]),
}


def test_rewards_of_tokens_by_hand() -> None:
    """A reward is at the last target, except the part that was earned before; penalties are at their targets."""
    scored = RolloutBatch(**GOOD)
    assert scored.num_targets == 3
    assert scored.penalized_rewards().tolist() == [1 - 0.5, 2 - 0.25 - 0.125]
    assert scored.token_rewards().tolist() == [1 - 0.5, -0.25, 2 - 0.125]
    assert scored.expand_to_tokens(torch.tensor([7, 8])).tolist() == [7, 8, 8]
    plain = replace(scored, kl_penalties=None)
    assert plain.penalized_rewards().tolist() == [1, 2]
    assert plain.token_rewards().tolist() == [1, 0, 2]
    earned = replace(plain, intermediate_rewards=torch.tensor([0.0, 0.5, 0]))
    assert earned.token_rewards().tolist() == [1, 0.5, 1.5]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rewards": torch.tensor([1.0, math.nan])}, "rewards must be finite"),
        ({"rewards": torch.tensor([1.0, math.inf])}, "rewards must be finite"),
        ({"rewards": torch.ones(2, 1)}, "differ"),
        ({"kl_penalties": torch.tensor([0.5, math.nan, 0])}, "kl_penalties must be finite"),
        ({"baselines": torch.tensor([0.5, math.nan])}, "baselines must be finite"),
        ({"reward_parts": torch.tensor([[0.5], [math.inf]])}, "reward_parts must be finite"),
        ({"gradient_norms": torch.tensor([0, math.inf, 0])}, "gradient_norms must be finite"),
        ({"process_rewards": torch.tensor([0, math.inf, 0])}, "process_rewards must be finite"),
        ({"intermediate_rewards": torch.tensor([0, math.inf, 0])}, "intermediate_rewards must be finite"),
        ({"kl_penalties": torch.zeros(2)}, r"kl_penalties \(2,\) must be \[3\]"),
        ({"gradient_norms": torch.zeros(2)}, r"gradient_norms \(2,\) must be \[3\]"),
        ({"process_rewards": torch.zeros(2)}, r"process_rewards \(2,\) must be \[3\]"),
        ({"intermediate_rewards": torch.zeros(2)}, r"intermediate_rewards \(2,\) must be \[3\]"),
        ({"turns": torch.zeros(2, dtype=torch.int64)}, r"turns \(2,\) must be \[3\]"),
        ({"reward_parts": torch.zeros(3, 2)}, r"reward_parts \(3, 2\) must have 2 rows"),
        ({"group": torch.zeros(3, dtype=torch.int64)}, "group"),
        ({"baselines": torch.zeros(3)}, "baselines"),
        ({"sequences": torch.ones(3)}, "sequences"),
        ({"tokens": torch.tensor([3, 0])}, "at least one target"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, dict) else "",
)
def test_inconsistent_batches_are_refused(wrong: dict[str, torch.Tensor], said: str) -> None:
    RolloutBatch(**(GOOD | {"turns": torch.zeros(3, dtype=torch.int64)}))
    with pytest.raises(ValueError, match=said):
        RolloutBatch(**(GOOD | wrong))


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (remax, "greedy"),
        (optimal_token_baseline, "gradient_norms"),
        (lambda scored: gdpo(scored, weights=[1]), "reward_parts"),
    ],
)
def test_a_missing_input_is_reported(estimator: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimator(rollouts([0], [1]))


def test_gdpo_by_hand() -> None:
    """Two rollouts, of two and of three tokens: accuracy 1 and 0, format 0 and 10, which the group's statistics put
    on one scale; format has half the weight, so that accuracy decides."""
    scored = rollouts([0, 0], [2, 3], reward_parts=[[1, 0], [0, 10]])
    # Both rollouts have +-0.5 / sqrt(2); over five tokens, the mean is 1/5 of the difference below the middle.
    plus, minus = 0.6 * math.sqrt(10 / 3), -0.4 * math.sqrt(10 / 3)
    found = gdpo(scored, weights=[1, 0.5], epsilon=1e-12)
    assert found.tolist() == pytest.approx([plus, plus, minus, minus, minus], rel=1e-6)


def test_gdpo_compares_a_part_among_the_rollouts_that_have_it() -> None:
    """The second part is that of the first two rollouts alone; the third has the advantage 0 for it."""
    nan = math.nan
    scored = rollouts([0, 0, 0], [1, 1, 1], reward_parts=[[1, 0], [0, 10], [0.5, nan]])
    alone = rollouts([0, 0, 0], [1, 1, 1], reward_parts=[[1, 0], [0, 10], [0.5, 5]])
    found = gdpo(scored, weights=[0, 1], epsilon=1e-12)
    assert found[2].item() == pytest.approx(0) and found[0].item() == pytest.approx(-found[1].item())
    assert torch.equal(gdpo(scored, weights=[1, 0]), gdpo(alone, weights=[1, 0]))


def test_optimal_token_baseline_by_hand() -> None:
    """Rewards 1 and 0; the first has two tokens of norms 1 and 2, the second three of norms 3, 1 and 1.

    Token 1: (1 * 1 + 0 * 3) / 4 = 1/4; token 2: (1 * 3 + 0 * 4) / 7 = 3/7; token 3 has the second rollout only.
    """
    scored = rollouts([1, 0], [2, 3], gradient_norms=[1, 2, 3, 1, 1])
    expected = [3 / 4, 4 / 7, -1 / 4, -3 / 7, 0]
    assert optimal_token_baseline(scored).tolist() == pytest.approx(expected, abs=1e-6)
    longest = replace(scored, rewards=torch.tensor([0.0, 1.0]))
    assert optimal_token_baseline(longest)[-1].item() == 1, "without another response there is no baseline"


@given(some_rollouts)
def test_optimal_token_baseline_equals_its_definition(scored: RolloutBatch) -> None:
    found = optimal_token_baseline(scored).tolist()
    assert scored.gradient_norms is not None
    rewards, norms = scored.token_rewards().tolist(), scored.gradient_norms
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


@given(some_rollouts, st.sampled_from([None, [1.0, 1.0], [0.5, 2.0]]))
def test_gdpo_equals_its_definition(scored: RolloutBatch, weights: list[float] | None) -> None:
    assert scored.reward_parts is not None
    group, tokens = scored.group.tolist(), scored.tokens.tolist()
    sums = [0.0] * len(group)
    for weight, part in zip(weights or [1.0, 1.0], scored.reward_parts.T.tolist(), strict=True):
        for i, value in enumerate(part):
            same = [other for other, number in zip(part, group, strict=True) if number == group[i]]
            deviation = statistics.stdev(same) if len(same) > 1 else 0.0
            sums[i] += weight * (value - statistics.mean(same)) / (deviation + 1e-6)
    expected = naive_whiten([value for value, count in zip(sums, tokens, strict=True) for _ in range(count)])
    assert gdpo(scored, weights=weights).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def naive_rewards(scored: RolloutBatch) -> list[list[float]]:
    """Per rollout: what each token earned minus its penalty, and the rest of the reward at the last."""
    assert scored.kl_penalties is not None
    earned = [0.0] * scored.num_targets
    if scored.intermediate_rewards is not None:
        earned = scored.intermediate_rewards.tolist()
    rewards = []
    numbers = iter(zip(earned, scored.kl_penalties.tolist(), strict=True))
    for reward, tokens in zip(scored.rewards.tolist(), scored.tokens.tolist(), strict=True):
        row = [next(numbers) for _ in range(tokens)]
        rewards.append([part - penalty for part, penalty in row])
        rewards[-1][-1] += reward - sum(part for part, _ in row)
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


TWO = rollouts([1, 0], [2, 1], kl_penalties=[0.1, 0.2, 0.3], baselines=[0.5, 0.25])
"""Token rewards -0.1, 0.8 and -0.3."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # gamma 0.5: returns -0.1 + 0.5 * 0.8 = 0.3, then 0.8, and -0.3. Mean 0.8 / 3 = 0.266667;
        # distances 0.033333, 0.533333, -0.566667; squares sum to 0.606667, over 2 is 0.303333; std 0.550757.
        (reinforce_plus_plus(TWO, gamma=0.5), [0.060523, 0.968364, -1.028887]),
        # Scores 1 - 0.1 - 0.2 = 0.7 and 0 - 0.3 = -0.3, group mean 0.2: 0.5, 0.5 and -0.5 for the tokens.
        # Their mean is 1/6, distances 1/3, 1/3, -2/3, squares sum to 6/9, over 2 is 1/3; std 0.577350.
        (reinforce_plus_plus_baseline(TWO), [0.577350, 0.577350, -1.154701]),
        # Returns 0.7, 0.8 and -0.3, less 0.5, 0.5 and 0.25.
        (remax(TWO), [0.2, 0.3, -0.55]),
    ],
    ids=["reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"],
)
def test_by_hand(found: torch.Tensor, expected: list[float]) -> None:
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_gae_by_hand() -> None:
    # gamma 0.9, lambda 0.8; reward 1 at the end; values 0.5, 0.6, 0.7.
    # delta_2 = 1 - 0.7 = 0.3, delta_1 = 0.9 * 0.7 - 0.6 = 0.03, delta_0 = 0.9 * 0.6 - 0.5 = 0.04.
    # A_2 = 0.3, A_1 = 0.03 + 0.72 * 0.3 = 0.246, A_0 = 0.04 + 0.72 * 0.246 = 0.21712.
    found = gae(rollouts([1], [3]), torch.tensor([0.5, 0.6, 0.7]), gamma=0.9, lam=0.8)
    assert found.advantages.tolist() == pytest.approx([0.21712, 0.246, 0.3])
    assert found.returns.tolist() == pytest.approx([0.71712, 0.846, 1.0])


@given(some_rollouts, st.floats(0, 1))
def test_reinforce_plus_plus_equals_a_naive_version(scored: RolloutBatch, gamma: float) -> None:
    expected = naive_whiten(flat(naive_returns(scored, gamma)))
    assert reinforce_plus_plus(scored, gamma=gamma).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(some_rollouts)
def test_reinforce_plus_plus_baseline_equals_a_naive_version(scored: RolloutBatch) -> None:
    scores = [sum(row) for row in naive_rewards(scored)]
    group, tokens = scored.group.tolist(), scored.tokens.tolist()
    means = [statistics.fmean(s for s, h in zip(scores, group, strict=True) if h == g) for g in group]
    expected = naive_whiten(flat([[s - m] * n for s, m, n in zip(scores, means, tokens, strict=True)]))
    found = reinforce_plus_plus_baseline(scored).tolist()
    # Where the scores of each group are equal up to rounding, whitening divides that by epsilon's root.
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)


@given(some_rollouts)
def test_remax_equals_a_naive_version(scored: RolloutBatch) -> None:
    assert scored.baselines is not None
    expected = [
        [value - baseline for value in row]
        for row, baseline in zip(naive_returns(scored, 1.0), scored.baselines.tolist(), strict=True)
    ]
    assert remax(scored).tolist() == pytest.approx(flat(expected), rel=1e-6, abs=1e-6)


@given(some_rollouts, st.floats(0, 1), st.floats(0, 1), st.integers(0, 99))
def test_gae_equals_its_definition(scored: RolloutBatch, gamma: float, lam: float, seed: int) -> None:
    """A_t = sum over l of (gamma lambda)^l delta_(t + l), rollout by rollout; with lambda 1, returns are the discounted
    rewards for any values of the critic."""
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
    returns = gae(scored, values, gamma=gamma, lam=1.0).returns
    torch.testing.assert_close(returns, rewards_to_go(scored.token_rewards(), scored.tokens, gamma=gamma))


@given(st.lists(st.integers(-999, 999), min_size=2, max_size=50).filter(lambda v: len(set(v)) > 1))
def test_whitened_values_have_mean_zero_and_variance_one(values: list[int]) -> None:
    found = whiten(torch.tensor(values, dtype=torch.float64))
    assert float(found.mean()) == pytest.approx(0, abs=1e-9)
    assert float(found.var()) == pytest.approx(1, rel=1e-6)


def test_a_single_value_is_whitened_to_zero() -> None:
    assert whiten(torch.tensor([3.0], dtype=torch.float64)).tolist() == [0]


# Two rollouts of one task with two turns each, of 2 + 1 and 1 + 2 tokens, and one rollout of another task.
# Both begin in state 0; then the first is in state 1, the second in state 0 again. The third's state is 0, too.
TURNS = rollouts(
    [3, 1, 8],
    [3, 3, 1],
    [0, 0, 1],
    intermediate_rewards=[0, 1, 0, 0, 0, 0, 0],
    turns=[0, 0, 1, 2, 3, 3, 4],
    turn_states=[0, 1, 0, 0, 0],
)


def test_gigpo_by_hand() -> None:
    """Rollouts: 3 - 2 = 1 and 1 - 2 = -1, and 0 for the one that is alone. Turn rewards 1, 2 | 0, 1 | 8 give, with
    gamma 0.5, the returns 2, 2 | 0.5, 1 | 8. In state 0 of the first task are 2, 0.5 and 1, with the mean 7/6."""
    found = gigpo(TURNS, turn_weight=0.5, gamma=0.5, divide_by_std=False)
    first, third, fourth = (1 + (2 - 7 / 6) / 2, -1 + (0.5 - 7 / 6) / 2, -1 + (1 - 7 / 6) / 2)
    assert found.tolist() == pytest.approx([first, first, 1, third, fourth, fourth, 0])


def test_gigpo_with_states_of_the_whole_step_by_hand() -> None:
    """In state 0 are then 2, 0.5, 1 and 8, with the mean 23/8 and the standard deviation sqrt(37.0625 / 3)."""
    found = gigpo(TURNS, turn_weight=1.0, gamma=0.5, divide_by_std=True, epsilon=1e-12, states_over="step")
    std = (((2 - 2.875) ** 2 + (0.5 - 2.875) ** 2 + (1 - 2.875) ** 2 + (8 - 2.875) ** 2) / 3) ** 0.5
    rollout, turns = 1 / 2**0.5, [(each - 2.875) / std for each in (2, 0.5, 1, 8)]
    expected = [rollout + turns[0]] * 2 + [rollout, turns[1] - rollout, *[turns[2] - rollout] * 2, turns[3]]
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("missing", ["turns", "turn_states"])
def test_gigpo_without_states_raises(missing: str) -> None:
    with pytest.raises(ValueError, match="needs RolloutBatch"):
        gigpo(replace(TURNS, **{missing: None}), turn_weight=1.0, gamma=1.0, divide_by_std=False)


def naive_gigpo(
    scored: RolloutBatch, turn_weight: float, gamma: float, divide_by_std: bool, whole: bool
) -> list[float]:
    """Equations 3 to 9 of arXiv 2505.10978, where each token is a turn. `whole` compares the states of all
    tasks."""

    def normalized(value: float, others: list[float]) -> float:
        mean = statistics.fmean(others)
        std = statistics.stdev(others) + 1e-6 if divide_by_std and len(others) > 1 else 1.0
        return (value - mean) / std

    episodes = [part.tolist() for part in scored.token_rewards().split(scored.tokens.tolist())]
    totals, anchors = defaultdict(list), defaultdict(list)
    states = iter(scored.turn_states.tolist())
    turns = []
    for task, episode in zip(scored.group.tolist(), episodes, strict=True):
        totals[task].append(sum(episode))
        for t in range(len(episode)):
            discounted = sum(gamma**later * reward for later, reward in enumerate(episode[t:]))
            anchor = (None if whole else task, next(states))
            anchors[anchor].append(discounted)
            turns.append((sum(episode), task, discounted, anchor))
    return [
        normalized(total, totals[task]) + turn_weight * normalized(discounted, anchors[anchor])
        for total, task, discounted, anchor in turns
    ]


@pytest.mark.parametrize("gamma", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("divide_by_std", [True, False])
@pytest.mark.parametrize("over", ["group", "step"])
def test_gigpo_is_that_of_the_paper(gamma: float, divide_by_std: bool, over: Any) -> None:
    for seed in range(10):
        scored = make_rollouts(seed)
        found = gigpo(scored, turn_weight=0.3, gamma=gamma, divide_by_std=divide_by_std, states_over=over)
        expected = naive_gigpo(scored, 0.3, gamma, divide_by_std, over == "step")
        assert found.tolist() == pytest.approx(expected, abs=1e-5)


def with_states(mask: str, states: tuple[str, ...] | None) -> Any:
    targets = np.array([letter == "x" for letter in mask])
    return experience([0], [0] * (len(mask) - 1), loss_mask=targets, turn_states=states)


def test_turns_and_states_of_experiences() -> None:
    both = [with_states(".xx.x", ("a", "b")), replace(with_states("..x", ("b",)), id="1", index=1)]
    scored = make_rollout_batch(both)
    assert scored.turns is not None and scored.turn_states is not None
    assert scored.turns.tolist() == [0, 0, 1, 2]
    assert scored.turn_states.tolist() == [0, 1, 1]
    assert make_rollout_batch([both[0], replace(both[1], turn_states=None)]).turns is None
    with pytest.raises(ValueError, match="1 turn_states for 2 contiguous runs"):
        with_states(".x.x", ("a",))


def test_implicit_rewards_by_hand() -> None:
    """beta 0.5; the last token of each rollout has no reward; rewards-to-go 1.5, 1, 0 and -2, 0."""
    ratio, tokens = torch.tensor([1.0, 2.0, 9.0, -4.0, 7.0]), torch.tensor([3, 2])
    plain = implicit_rewards(ratio, tokens, beta=0.5, normalize=False)
    assert plain.tolist() == [0.5, 1.0, 0.0, -2.0, 0.0]
    normalized = implicit_rewards(ratio, tokens, beta=0.5, normalize=True)
    assert normalized.tolist() == pytest.approx([0.25, 0.5, 0.0, -1.0, 0.0], rel=1e-5)


def test_prime_by_hand() -> None:
    """Two rollouts of a group, with 2 and 1 tokens: means 0.5 and 0, outcomes 1 and 0, both weights 1.

    Process: 2 r - 0.5 = (1.5, -0.5) and -0.5; outcome: 2 R - 1 = 1 and -1. Rewards (1.5, 0.5) and -1.5; returns (2,
    0.5) and -1.5, which are whitened.
    """
    batch = rollouts([1, 0], [2, 1], process_rewards=[1, 0, 0])
    expected = whiten(torch.tensor([2.0, 0.5, -1.5], dtype=torch.float64))
    torch.testing.assert_close(prime(batch, outcome_coef=1.0, process_coef=1.0), expected)


def test_prime_without_others_or_process_rewards() -> None:
    batch = rollouts([1], [2], process_rewards=[3, 0])
    assert prime(batch, outcome_coef=5.0, process_coef=5.0).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"RolloutBatch\.process_rewards, which are missing"):
        prime(replace(batch, process_rewards=None), outcome_coef=5.0, process_coef=5.0)


@given(seed=st.integers(0, 100))
def test_prime_is_that_of_verls_recipe(seed: int) -> None:
    """verl-recipe prime/prime_core_algos.py, for one padded batch: each source of reward minus its leave-one-out
    baseline at the tokens that have it, then the sum, the returns, and whitening."""
    random = torch.Generator().manual_seed(seed)
    groups, size, longest = 3, 4, 5
    tokens = torch.randint(1, longest + 1, (groups * size,), generator=random)
    real = torch.arange(longest) < tokens[:, None]
    process = torch.where(real, torch.randn(groups * size, longest, generator=random), 0.0).double()
    outcomes = torch.randint(0, 2, (groups * size,), generator=random).double()

    def leave_one_out(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        means = (values * where).sum(1) / where.sum(1)
        sums = means.view(groups, size).sum(1).repeat_interleave(size)
        return (values * size / (size - 1) - (sums / (size - 1))[:, None]) * where

    last = torch.arange(longest) == tokens[:, None] - 1
    rewards = 2.0 * leave_one_out(process, real) + 3.0 * leave_one_out(outcomes[:, None] * last, last)
    returns = rewards.flip(1).cumsum(1).flip(1)[real]
    expected = (returns - returns.mean()) * torch.rsqrt(returns.var() + 1e-8)
    batch = RolloutBatch(
        rewards=outcomes.float(),
        group=torch.arange(groups).repeat_interleave(size),
        tokens=tokens,
        process_rewards=process[real],
    )
    torch.testing.assert_close(prime(batch, outcome_coef=3.0, process_coef=2.0), expected)
