"""Orders of tasks: each task once per epoch, by a column, and by pass rates; worked by hand or from definitions."""

from __future__ import annotations

import json
from collections import Counter
from copy import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.config.schema.data import (
    ColumnOrderConfig,
    CurriculumOrderConfig,
    DataConfig,
    DifficultyOrderConfig,
    TasksetConfig,
)
from strop.data.task_order import CurriculumOrder, DifficultyOrder, EpochOrder, TaskOutcome, epoch_permutation
from strop.data.taskset import load_taskset
from strop.errors import DataError
from strop.types import Rollout, RolloutGroup, SamplingParams

sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))
incompletes = st.sampled_from(["drop", "keep"])


def order_of(tasks, *, incomplete="drop", seed=1, shuffle=True):
    return EpochOrder(tasks, seed=seed, shuffle=shuffle, incomplete=incomplete)


@given(sizes, incompletes, st.booleans(), st.integers(0, 2**63))
def test_every_task_at_most_once_per_epoch(size, incomplete, shuffle, seed):
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
def test_a_resumed_order_equals_the_uninterrupted_order(size, incomplete, done, seed):
    tasks, n = max(size), min(size)
    whole = order_of(tasks, incomplete=incomplete, seed=seed)
    for _ in range(done):
        whole.take(n)
    resumed = order_of(tasks, incomplete=incomplete, seed=seed)
    resumed.position = whole.position
    for _ in range(8):
        assert whole.take(n).tolist() == resumed.take(n).tolist()
        assert whole.position == resumed.position


def test_another_step_size_on_resume_repeats_no_task_within_the_epoch():
    order = order_of(10)
    taken = [*order.take(4), *order.take(3), *order.take(3)]
    assert sorted(taken) == list(range(10))
    assert order.position == 10


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(epoch_permutation(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    first = order_of(50, seed=3)
    assert [first.take(50).tolist() for _ in range(2)] == [
        epoch_permutation(50, 3, e).tolist() for e in (0, 1)
    ]


def test_the_order_of_a_seed_never_changes():
    """Checkpoints must resume in later versions of Strop: these are the draws of the first version."""
    assert epoch_permutation(8, seed=1, epoch=0).tolist() == [0, 5, 7, 4, 2, 6, 3, 1]
    assert epoch_permutation(8, seed=1, epoch=1).tolist() == [2, 1, 0, 6, 5, 7, 3, 4]


def test_positions_are_uniformly_distributed():
    first = np.array([epoch_permutation(4, seed, 0)[0] for seed in range(2000)])
    counts = np.bincount(first, minlength=4)
    assert ((counts - 500) ** 2 / 500).sum() < 16.3, "chi-squared, 3 degrees of freedom, p = 0.001"


def test_without_shuffling_the_order_is_that_of_the_rows():
    order = order_of(5, shuffle=False, incomplete="keep")
    assert [order.take(2).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_positions_and_steps_by_hand():
    drop, keep = order_of(10, shuffle=False), order_of(10, shuffle=False, incomplete="keep")
    assert (drop.steps_per_epoch(4), keep.steps_per_epoch(4)) == (2, 3)
    assert (drop.steps_per_epoch(5), keep.steps_per_epoch(5)) == (2, 2)
    for _ in range(3):
        drop.take(4)
        keep.take(4)
    assert (drop.position, keep.position) == (14, 10)


def test_a_step_larger_than_an_epoch_is_refused():
    order = order_of(10)
    for refused in (order.take, order.steps_per_epoch):
        with pytest.raises(DataError, match=r"has 10 tasks, too few for one step of 11.*incomplete_batch"):
            refused(11)
    assert order_of(10, incomplete="keep").take(11).size == 10


# The online curriculum, and orders by a column


@pytest.fixture
def by_column(tokenizer, write_lines):
    def make(levels: list[Any], *, shuffle: bool = False, **order: Any):
        path = write_lines("a.jsonl", [{"prompt": str(i), "level": level} for i, level in enumerate(levels)])
        section = TasksetConfig(path=str(path), answer=None)
        data = DataConfig(train=section)
        config = ColumnOrderConfig(column="level", **order)
        return load_taskset(section, data, tokenizer, seed=3, shuffle=shuffle, order=config)

    return make


def prompts(taskset, n: int) -> list[int]:
    return [int(str(task.prompt_value)) for task in taskset.take(n)]


@pytest.mark.parametrize(
    ("levels", "order", "expected"),
    [
        ([3, 1, 2.5, 1], {}, [1, 3, 2, 0]),  # equal values keep the order of the rows
        ([3, 1, 2.5, 1], {"descending": True}, [0, 2, 1, 3]),
        (["b", "a", "c"], {}, [1, 0, 2]),
        (["hard", "easy", "medium", "easy"], {"values": ("easy", "medium", "hard")}, [1, 3, 2, 0]),
    ],
)
def test_by_column_from_the_smallest_value_to_the_largest(by_column, levels, order, expected):
    assert prompts(by_column(levels, **order), len(levels)) == expected


def test_equal_values_are_shuffled_in_each_epoch(by_column):
    taskset = by_column([i % 2 for i in range(20)], shuffle=True)
    epochs = [prompts(taskset, 20) for _ in range(2)]
    for number, epoch in enumerate(epochs):
        shuffled = epoch_permutation(20, 3, number)
        assert epoch == [i for level in (0, 1) for i in shuffled if i % 2 == level]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("values", "order", "message"),
    [
        ([1, None], {}, "line 2: the column 'level' is None, and data.order sorts by a number or text"),
        ([1, "two"], {}, "line 2: the column 'level' is 'two', a text, and other rows"),
        (["easy", "huge"], {"values": ("easy",)}, "is 'huge', which data.order.values does not name"),
    ],
)
def test_values_without_an_order_are_refused(by_column, values, order, message):
    with pytest.raises(DataError, match=message):
        by_column(values, **order)


def curriculum(tasks: int, **section: Any) -> CurriculumOrder:
    return CurriculumOrder(tasks, CurriculumOrderConfig(**section), seed=5, shuffle=True)


def test_priorities_by_hand():
    order = curriculum(10, target=(0.25, 0.75), falloff=0.25)
    rates = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0])
    assert order.priority(rates).tolist() == [0, 0.5, 1, 1, 1, 0.5, 0]
    assert curriculum(10, target=(0.25, 0.75), falloff=0).priority(rates).tolist() == [0, 0, 1, 1, 1, 0, 0]


