"""Group-baselined advantages: by hand, against naive versions, and what must hold for all of them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import gpg, grpo, grpo_passk, opmd_log_avg_exp, opo, rloo

Estimator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Advantages as a function of rewards, group and lengths."""

ALL: dict[str, Estimator] = {
    "grpo": lambda r, g, _: grpo(r, g),
    "grpo without std": lambda r, g, _: grpo(r, g, divide_by_std=False),
    "grpo_passk, k 3": lambda r, g, _: grpo_passk(r, g, k=3),
    "grpo_passk without std": lambda r, g, _: grpo_passk(r, g, k=2, divide_by_std=False),
    "rloo": lambda r, g, _: rloo(r, g),
    "opo": opo,
    "gpg": lambda r, g, _: gpg(r, g),
    "opmd log-avg-exp": lambda r, g, _: opmd_log_avg_exp(r, g, tau=0.7),
}
each = pytest.mark.parametrize("name", ALL)

# Rewards have eight binary places, so that rounding does not decide which of two is higher.
rollouts = st.lists(
    st.tuples(st.integers(-2560, 2560).map(lambda r: r / 256), st.integers(0, 5), st.integers(1, 9)),
    min_size=1,
    max_size=40,
)
Rollouts = list[tuple[float, int, int]]


def tensors(of: Rollouts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rewards, group, tokens = zip(*of, strict=True)
    return torch.tensor(rewards), torch.tensor(group), torch.tensor(tokens)


ONE_GROUP = torch.zeros(4, dtype=torch.int64)


def test_grpo_by_hand() -> None:
    # Rewards 1, 0, 0, 1: mean 1/2, squared distances 4 * 1/4 = 1, unbiased variance 1/3, std 0.577350.
    # 0.5 / 0.577350 = 0.866025.
    advantages = grpo(torch.tensor([1.0, 0, 0, 1]), ONE_GROUP, epsilon=1e-12)
    assert advantages.tolist() == pytest.approx([0.8660254, -0.8660254, -0.8660254, 0.8660254])


def test_grpo_without_std_by_hand() -> None:
    # Rewards 3, 0, 0: mean 1; no division. It is OPMD with its mean baseline, too.
    advantages = grpo(torch.tensor([3.0, 0, 0]), ONE_GROUP[:3], divide_by_std=False)
    assert advantages.tolist() == [2, -1, -1]


def test_epsilon_is_added_to_the_std() -> None:
    # Rewards 0, 2: std sqrt(2); 1 / (1.414214 + 0.585786) = 1/2.
    advantages = grpo(torch.tensor([0.0, 2]), ONE_GROUP[:2], epsilon=2 - math.sqrt(2))
    assert advantages.tolist() == pytest.approx([-0.5, 0.5])


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        # Rewards 1, 3, 0. With one other (k = 2), drawn from two: 3 adds 3 - 1 or 3 - 0, 2.5 on
        # average; 1 adds 0 to the 3 and 1 to the 0, 0.5 on average; 0 adds nothing.
        (2, [0.5, 2.5, 0]),
        # With both others (k = 3) only the best adds something: 3 - 1.
        (3, [0, 2, 0]),
        # There are no more than two others.
        (9, [0, 2, 0]),
    ],
)
def test_grpo_passk_by_hand(k: int, expected: list[float]) -> None:
    rewards = torch.tensor([1.0, 3, 0])
    assert grpo_passk(rewards, ONE_GROUP[:3], k=k, divide_by_std=False).tolist() == pytest.approx(expected)
    # Mean 4/3, squared distances (1 + 25 + 16) / 9 = 42/9, variance 21/9, std 1.527525.
    divided = grpo_passk(rewards, ONE_GROUP[:3], k=k, epsilon=1e-12)
    assert divided.tolist() == pytest.approx([e / 1.5275252 for e in expected])


def test_rloo_by_hand() -> None:
    # Rewards 3, 0, 0: the others' mean is 0 for the first, and 3/2 for the rest.
    assert rloo(torch.tensor([3.0, 0, 0]), ONE_GROUP[:3]).tolist() == [3, -1.5, -1.5]


