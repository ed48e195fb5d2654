"""Mixtures of tasksets draw by weight from any position, and few-shot examples precede a prompt."""

from __future__ import annotations

import numpy as np
import pytest

import strop
from strop.config.schema.data import DataConfig, FewShotConfig, TrainTasksetConfig
from strop.data.few_shot import with_examples
from strop.data.mixture import MixedTaskSet, MixtureOrder
from strop.data.taskset import load_taskset
from strop.errors import ConfigError, DataError

SIZES, WEIGHTS = (5, 3, 40), (2.0, 1.0, 5.0)


def order_of(*, shuffle: bool = True, seed: int = 3) -> MixtureOrder:
    return MixtureOrder(SIZES, WEIGHTS, seed=seed, shuffle=shuffle)


@pytest.mark.parametrize("seed", range(4))
def test_each_step_has_the_tasksets_in_proportion_to_their_weights(seed):
    order = order_of(seed=seed)
    for _ in range(50):
        members = np.searchsorted([5, 8], order.take(16), side="right")
        counts = np.bincount(members, minlength=3)
        assert np.abs(counts - 16 * np.array(WEIGHTS) / 8).max() < 2
    members = np.searchsorted([5, 8], np.concatenate([order.take(48) for _ in range(100)]), side="right")
    np.testing.assert_allclose(np.bincount(members) / 4800, np.array(WEIGHTS) / 8, atol=2e-3)


def test_a_position_resumes_the_draws_whatever_the_size_of_the_steps_before():
    whole = order_of()
    draws = np.concatenate([whole.take(7) for _ in range(30)])
    for position in (0, 1, 6, 100, 203):
        resumed = order_of()
        resumed.take(5)
        resumed.position = position
        assert resumed.take(7).tolist() == draws[position : position + 7].tolist()
    again = order_of()
    assert np.concatenate([again.take(30) for _ in range(7)]).tolist() == draws.tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_taskset_passes_through_epochs_of_its_own(shuffle):
    draws = np.concatenate([order_of(shuffle=shuffle).take(48)])
    first = draws[draws < 5].tolist()
    assert sorted(first[:5]) == sorted(first[5:10]) == [0, 1, 2, 3, 4]
    assert (first[:5] == [0, 1, 2, 3, 4]) is not shuffle


def test_a_step_has_no_more_tasks_than_the_mixture():
    assert order_of().steps_per_epoch(10) == 4
    with pytest.raises(DataError, match="48 tasks, too few for one step of 49"):
        order_of().take(49)


def test_tasks_come_from_their_own_rows_and_columns(tokenizer, write_lines):
    plain = write_lines("a.jsonl", [{"prompt": f"a{i}", "answer": f"{i}"} for i in range(4)])
    other = write_lines("b.jsonl", [{"question": f"b{i}", "solution": f"{i}"} for i in range(6)])
    sections = [
        TrainTasksetConfig(path=str(plain), weight=1),
        TrainTasksetConfig(path=str(other), prompt="question", answer="solution", weight=3),
    ]
    data = DataConfig(train=sections[0], mixture=(sections[1],), chat_template="none")

    def make() -> MixedTaskSet:
        members = [
            load_taskset(section, data, tokenizer, seed=1, shuffle=True, name=name)
            for section, name in zip(sections, ("train", "mixture.0"), strict=True)
        ]
        return MixedTaskSet(members, MixtureOrder([4, 6], [1, 3], seed=1, shuffle=True))

    mixed = make()
    tasks = mixed.take(8)
    assert [task.id.startswith("train:") for task in tasks].count(True) in (1, 2, 3)
    for task in tasks:
        name, number = task.id.split(":")
        assert task.prompt_value == ("a" if name == "train" else "b") + number
        assert task.answer == number
    resumed = make()
    resumed.restore(mixed.position, None)
    assert [task.id for task in resumed.take(8)] == [task.id for task in mixed.take(8)]


def test_a_list_under_train_keeps_the_sources_of_its_items(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "model: {path: m}\ndata:\n  train:\n    - path: a.jsonl\n      weight: 2\n    - path: b.jsonl\n"
        "      weight: 1\nreward: gsm8k\n"
    )
    loaded = strop.load(tmp_path / "run.yaml", ["data.mixture.0.weight=3"])
    assert [loaded.run.data.train.weight, loaded.run.data.mixture[0].weight] == [2, 3]
    assert loaded.sources["data.mixture.0.path"].location.endswith("run.yaml:6")
    assert loaded.sources["data.train.path"].location.endswith("run.yaml:4")


A, B = {"path": "a", "weight": 1}, {"path": "b", "weight": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": [A, {"path": "b"}]}, "weight is missing in some tasksets"),
        ({"train": A}, "train.weight has no effect without a mixture"),
        (
            {"train": [{"path": "a"}, {"path": "b"}], "order": "curriculum"},
            "order applies to a single taskset",
        ),
        (
            {"train": [A, B], "incomplete_batch": "keep"},
            "a mixture with weights has no last, incomplete batch",
        ),
        ({"train": {"path": "a", "few_shot": {"path": "b", "text": "{prompt}"}}}, "text has no {answer}"),
    ],
)
def test_settings_without_a_meaning_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        strop.load({"model": {"path": "m"}, "data": data, "reward": "gsm8k"})


def test_examples_precede_the_prompt_and_leave_out_its_own(write_lines):
    rows = [{"prompt": f"1 + {i}", "answer": f"{{prompt}} {1 + i}"} for i in range(4)]
    section = FewShotConfig(path=str(write_lines("shots.jsonl", rows)), count=2)
    system, asked = {"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}
    messages = with_examples((system, asked), section, "row 1")
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * 2, "user"]
    said = [message["content"] for message in messages[1:]]
    assert said == ["1 + 0", "{prompt} 1", "1 + 2", "{prompt} 3", "1 + 1"]
    text = section.model_copy(update={"text": "Q: {prompt}\nA: {answer}\n\n", "count": 1})
    assert with_examples((asked,), text, "row 1") == (
        {"role": "user", "content": "Q: 1 + 0\nA: {prompt} 1\n\n1 + 1"},
    )


def test_examples_that_are_too_few_are_named(write_lines):
    section = FewShotConfig(path=str(write_lines("one.jsonl", [{"prompt": "a", "answer": "b"}])), count=2)
    with pytest.raises(DataError, match="has 1 rows, fewer than count"):
        with_examples(({"role": "user", "content": "c"},), section, "row 0")