def test_rates_by_hand():
    order = curriculum(10, decay=0.75, success_reward=0.5)
    order.observe([TaskOutcome(4, (1.0, 0.5, 0.4, 0.0)), TaskOutcome(7, ())])
    assert order.state == {"explored": 0, "tasks": [4], "rates": [0.5]}, "a failed group has no rate"
    order.observe([TaskOutcome(4, (1.0, 1.0))])
    assert order.state["rates"] == [0.75 * 0.5 + 0.25 * 1.0]


def test_a_success_is_a_reward_that_rounding_keeps_below_1():
    order = curriculum(10, target=(0.1, 0.9), falloff=0)
    order.observe([TaskOutcome(0, (0.7 + 0.2 + 0.1, 0.0))])
    assert order.state["rates"] == [0.5]
    assert order.priority(np.array([1 - 0.9, 0.3 * 3])).tolist() == [1, 1]
    difficult = by_hand(success_reward=1.0)
    difficult.observe([TaskOutcome(0, (0.7 + 0.2 + 0.1,))])
    assert difficult.state["alphas"][0] == 1 + 4


def test_without_rates_the_order_is_that_of_the_epochs():
    order = curriculum(10)
    taken = [*order.take(5).tolist(), *order.take(5).tolist(), *order.take(5).tolist()]
    assert taken == [*epoch_permutation(10, 5, 0), *epoch_permutation(10, 5, 1)[:5]]


def test_tasks_in_the_band_are_drawn_and_the_others_only_explored():
    order = curriculum(100, exploration=0.25, target=(0.4, 0.6), falloff=0.1)
    order.observe([TaskOutcome(i, (1.0, 0.0) if i < 3 else (1.0, 1.0)) for i in range(50)])
    taken = order.take(8).tolist()
    explored = epoch_permutation(100, 5, 0)
    assert len(set(taken)) == 8 and {0, 1, 2} <= set(taken)
    rest = [i for i in explored.tolist() if i not in {*taken[:3]}]
    assert taken[3:] == rest[: len(taken) - 3], "two by exploration, three for lack of others"
    assert order.metrics()["curriculum/explored_fraction"] == 5 / 8
    assert order.metrics()["curriculum/drawn_rate"] == 0.5
    assert order.metrics()["curriculum/in_target_fraction"] == 3 / 50
    assert order.metrics()["curriculum/seen_fraction"] == 0.5