def test_opo_by_hand() -> None:
    # Rewards 1 and 0 of lengths 1 and 3: baseline (1 * 1 + 3 * 0) / 4 = 1/4.
    advantages = opo(torch.tensor([1.0, 0]), ONE_GROUP[:2], torch.tensor([1, 3]))
    assert advantages.tolist() == [0.75, -0.25]


def test_gpg_scales_by_hand() -> None:
    """Rewards 1, 0 and 1, 1: three of four are not 0; two are in a group with a signal."""
    rewards, group = torch.tensor([1.0, 0, 1, 1]), torch.tensor([0, 0, 7, 7])
    assert gpg(rewards, group, scale="signal").tolist() == [1, -1, 0, 0]
    assert gpg(rewards, group, scale="nonzero").tolist() == pytest.approx([2 / 3, -2 / 3, 0, 0])
    assert gpg(rewards, group, scale="none").tolist() == [0.5, -0.5, 0, 0]
    assert gpg(torch.zeros(4), group, scale="nonzero").tolist() == [0, 0, 0, 0]


def test_gpg_by_hand() -> None:
    # Four answers, two of them in a group where all are right: alpha = 4 / (4 - 2) = 2.
    advantages = gpg(torch.tensor([1.0, 1, 0, 1]), torch.tensor([0, 7, 0, 7]))
    assert advantages.tolist() == [1, 0, -1, 0]
    assert gpg(torch.ones(4), ONE_GROUP).tolist() == [0, 0, 0, 0]


def test_opmd_log_avg_exp_by_hand() -> None:
    # Rewards 0 and log 3, tau 1: mean exp is (1 + 3) / 2 = 2, and the baseline log 2.
    advantages = opmd_log_avg_exp(torch.tensor([0, math.log(3)]), ONE_GROUP[:2], tau=1.0)
    assert advantages.tolist() == pytest.approx([-math.log(2), math.log(1.5)])
    # Twice the rewards and twice the tau: twice the advantages.
    doubled = opmd_log_avg_exp(torch.tensor([0, 2 * math.log(3)]), ONE_GROUP[:2], tau=2.0)
    assert doubled.tolist() == pytest.approx([-2 * math.log(2), 2 * math.log(1.5)])


def test_opmds_baseline_goes_from_the_mean_to_the_highest() -> None:
    rewards = torch.tensor([0.0, 1, 5])
    near_mean = opmd_log_avg_exp(rewards, ONE_GROUP[:3], tau=1e6)
    assert near_mean.tolist() == pytest.approx([-2, -1, 3], abs=1e-4)
    near_highest = opmd_log_avg_exp(rewards, ONE_GROUP[:3], tau=1e-3)
    assert near_highest.tolist() == pytest.approx([-5, -4, 0], abs=2e-3)


def naive(name: str, mates: Rollouts, mine: int, batch: Rollouts) -> float:
    """The definition of one rollout's advantage in plain Python; `mates` are its group, it included."""
    rewards = [r for r, _, _ in mates]
    reward, others = rewards[mine], rewards[:mine] + rewards[mine + 1 :]
    std = statistics.stdev(rewards) + 1e-6 if others else 1.0
    if not others:
        return 0.0
    match name.split(",")[0].split(" ")[0]:
        case "grpo":
            return (reward - statistics.fmean(rewards)) / (1.0 if "without" in name else std)
        case "grpo_passk":
            k = min(2 if "without" in name else 3, len(rewards))
            gains = [max(reward, *rest) - max(rest) for rest in itertools.combinations(others, k - 1)]
            return statistics.fmean(gains) / (1.0 if "without" in name else std)
        case "rloo":
            return reward - statistics.fmean(others)
        case "opo":
            return reward - sum(r * n for r, _, n in mates) / sum(n for _, _, n in mates)
        case "gpg":
            constant = [len({r for r, h, _ in batch if h == g}) == 1 for _, g, _ in batch]
            alpha = len(batch) / max(1, len(batch) - sum(constant))
            return alpha * (reward - statistics.fmean(rewards))
        case _:
            return reward - 0.7 * math.log(statistics.fmean(math.exp(r / 0.7) for r in rewards))


