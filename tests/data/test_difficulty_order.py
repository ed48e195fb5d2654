"""The order by estimated difficulty, worked by hand from the formulas of BOTS (arXiv 2510.26374)."""

from __future__ import annotations

import json
from collections import Counter
from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.config.schema.task_order import DifficultyOrderConfig
from strop.data.difficulty import DifficultyOrder
from strop.data.epoch_order import TaskOutcome, epoch_permutation
from strop.data.taskset import TaskSet, load_taskset
from strop.errors import DataError
from tests.data.conftest import WriteLines

REFERENCES = [[0.0, 1.0], [0.2, 0.8], [0.5, 0.9], [0.0, 0.2]]


def difficulty(
    references: list[list[float]] = REFERENCES, *, shuffle: bool = False, **section: Any
) -> DifficultyOrder:
    config = DifficultyOrderConfig(columns=("weak", "strong"), **section)
    return DifficultyOrder(np.array(references), config, seed=5, shuffle=shuffle)


def by_hand(**section: Any) -> DifficultyOrder:
    """Four counts per group, half of the earlier ones forgotten, interpolated ones with a quarter of the weight."""
    return difficulty(counts_per_group=4, forgetting=0.5, interpolation_weight=0.25, **section)


def test_estimates_by_hand() -> None:
    order = by_hand()
    assert order.rates.tolist() == [0.5] * 4
    order.observe([TaskOutcome(0, (1.0, 0.0)), TaskOutcome(1, (1.0, 1.0, 0.0, 0.0)), TaskOutcome(2, ())])
    # Capability: (0.5 - 0.1) / (0.9 - 0.1) = 0.5. Interpolated: 0.5 + 0.5 * 0.4 = 0.7 for task 2, 0.1 for task 3.
    assert order.state["capability"] == pytest.approx(0.5)
    assert order.state["alphas"] == pytest.approx([1 + 2, 1 + 2, 1 + 0.7, 1 + 0.1])
    assert order.state["betas"] == pytest.approx([1 + 2, 1 + 2, 1 + 0.3, 1 + 0.9])
    order.observe([TaskOutcome(3, (0.0, 0.0))])
    # Capability: 0.9 * 0.5 + 0.1 * (0 - 0) / 0.2 = 0.45. Interpolated: 0.45, 0.2 + 0.45 * 0.6, 0.5 + 0.45 * 0.4.
    rates = np.array([0.45, 0.47, 0.68])
    assert order.state["capability"] == pytest.approx(0.45)
    kept = 0.5 * np.array([3, 3, 1.7]) + 0.5
    assert order.state["alphas"] == pytest.approx([*(kept + rates), 0.5 * 1.1 + 0.5])
    kept = 0.5 * np.array([3, 3, 1.3]) + 0.5
    assert order.state["betas"] == pytest.approx([*(kept + 1 - rates), 0.5 * 1.9 + 0.5 + 4])
    assert order.metrics()["difficulty/interpolation_error"] == pytest.approx(0.09)
    assert order.metrics()["difficulty/observed_rate"] == 0


def test_pass_rates_of_rewards() -> None:
    shared = [TaskOutcome(0, (0.25, 0.5, 2.0, 3.0))]
    mean, success = by_hand(), by_hand(success_reward=0.5)
    mean.observe(shared)
    success.observe(shared)
    assert mean.state["alphas"][0] == 1 + 4, "a mean of 1.4 counts as 1"
    assert success.state["alphas"][0] == 1 + 3


def test_the_weight_is_halved_after_a_wrong_interpolation() -> None:
    order = by_hand(halve_weight=True)
    order.observe(
        [TaskOutcome(0, (0.0,)), TaskOutcome(1, (1.0,))]
    )  # capability 0.5, so both are wrong by 0.5
    assert order.state["weight"] == 0.125
    assert order.state["alphas"][2] == pytest.approx(1 + 4 * 0.125 * 0.7)


def test_equal_references_leave_the_capability() -> None:
    order = by_hand()
    order._references[:, 0] = order._references[:, 1]
    order.observe([TaskOutcome(0, (1.0,))])
    assert order.state["capability"] is None
    assert order.state["alphas"][1] == pytest.approx(1 + 0.8)


def test_the_nearest_tasks_are_taken_and_equal_ones_in_the_order_of_the_rows() -> None:
    order = by_hand(thompson_sampling=False, target=0.5)
    assert order.take(3).tolist() == [0, 1, 2]
    assert difficulty(shuffle=True, thompson_sampling=False).take(4).tolist() == [*epoch_permutation(4, 5, 0)]
    order.observe([TaskOutcome(0, (1.0,)), TaskOutcome(1, (0.0,)), TaskOutcome(2, (0.5,))])
    assert order.rates[[0, 1, 2]] == pytest.approx([5 / 6, 1 / 6, 0.5])
    assert 1 / 6 < order.rates[3] < 0.5
    assert order.take(2).tolist() == [2, 3]
    assert order.metrics()["difficulty/drawn_rate"] == pytest.approx((0.5 + order.rates[3]) / 2)