def test_draws_are_proportional_to_the_priorities():
    order = curriculum(1000, exploration=1e-9, target=(0.5, 0.5), falloff=0.5, decay=0.0)
    order.observe([TaskOutcome(0, (1.0, 0.0)), TaskOutcome(1, (1.0, 1.0, 1.0, 0.0))])
    counts = first_draws(order, 4000)
    assert counts[0] + counts[1] == 4000
    assert abs(counts[0] / 4000 - 2 / 3) < 4 * (2 / 9 / 4000) ** 0.5


def test_the_results_of_groups_reach_the_order(tokenizer, write_lines, tmp_path):
    rows = [{"prompt": "one " * (60 if i == 1 else 1), "answer": "1"} for i in range(4)]
    section = TasksetConfig(path=str(write_lines("a.jsonl", rows)))
    data = DataConfig(train=section, overlong="filter", max_prompt_tokens=40)
    taskset = load_taskset(section, data, tokenizer, seed=1, shuffle=False, order=CurriculumOrderConfig())
    tasks = taskset.take(2)
    assert [task.id for task in tasks] == ["train:0", "train:2"]
    rollouts = tuple(
        Rollout(f"r{i}", "train:2", "g", i, (), "", "ok", SamplingParams(), reward=reward)
        for i, reward in enumerate((1.0, 0.0, None))
    )
    taskset.observe([RolloutGroup("g", tasks[1], rollouts)])
    assert taskset.order_state == {"explored": 2, "tasks": [1], "rates": [0.5]}


# By estimated difficulty, from the formulas of BOTS (arXiv 2510.26374)
REFERENCES = [[0.0, 1.0], [0.2, 0.8], [0.5, 0.9], [0.0, 0.2]]


def difficulty(
    references: list[list[float]] = REFERENCES, *, shuffle: bool = False, **section: Any
) -> DifficultyOrder:
    config = DifficultyOrderConfig(columns=("weak", "strong"), **section)
    return DifficultyOrder(np.array(references), config, seed=5, shuffle=shuffle)


def first_draws(order, count: int) -> Counter[int]:
    """Number of steps, from the same state, that begin with each task."""
    counts: Counter[int] = Counter()
    for step in range(count):
        order.position = step
        counts.update(copy(order).take(2).tolist()[:1])
    return counts


def by_hand(**section: Any) -> DifficultyOrder:
    """Four counts per group, half of the earlier ones forgotten, interpolated ones with a quarter of the weight."""
    return difficulty(counts_per_group=4, forgetting=0.5, interpolation_weight=0.25, **section)


def test_estimates_by_hand():
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


def test_pass_rates_of_rewards():
    shared = [TaskOutcome(0, (0.25, 0.5, 2.0, 3.0))]
    mean, success = by_hand(), by_hand(success_reward=0.5)
    mean.observe(shared)
    success.observe(shared)
    assert mean.state["alphas"][0] == 1 + 4, "a mean of 1.4 counts as 1"
    assert success.state["alphas"][0] == 1 + 3


def test_the_weight_is_halved_after_a_wrong_interpolation():
    order = by_hand(halve_weight=True)
    # The capability is 0.5, so both are wrong by 0.5.
    order.observe([TaskOutcome(0, (0.0,)), TaskOutcome(1, (1.0,))])
    assert order.state["weight"] == 0.125
    assert order.state["alphas"][2] == pytest.approx(1 + 4 * 0.125 * 0.7)


def test_equal_references_leave_the_capability():
    order = by_hand()
    order._references[:, 0] = order._references[:, 1]
    order.observe([TaskOutcome(0, (1.0,))])
    assert order.state["capability"] is None
    assert order.state["alphas"][1] == pytest.approx(1 + 0.8)


def test_the_nearest_tasks_are_taken_and_equal_ones_in_the_order_of_the_rows():
    order = by_hand(thompson_sampling=False, target=0.5)
    assert order.take(3).tolist() == [0, 1, 2]
    assert difficulty(shuffle=True, thompson_sampling=False).take(4).tolist() == [*epoch_permutation(4, 5, 0)]
    order.observe([TaskOutcome(0, (1.0,)), TaskOutcome(1, (0.0,)), TaskOutcome(2, (0.5,))])
    assert order.rates[[0, 1, 2]] == pytest.approx([5 / 6, 1 / 6, 0.5])
    assert 1 / 6 < order.rates[3] < 0.5
    assert order.take(2).tolist() == [2, 3]
    assert order.metrics()["difficulty/drawn_rate"] == pytest.approx((0.5 + order.rates[3]) / 2)


