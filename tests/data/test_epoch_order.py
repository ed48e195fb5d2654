"""Every task once per epoch, in an order that a seed determines and a position resumes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.epoch_order import EpochOrder, epoch_permutation
from strop.errors import DataError

Incomplete = Literal["drop", "keep"]

sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
incompletes: st.SearchStrategy[Incomplete] = st.sampled_from(["drop", "keep"])


def order_of(
    tasks: int, *, incomplete: Incomplete = "drop", seed: int = 1, shuffle: bool = True
) -> EpochOrder:
    return EpochOrder(tasks, seed=seed, shuffle=shuffle, incomplete=incomplete)


@given(sizes, incompletes, st.booleans(), st.integers(0, 2**63))
def test_every_task_at_most_once_per_epoch(
    size: tuple[int, int], incomplete: Incomplete, shuffle: bool, seed: int
) -> None:
    tasks, n = size
    if incomplete == "drop":
        n = min(n, tasks)
    order = order_of(tasks, incomplete=incomplete, shuffle=shuffle, seed=seed)
    for epoch in range(3):
        taken = [order.take(n).tolist() for _ in range(order.steps_per_epoch(n))]
        flat = sorted(index for step in taken for index in step)
        if incomplete == "keep":
            assert flat == list(range(tasks))
            assert [len(step) for step in taken[:-1]] == [n] * (len(taken) - 1)
        else:
            assert len(flat) == len(set(flat)) == tasks // n * n
            assert all(len(step) == n for step in taken)
        assert order.position // tasks in (epoch, epoch + 1)


@given(sizes, incompletes, st.integers(0, 12), st.integers(0, 1000))
def test_a_resumed_order_equals_the_uninterrupted_order(
    size: tuple[int, int], incomplete: Incomplete, done: int, seed: int
) -> None:
    tasks, n = max(size), min(size)
    whole = order_of(tasks, incomplete=incomplete, seed=seed)
    for _ in range(done):
        whole.take(n)
    resumed = order_of(tasks, incomplete=incomplete, seed=seed)
    resumed.position = whole.position
    for _ in range(8):
        assert whole.take(n).tolist() == resumed.take(n).tolist()
        assert whole.position == resumed.position


def test_another_step_size_on_resume_repeats_no_task_within_the_epoch() -> None:
    order = order_of(10)
    taken = [*order.take(4), *order.take(3), *order.take(3)]
    assert sorted(taken) == list(range(10))
    assert order.position == 10


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(epoch_permutation(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    first = order_of(50, seed=3)
    assert [first.take(50).tolist() for _ in range(2)] == [
        epoch_permutation(50, 3, e).tolist() for e in (0, 1)
    ]


def test_the_order_of_a_seed_never_changes() -> None:
    """Checkpoints must resume in later versions of Strop: these are the draws of the first version."""
    assert epoch_permutation(8, seed=1, epoch=0).tolist() == [0, 5, 7, 4, 2, 6, 3, 1]
    assert epoch_permutation(8, seed=1, epoch=1).tolist() == [2, 1, 0, 6, 5, 7, 3, 4]


def test_positions_are_uniformly_distributed() -> None:
    first = np.array([epoch_permutation(4, seed, 0)[0] for seed in range(2000)])
    counts = np.bincount(first, minlength=4)
    assert ((counts - 500) ** 2 / 500).sum() < 16.3, "chi-squared, 3 degrees of freedom, p = 0.001"


def test_without_shuffling_the_order_is_that_of_the_rows() -> None:
    order = order_of(5, shuffle=False, incomplete="keep")
    assert [order.take(2).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_by_hand() -> None:
    drop, keep = order_of(10, shuffle=False), order_of(10, shuffle=False, incomplete="keep")
    assert (drop.steps_per_epoch(4), keep.steps_per_epoch(4)) == (2, 3)
    assert (drop.steps_per_epoch(5), keep.steps_per_epoch(5)) == (2, 2)
    for _ in range(3):
        drop.take(4)
        keep.take(4)
    assert (drop.position, keep.position) == (14, 10)


def test_a_step_larger_than_an_epoch_is_refused() -> None:
    order = order_of(10)
    for refused in (order.take, order.steps_per_epoch):
        with pytest.raises(DataError, match=r"has 10 tasks, too few for one step of 11.*incomplete_batch"):
            refused(11)
    assert order_of(10, incomplete="keep").take(11).size == 10
