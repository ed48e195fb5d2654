"""Advantages with one value per rollout: by hand, against naive versions, and their policy gradient; the weights of
resampling and the overlong penalty."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import logsigmoid

from strop.algorithms.advantages import (
    asymre,
    gpg,
    grpo,
    grpo_passk,
    opmd_log_avg_exp,
    opo,
    preferred,
    raft,
    rloo,
)
from strop.algorithms.algorithm import has_reward_variance, overlong_penalty, resampling_weights
from strop.algorithms.registry import compute_advantages
from strop.config.schema.algorithm import RewardResamplingConfig, SelfPlayConfig
from tests.algorithms.batches import rollouts

EXACT = 1e-12
"""An epsilon that changes nothing."""
STD = 1.5275252
"""Standard deviation of the rewards 1, 3, 0: mean 4/3, squared distances (1 + 25 + 16) / 9 = 42/9, variance 21/9."""
passk = partial(grpo_passk, divide_by_std=False)
mean_baseline = partial(grpo, divide_by_std=False)


@pytest.mark.parametrize(
    ("estimator", "rewards", "group", "expected"),
    [
        # Mean 1/2, squared distances 4 * 1/4 = 1, unbiased variance 1/3, std 0.577350; 0.5 / 0.577350 = 0.866025.
        (partial(grpo, epsilon=EXACT), [1, 0, 0, 1], [0] * 4, [0.8660254, -0.8660254, -0.8660254, 0.8660254]),
        # The mean is 1; no division. It is OPMD with its mean baseline, too.
        (mean_baseline, [3, 0, 0], [0] * 3, [2, -1, -1]),
        # Epsilon is added to the std, sqrt(2): 1 / (1.414214 + 0.585786) = 1/2.
        (partial(grpo, epsilon=2 - math.sqrt(2)), [0, 2], [0, 0], [-0.5, 0.5]),
        # The standard deviation of the step: mean 3, squared distances 9, 1, 1 and 9, over 3.
        (
            partial(grpo, std_over="step", epsilon=EXACT),
            [0, 2, 4, 6],
            [0, 0, 1, 1],
            [each / math.sqrt(20 / 3) for each in (-1, 1, -1, 1)],
        ),
        # With one other (k = 2), drawn from two: 3 adds 3 - 1 or 3 - 0, 2.5 on average; 1 adds 0 to the 3 and 1 to the
        # 0, 0.5 on average; 0 adds nothing. With both others (k = 3) only the best adds something: 3 - 1. There are no
        # more than two others.
        (partial(passk, k=2), [1, 3, 0], [0] * 3, [0.5, 2.5, 0]),
        (partial(passk, k=3), [1, 3, 0], [0] * 3, [0, 2, 0]),
        (partial(passk, k=9), [1, 3, 0], [0] * 3, [0, 2, 0]),
        (partial(grpo_passk, k=2, epsilon=EXACT), [1, 3, 0], [0] * 3, [0.5 / STD, 2.5 / STD, 0]),
        (partial(grpo_passk, k=9, epsilon=EXACT), [1, 3, 0], [0] * 3, [0, 2 / STD, 0]),
        # The others' mean is 0 for the first, and 3/2 for the rest.
        (rloo, [3, 0, 0], [0] * 3, [3, -1.5, -1.5]),
        # Lengths 1 and 3: baseline (1 * 1 + 3 * 0) / 4 = 1/4.
        (partial(opo, tokens=torch.tensor([1, 3])), [1, 0], [0, 0], [0.75, -0.25]),
        # Four answers, two of them in a group where all are right: alpha = 4 / (4 - 2) = 2.
        (gpg, [1, 1, 0, 1], [0, 7, 0, 7], [1, 0, -1, 0]),
        (gpg, [1] * 4, [0] * 4, [0] * 4),
        # Three of four are not 0; two are in a group with a signal.
        (partial(gpg, scale="signal"), [1, 0, 1, 1], [0, 0, 7, 7], [1, -1, 0, 0]),
        (partial(gpg, scale="nonzero"), [1, 0, 1, 1], [0, 0, 7, 7], [2 / 3, -2 / 3, 0, 0]),
        (partial(gpg, scale="none"), [1, 0, 1, 1], [0, 0, 7, 7], [0.5, -0.5, 0, 0]),
        (partial(gpg, scale="nonzero"), [0] * 4, [0, 0, 7, 7], [0] * 4),
        # Tau 1: mean exp is (1 + 3) / 2 = 2, and the baseline log 2. Twice the rewards and twice the tau: twice the
        # advantages. The baseline goes from the mean to the highest.
        (partial(opmd_log_avg_exp, tau=1), [0, math.log(3)], [0, 0], [-math.log(2), math.log(1.5)]),
        (
            partial(opmd_log_avg_exp, tau=2),
            [0, 2 * math.log(3)],
            [0, 0],
            [-2 * math.log(2), 2 * math.log(1.5)],
        ),
        (partial(opmd_log_avg_exp, tau=1e7), [0, 1, 5], [0] * 3, [-2, -1, 3]),
        (partial(opmd_log_avg_exp, tau=1e-7), [0, 1, 5], [0] * 3, [-5, -4, 0]),
        (partial(asymre, baseline_shift=-0.1), [1, 0, 0.5], [0, 0, 1], [0.6, -0.4, 0.1]),
        # Online DPO: beta n / 2 for the first of the highest reward, and minus it for the first of the lowest, with
        # beta 0.5 and n responses; within each group.
        (partial(preferred, beta=0.5), [1, 0], [0, 0], [0.5, -0.5]),
        (partial(preferred, beta=0.5), [0, 1], [0, 0], [-0.5, 0.5]),
        (partial(preferred, beta=0.5), [1, 1], [0, 0], [0, 0]),
        (partial(preferred, beta=0.5, train_ties=True), [1, 1], [0, 0], [0.5, -0.5]),
        (partial(preferred, beta=0.5), [0, 2, 2, -1], [0] * 4, [0, 1, 0, -1]),
        (partial(preferred, beta=0.5, train_ties=True), [0, 0, 1], [0] * 3, [-0.75, 0, 0.75]),
        (partial(preferred, beta=0.1), [5, 1, 4, 2], [0, 1, 0, 1], [0.1, -0.1, -0.1, 0.1]),
    ],
)
def test_by_hand(estimator, rewards, group, expected):
    found = estimator(torch.tensor(rewards, dtype=torch.float32), torch.tensor(group))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_raft_imitates_all_or_the_successes() -> None:
    assert raft(torch.tensor([1.0, 0]), min_reward=None).tolist() == [1, 1]
    assert raft(torch.tensor([1.0, 0.5, 0]), min_reward=0.5).tolist() == [1, 1, 0]


FIRST, STEP = math.log((math.e + 1) / 2), math.log((3 * math.e + 1) / 4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [1 - FIRST, -FIRST, 0, 0]), ({"baseline_over": "step"}, [1 - STEP, -STEP, 1 - STEP, 1 - STEP])],
)
def test_the_baseline_of_self_play_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    """Eta 1: the logarithm of the mean of e, 1 | e, e for the groups, or of all four for the step."""
    scored = rollouts([1, 0, 1, 1], [1] * 4, [0, 0, 1, 1])
    found = compute_advantages(SelfPlayConfig(**settings), scored, max_response_tokens=4).advantages
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


ESTIMATORS: dict[str, Callable[..., torch.Tensor]] = {
    "grpo": lambda r, g, _: grpo(r, g),
    "grpo without std": lambda r, g, _: mean_baseline(r, g),
    "grpo_passk, k 3": lambda r, g, _: grpo_passk(r, g, k=3),
    "grpo_passk without std": lambda r, g, _: passk(r, g, k=2),
    "rloo": lambda r, g, _: rloo(r, g),
    "opo": opo,
    "gpg": lambda r, g, _: gpg(r, g),
    "opmd log-avg-exp": lambda r, g, _: opmd_log_avg_exp(r, g, tau=0.7),
}
"""Advantages as a function of rewards, group and lengths."""
Rollouts = list[tuple[float, int, int]]


def naive(name: str, mates: Rollouts, mine: int, batch: Rollouts) -> float:
    """The definition of one rollout's advantage in plain Python; `mates` are its group, it included."""
    rewards = [r for r, _, _ in mates]
    reward, others = rewards[mine], rewards[:mine] + rewards[mine + 1 :]
    if not others:
        return 0.0
    std = 1.0 if "without" in name else statistics.stdev(rewards) + 1e-6
    match name.split(",")[0].split(" ")[0]:
        case "grpo":
            return (reward - statistics.fmean(rewards)) / std
        case "grpo_passk":
            k = min(2 if "without" in name else 3, len(rewards))
            gains = [max(reward, *rest) - max(rest) for rest in itertools.combinations(others, k - 1)]
            return statistics.fmean(gains) / std
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


