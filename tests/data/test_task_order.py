"""Orders by column and the online curriculum, worked by hand and against their definitions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.config.schema.task_order import ColumnOrderConfig, CurriculumOrderConfig
from strop.data.curriculum import CurriculumOrder
from strop.data.epoch_order import TaskOutcome, epoch_permutation
from strop.data.taskset import TaskSet, load_taskset
from strop.errors import DataError
from tests.data.conftest import WriteLines

Load = Callable[..., TaskSet]


@pytest.fixture
def load(tokenizer: PreTrainedTokenizerBase, write_lines: WriteLines) -> Load:
    def make(levels: list[Any], *, shuffle: bool = False, **order: Any) -> TaskSet:
        path = write_lines("a.jsonl", [{"prompt": str(i), "level": level} for i, level in enumerate(levels)])
        section = TasksetConfig(path=str(path), answer=None)
        data = DataConfig(train=section)
        config = ColumnOrderConfig(column="level", **order)
        return load_taskset(section, data, tokenizer, seed=3, shuffle=shuffle, order=config)

    return make


def prompts(taskset: TaskSet, n: int) -> list[int]:
    return [int(str(task.prompt_value)) for task in taskset.take(n)]


def test_by_column_from_the_smallest_value_to_the_largest(load: Load) -> None:
    assert prompts(load([3, 1, 2.5, 1]), 4) == [1, 3, 2, 0], "equal values keep the order of the rows"
    assert prompts(load([3, 1, 2.5, 1], descending=True), 4) == [0, 2, 1, 3]
    assert prompts(load(["b", "a", "c"]), 3) == [1, 0, 2]
    words = ["hard", "easy", "medium", "easy"]
    assert prompts(load(words, values=("easy", "medium", "hard")), 4) == [1, 3, 2, 0]


def test_equal_values_are_shuffled_in_each_epoch(load: Load) -> None:
    taskset = load([i % 2 for i in range(20)], shuffle=True)
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
def test_values_without_an_order_are_refused(
    load: Load, values: list[Any], order: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(values, **order)


def curriculum(tasks: int, **section: Any) -> CurriculumOrder:
    return CurriculumOrder(tasks, CurriculumOrderConfig(**section), seed=5, shuffle=True)


def test_priorities_by_hand() -> None:
    order = curriculum(10, target=(0.25, 0.75), falloff=0.25)
    rates = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0])
    assert order.priority(rates).tolist() == [0, 0.5, 1, 1, 1, 0.5, 0]
    assert curriculum(10, target=(0.25, 0.75), falloff=0).priority(rates).tolist() == [0, 0, 1, 1, 1, 0, 0]


def test_rates_by_hand() -> None:
    order = curriculum(10, decay=0.75, success_reward=0.5)
    order.observe([TaskOutcome(4, (1.0, 0.5, 0.4, 0.0)), TaskOutcome(7, ())])
    assert order.state == {"explored": 0, "tasks": [4], "rates": [0.5]}, "a failed group has no rate"
    order.observe([TaskOutcome(4, (1.0, 1.0))])
    assert order.state["rates"] == [0.75 * 0.5 + 0.25 * 1.0]


def test_without_rates_the_order_is_that_of_the_epochs() -> None:
    order = curriculum(10)
    taken = [*order.take(5).tolist(), *order.take(5).tolist(), *order.take(5).tolist()]
    assert taken == [*epoch_permutation(10, 5, 0), *epoch_permutation(10, 5, 1)[:5]]


def test_tasks_in_the_band_are_drawn_and_the_others_only_explored() -> None:
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


def test_draws_are_proportional_to_the_priorities() -> None:
    order = curriculum(1000, exploration=1e-9, target=(0.5, 0.5), falloff=0.5, decay=0.0)
    order.observe([TaskOutcome(0, (1.0, 0.0)), TaskOutcome(1, (1.0, 1.0, 1.0, 0.0))])
    counts: Counter[int] = Counter()
    for step in range(4000):
        order.position = step
        counts.update(copy(order).take(2).tolist()[:1])
    assert counts[0] + counts[1] == 4000
    assert abs(counts[0] / 4000 - 2 / 3) < 4 * (2 / 9 / 4000) ** 0.5


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1), max_size=3), min_size=1, max_size=12), st.integers(1, 20))
def test_position_and_state_resume_the_draws(results: list[list[float]], cut: int) -> None:
    def step(order: CurriculumOrder, number: int) -> list[int]:
        taken = order.take(4).tolist()
        rewards = results[number % len(results)]
        order.observe([TaskOutcome(index, (*rewards, float(index % 2))) for index in taken])
        return taken

    whole, first = curriculum(17), curriculum(17)
    expected = [step(whole, number) for number in range(24)]
    assert [step(first, number) for number in range(cut)] == expected[:cut]
    resumed = curriculum(17)
    resumed.position = first.position
    resumed.load_state(json.loads(json.dumps(first.state)))
    assert [step(resumed, number) for number in range(cut, 24)] == expected[cut:]


def test_a_step_larger_than_the_taskset_is_refused() -> None:
    with pytest.raises(DataError, match="3 tasks, too few for one step of 4"):
        curriculum(3).take(4)


def test_the_results_of_groups_reach_the_order(
    tokenizer: PreTrainedTokenizerBase, write_lines: WriteLines, tmp_path: Path
) -> None:
    from strop.types import Rollout, RolloutGroup, SamplingParams

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