@each
@given(rollouts)
def test_equals_a_naive_version(name: str, of: Rollouts) -> None:
    found = ALL[name](*tensors(of)).tolist()
    for i, (_, number, _) in enumerate(of):
        places = [j for j, (_, g, _) in enumerate(of) if g == number]
        expected = naive(name, [of[j] for j in places], places.index(i), of)
        assert found[i] == pytest.approx(expected, rel=1e-6, abs=1e-7)


@each
@given(rollouts, st.randoms())
def test_order_and_group_numbers_do_not_matter(name: str, of: Rollouts, random: Random) -> None:
    rewards, group, tokens = tensors(of)
    order = list(range(len(of)))
    random.shuffle(order)
    shuffled = ALL[name](rewards[order], 1000 - 7 * group[order], tokens[order])
    torch.testing.assert_close(shuffled, ALL[name](rewards, group, tokens)[order])


@each
@given(st.floats(-1e6, 1e6, width=32), st.lists(st.integers(1, 4000), min_size=1, max_size=64))
def test_equal_rewards_give_exactly_zero(name: str, reward: float, lengths: list[int]) -> None:
    rewards = torch.full((len(lengths),), reward)
    advantages = ALL[name](rewards, torch.zeros(len(lengths), dtype=torch.int64), torch.tensor(lengths))
    assert advantages.count_nonzero() == 0


@each
def test_a_rollout_alone_in_its_group_teaches_nothing(name: str) -> None:
    advantages = ALL[name](torch.tensor([5.0, 1, 0]), torch.tensor([9, 4, 4]), torch.tensor([3, 1, 2]))
    assert advantages[0] == 0
    assert advantages[1] > advantages[2]


@pytest.mark.parametrize("name", ["grpo", "grpo without std", "rloo", "gpg"])
@given(rollouts)
def test_sums_to_zero_within_each_group(name: str, of: Rollouts) -> None:
    rewards, group, tokens = tensors(of)
    advantages = ALL[name](rewards, group, tokens)
    for number in group.unique():
        mine = advantages[group == number]
        assert abs(mine.sum()) <= 1e-9 * len(mine) * max(1.0, float(mine.abs().max()))


@given(rollouts)
def test_opos_sum_to_zero_when_weighted_by_length(of: Rollouts) -> None:
    rewards, group, tokens = tensors(of)
    weighted = tokens * opo(rewards, group, tokens)
    for number in group.unique():
        assert float(weighted[group == number].sum()) == pytest.approx(0, abs=1e-9)


@given(rollouts)
def test_opmds_exponentials_have_mean_one(of: Rollouts) -> None:
    rewards, group, _ = tensors(of)
    exponentials = (opmd_log_avg_exp(rewards, group, tau=0.7) / 0.7).exp()
    for number in group.unique():
        assert float(exponentials[group == number].mean()) == pytest.approx(1)


@given(rollouts, st.floats(0.5, 8, width=32))
def test_grpo_has_no_scale(of: Rollouts, scale: float) -> None:
    rewards, group, _ = tensors([(round(r), g, n) for r, g, n in of])
    torch.testing.assert_close(grpo(rewards * scale, group), grpo(rewards, group), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "best_of", "share"),
    [
        ("rloo", 1, 1.0),
        ("grpo without std", 1, 2 / 3),  # (n - 1) / n, for a mean that has the answer itself in it
        ("grpo_passk without std", 2, 1 / 2),  # 1 / k
    ],
)
def test_the_gradient_is_that_of_the_expected_best(name: str, best_of: int, share: float) -> None:
    """Over all 4^3 groups that a policy of four answers can give: E[mean of A grad log pi]."""
    logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
    worth = torch.tensor([0.0, 1, 0.25, 3], dtype=torch.float64)
    logprobs = logits.log_softmax(0)

    expected_best = sum(
        logprobs[list(drawn)].sum().exp() * worth[list(drawn)].max()
        for drawn in itertools.product(range(4), repeat=best_of)
    )
    (exact,) = torch.autograd.grad(expected_best, logits, retain_graph=True)
    surrogate = torch.zeros((), dtype=torch.float64)
    for drawn in map(list, itertools.product(range(4), repeat=3)):
        advantages = ALL[name](worth[drawn], ONE_GROUP[:3], torch.ones(3))
        surrogate = surrogate + logprobs[drawn].sum().exp().detach() * (advantages * logprobs[drawn]).mean()
    (estimated,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(estimated, share * exact)