def test_draws_follow_the_softmax_of_the_distances():
    order = by_hand(thompson_sampling=False, target=0.5, temperature=0.5)
    order.observe([TaskOutcome(0, (1.0,)), TaskOutcome(1, (0.0,)), TaskOutcome(2, (0.5,))])
    weights = np.exp(-np.abs(order.rates - 0.5) / 0.5)
    counts = first_draws(order, 3000)
    for task, expected in enumerate(weights / weights.sum()):
        assert abs(counts[task] / 3000 - expected) < 4 * (expected * (1 - expected) / 3000) ** 0.5


def test_a_sample_of_a_wide_estimate_may_be_nearest():
    order = difficulty([[0.0, 1.0]] * 2, counts_per_group=200, forgetting=0, interpolation_weight=0)
    order.observe([TaskOutcome(0, (0.7,))])
    # Task 0 is Beta(141, 61), almost always about 0.2 from the target; task 1 is uniform, nearer in 0.4 of the samples.
    assert 0.33 < first_draws(order, 1000)[1] / 1000 < 0.47


@pytest.fixture
def by_difficulty_columns(tokenizer, write_lines):
    def taskset(rows):
        section = TasksetConfig(path=str(write_lines("a.jsonl", rows)), answer=None)
        data = DataConfig(train=section, overlong="filter", max_prompt_tokens=40)
        order = DifficultyOrderConfig(columns=("weak", "rates.strong"), thompson_sampling=False, forgetting=0)
        return load_taskset(section, data, tokenizer, seed=1, shuffle=False, order=order)

    return taskset


def test_the_columns_are_those_of_the_tasks_that_are_kept(by_difficulty_columns):
    rates = [(0, 1), (0.3, 0.4), (0.2, 0.6)]
    tasks = by_difficulty_columns(
        {"prompt": "one " * (60 if i == 1 else 1), "weak": weak, "rates": {"strong": strong}}
        for i, (weak, strong) in enumerate(rates)
    )
    tasks._order.observe([TaskOutcome(0, (0.5,))])
    assert tasks.order_state is not None
    assert tasks.order_state["alphas"] == pytest.approx([1 + 8, 1 + 0.1 * 16 * 0.4])


@pytest.mark.parametrize("weak", [None, "0.5", 1.5, float("nan")])
def test_a_value_that_is_no_pass_rate_is_refused(by_difficulty_columns, weak):
    with pytest.raises(DataError, match=r"the column .weak. is .*needs a pass rate from 0 to 1"):
        by_difficulty_columns([{"prompt": "one", "weak": weak, "rates": {"strong": 1}}])


# What both keep


def by_difficulty():
    references = [[0.01 * task, 0.5 + 0.02 * task] for task in range(17)]
    return difficulty(references, shuffle=True, temperature=0.1, halve_weight=True)


@pytest.mark.parametrize("make", [lambda: curriculum(17), by_difficulty], ids=["curriculum", "difficulty"])
@settings(max_examples=25)
@given(
    results=st.lists(st.lists(st.floats(0, 1), max_size=3), min_size=1, max_size=12), cut=st.integers(1, 20)
)
def test_position_and_state_resume_the_draws(make, results, cut):
    def step(order, number: int) -> list[int]:
        taken = order.take(4).tolist()
        rewards = results[number % len(results)]
        order.observe([TaskOutcome(index, (*rewards, float(index % 2))) for index in taken])
        return taken

    whole, first = make(), make()
    expected = [step(whole, number) for number in range(24)]
    assert [step(first, number) for number in range(cut)] == expected[:cut]
    resumed = make()
    resumed.position = first.position
    resumed.load_state(json.loads(json.dumps(first.state)))
    assert [step(resumed, number) for number in range(cut, 24)] == expected[cut:]
    assert resumed.state == whole.state


@pytest.mark.parametrize("make", [lambda: curriculum(3), lambda: difficulty(3 * [[0.0, 1.0]])])
def test_a_step_larger_than_the_taskset_is_refused(make):
    with pytest.raises(DataError, match="3 tasks, too few for one step of 4"):
        make().take(4)