def test_draws_follow_the_softmax_of_the_distances() -> None:
    order = by_hand(thompson_sampling=False, target=0.5, temperature=0.5)
    order.observe([TaskOutcome(0, (1.0,)), TaskOutcome(1, (0.0,)), TaskOutcome(2, (0.5,))])
    weights = np.exp(-np.abs(order.rates - 0.5) / 0.5)
    counts: Counter[int] = Counter()
    for step in range(3000):
        order.position = step
        counts.update(copy(order).take(1).tolist())
    for task, expected in enumerate(weights / weights.sum()):
        assert abs(counts[task] / 3000 - expected) < 4 * (expected * (1 - expected) / 3000) ** 0.5


def test_a_sample_of_a_wide_estimate_may_be_nearest() -> None:
    order = difficulty([[0.0, 1.0]] * 2, counts_per_group=200, forgetting=0, interpolation_weight=0)
    order.observe([TaskOutcome(0, (0.7,))])
    # Task 0 is Beta(141, 61), almost always about 0.2 from the target; task 1 is uniform, nearer in 0.4 of the samples.
    counts: Counter[int] = Counter()
    for step in range(1000):
        order.position = step
        counts.update(copy(order).take(1).tolist())
    assert 0.33 < counts[1] / 1000 < 0.47


@settings(max_examples=20)
@given(st.lists(st.lists(st.floats(0, 1), max_size=3), min_size=1, max_size=8), st.integers(1, 10))
def test_position_and_state_resume_the_draws(results: list[list[float]], cut: int) -> None:
    references = [[0.01 * task, 0.5 + 0.02 * task] for task in range(17)]

    def make() -> DifficultyOrder:
        return difficulty(references, shuffle=True, temperature=0.1, halve_weight=True)

    def step(order: DifficultyOrder, number: int) -> list[int]:
        taken = order.take(4).tolist()
        rewards = results[number % len(results)]
        order.observe([TaskOutcome(index, (*rewards, float(index % 2))) for index in taken])
        return taken

    whole, first = make(), make()
    expected = [step(whole, number) for number in range(12)]
    assert [step(first, number) for number in range(cut)] == expected[:cut]
    resumed = make()
    resumed.position = first.position
    resumed.load_state(json.loads(json.dumps(first.state)))
    assert [step(resumed, number) for number in range(cut, 12)] == expected[cut:]
    assert resumed.state == whole.state


def taskset(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, write_lines: WriteLines
) -> TaskSet:
    section = TasksetConfig(path=str(write_lines("a.jsonl", rows)), answer=None)
    data = DataConfig(train=section, overlong="filter", max_prompt_tokens=40)
    order = DifficultyOrderConfig(columns=("weak", "rates.strong"), thompson_sampling=False, forgetting=0)
    return load_taskset(section, data, tokenizer, seed=1, shuffle=False, order=order)


def test_the_columns_are_those_of_the_tasks_that_are_kept(
    tokenizer: PreTrainedTokenizerBase, write_lines: WriteLines
) -> None:
    rates = [(0, 1), (0.3, 0.4), (0.2, 0.6)]
    rows = [
        {"prompt": "one " * (60 if i == 1 else 1), "weak": weak, "rates": {"strong": strong}}
        for i, (weak, strong) in enumerate(rates)
    ]
    tasks = taskset(rows, tokenizer, write_lines)
    tasks._order.observe([TaskOutcome(0, (0.5,))])
    assert tasks.order_state is not None
    assert tasks.order_state["alphas"] == pytest.approx([1 + 8, 1 + 0.1 * 16 * 0.4])


@pytest.mark.parametrize("weak", [None, "0.5", 1.5, float("nan")])
def test_a_value_that_is_no_pass_rate_is_refused(
    weak: Any, tokenizer: PreTrainedTokenizerBase, write_lines: WriteLines
) -> None:
    rows = [{"prompt": "one", "weak": weak, "rates": {"strong": 1}}]
    with pytest.raises(DataError, match=r"the column .weak. is .*needs a pass rate from 0 to 1"):
        taskset(rows, tokenizer, write_lines)


def test_a_step_larger_than_the_taskset_is_refused() -> None:
    with pytest.raises(DataError, match="4 tasks, too few for one step of 5"):
        difficulty().take(5)