@pytest.mark.parametrize("name", ESTIMATORS)
@given(
    st.lists(
        # Rewards have eight binary places, so that rounding does not decide which of two is higher.
        st.tuples(st.integers(-2560, 2560).map(lambda r: r / 256), st.integers(0, 5), st.integers(1, 9)),
        min_size=1,
        max_size=40,
    )
)
def test_equals_a_naive_version(name: str, of: Rollouts) -> None:
    found = ESTIMATORS[name](*map(torch.tensor, zip(*of, strict=True))).tolist()
    for i, (_, number, _) in enumerate(of):
        places = [j for j, (_, g, _) in enumerate(of) if g == number]
        expected = naive(name, [of[j] for j in places], places.index(i), of)
        assert found[i] == pytest.approx(expected, rel=1e-6, abs=1e-7)


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
        advantages = ESTIMATORS[name](worth[drawn], torch.zeros(3, dtype=torch.int64), torch.ones(3))
        surrogate = surrogate + logprobs[drawn].sum().exp().detach() * (advantages * logprobs[drawn]).mean()
    (estimated,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(estimated, share * exact)


@pytest.mark.parametrize("size", [2, 4])
def test_the_gradient_of_online_dpo_is_that_of_dpo_at_the_reference(size: int) -> None:
    """Oracle: autograd of the mean over groups of -log sigmoid(beta (chosen - rejected)), at the reference."""
    torch.manual_seed(0)
    reference, rewards = torch.randn(3 * size, dtype=torch.float64), torch.randn(3 * size)
    logprob = reference.clone().requires_grad_()
    gains = (logprob - reference).view(3, size)
    best, worst = (
        index[:, None] for index in (rewards.view(3, size).argmax(1), rewards.view(3, size).argmin(1))
    )
    margins = gains.gather(1, best) - gains.gather(1, worst)
    (expected,) = torch.autograd.grad(-logsigmoid(0.3 * margins).mean(), logprob)
    group = torch.arange(3).repeat_interleave(size)
    (found,) = torch.autograd.grad(-(preferred(rewards, group, beta=0.3) * logprob).mean(), logprob)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([], False), ([1.0], False), ([0.0, 0.0], False), ([1.0, 1.0, 1.0], False), ([0.0, 1.0], True)],
)
def test_which_groups_have_reward_variance(rewards: list[float], expected: bool) -> None:
    assert has_reward_variance(rewards) is expected


@pytest.mark.parametrize(
    ("rewards", "section", "weights"),
    [
        ([2, -1, 0, 2], {}, [4, 1, 0, 4]),
        ([2, -1, 0, 2], {"power": 1}, [2, 1, 0, 2]),
        ([2, -1, 0, 2], {"method": "max_min"}, [1, 1, 0, 1]),
        ([2, -1, 0, 2], {"method": "max_random"}, [0.4, 0.1, 0.1, 0.4]),
        ([0, 0, 0, 0], {}, [1, 1, 1, 1]),
    ],
)
def test_pf_ppo_draws_rollouts_by_their_rewards(rewards, section, weights):
    found = resampling_weights(torch.tensor(rewards), RewardResamplingConfig(**section))
    assert found.tolist() == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-7)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_overlong_penalty_by_hand(factor: float) -> None:
    """A limit of 100 with a buffer of 20: free up to 80, and -factor at 100 and above (several turns)."""
    lengths = torch.tensor([1, 80, 81, 90, 100, 250])
    found = overlong_penalty(lengths, max_response_tokens=100, buffer_tokens=20, factor=factor)
    assert found.tolist() == pytest.approx([-factor * each for each in (0, 0, 0.05, 0.5, 1, 1)])
