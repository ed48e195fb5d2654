"""Group relative advantages against hand-worked numbers, a naive version, and their invariants."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.advantages import grpo

rewards_and_groups = st.lists(
    st.tuples(st.floats(-100, 100, width=32), st.integers(0, 5)), min_size=1, max_size=40
)


def tensors(pairs: list[tuple[float, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([r for r, _ in pairs]), torch.tensor([g for _, g in pairs])


def test_by_hand() -> None:
    # Rewards 1, 0, 0, 1: mean 1/2, squared distances 4 * 1/4 = 1, unbiased variance 1/3, std 0.577350.
    # 0.5 / 0.577350 = 0.866025.
    advantages = grpo(torch.tensor([1.0, 0, 0, 1]), torch.zeros(4, dtype=torch.int64), epsilon=1e-12)
    assert advantages.tolist() == pytest.approx([0.8660254, -0.8660254, -0.8660254, 0.8660254])


def test_by_hand_without_std() -> None:
    # Rewards 3, 0, 0: mean 1; no division.
    advantages = grpo(torch.tensor([3.0, 0, 0]), torch.zeros(3, dtype=torch.int64), divide_by_std=False)
    assert advantages.tolist() == [2, -1, -1]


def test_epsilon_is_added_to_the_std() -> None:
    # Rewards 0, 2: std sqrt(2); 1 / (1.414214 + 0.585786) = 1/2.
    advantages = grpo(torch.tensor([0.0, 2]), torch.zeros(2, dtype=torch.int64), epsilon=2 - math.sqrt(2))
    assert advantages.tolist() == pytest.approx([-0.5, 0.5])


def test_a_rollout_alone_in_its_group_teaches_nothing() -> None:
    advantages = grpo(torch.tensor([5.0, 1, 0]), torch.tensor([9, 4, 4]))
    assert advantages[0] == 0
    assert advantages[1] > 0 > advantages[2]


@given(rewards_and_groups, st.booleans())
def test_equals_a_naive_version(pairs: list[tuple[float, int]], divide: bool) -> None:
    rewards, group = tensors(pairs)
    found = grpo(rewards, group, divide_by_std=divide)
    for (reward, number), advantage in zip(pairs, found.tolist(), strict=True):
        mates = [r for r, g in pairs if g == number]
        expected = reward - statistics.fmean(mates)
        if divide:
            expected /= (statistics.stdev(mates) if len(mates) > 1 else 0.0) + 1e-6
        assert advantage == pytest.approx(expected, rel=1e-5, abs=1e-5)


@given(rewards_and_groups, st.booleans())
def test_sums_to_zero_within_each_group(pairs: list[tuple[float, int]], divide: bool) -> None:
    rewards, group = tensors(pairs)
    advantages = grpo(rewards, group, divide_by_std=divide).double()
    for number in group.unique():
        mine = advantages[group == number]
        assert abs(mine.sum()) <= 1e-6 * len(mine) * max(1.0, float(mine.abs().max()))


@given(rewards_and_groups, st.randoms())
def test_order_and_group_numbers_do_not_matter(pairs: list[tuple[float, int]], random: Random) -> None:
    rewards, group = tensors(pairs)
    order = list(range(len(pairs)))
    random.shuffle(order)
    shuffled = grpo(rewards[order], 1000 - 7 * group[order])
    torch.testing.assert_close(shuffled, grpo(rewards, group)[order])


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 64))
def test_equal_rewards_give_exactly_nothing(reward: float, size: int) -> None:
    advantages = grpo(torch.full((size,), reward), torch.zeros(size, dtype=torch.int64))
    assert advantages.count_nonzero() == 0


@given(rewards_and_groups, st.floats(0.5, 8, width=32))
def test_the_scale_of_rewards_drops_out(pairs: list[tuple[float, int]], scale: float) -> None:
    rewards, group = tensors([(round(r), g) for r, g in pairs])
    torch.testing.assert_close(grpo(rewards * scale, group), grpo(rewards, group), rtol=1e-4, atol=1e-4)
