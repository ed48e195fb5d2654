"""Tests of Trinity's `buffer` section: experience storage, tasksets and column formats."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.schema.buffer import (
    FileBufferConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    SqlBufferConfig,
)
from strop.config.schema.data import TaskQueueConfig, TrainTasksetConfig
from strop.errors import ConfigError

from .trinity_file import BUFFER, TASKSET, read, value

pytestmark = pytest.mark.usefixtures("trinity_file")
EVAL = "buffer.explorer_input.eval_tasksets.0"
QUEUE = {"read_timeout_seconds": 1800}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{}", QueueBufferConfig(**QUEUE)),
        (
            "{storage_type: queue, path: 'sqlite:///countdown_buffer.db', max_read_timeout: 60}",
            QueueBufferConfig(backup="countdown_buffer.db", read_timeout_seconds=60),
        ),
        ("{path: back.jsonl, capacity: 64}", QueueBufferConfig(backup="back.jsonl", capacity_groups=64)),
        ("{use_priority_queue: true}", PriorityBufferConfig(**QUEUE)),
        ("{storage_type: sql}", SqlBufferConfig(**QUEUE)),
        (
            "{storage_type: sql, name: shared, path: both.db}",
            SqlBufferConfig(url="sqlite:///both.db", name="shared", **QUEUE),
        ),
        (
            "{storage_type: sql, path: 'postgresql://u@h/d'}",
            SqlBufferConfig(url="postgresql://u@h/d", **QUEUE),
        ),
        ("{storage_type: file, path: seen}", FileBufferConfig(path="seen", read_timeout_seconds=1800)),
        ("{name: countdown_buffer, wrap_in_ray: false}", QueueBufferConfig(name="countdown_buffer", **QUEUE)),
    ],
)
def test_experience_buffer_storage(written: str, expected: object) -> None:
    assert read(f"+{BUFFER}={written}").run.buffer == expected


def test_cooldown_of_reused_experiences() -> None:
    written = f"+{BUFFER}={{use_priority_queue: true, reuse_cooldown_time: 3.5}}"
    apart = read(written, "+synchronizer.sync_style=dynamic_by_explorer").run.buffer
    assert apart == PriorityBufferConfig(reuse_cooldown_seconds=3.5, **QUEUE)
    in_turns = read(written)
    assert in_turns.run.buffer == PriorityBufferConfig(**QUEUE)
    assert any("reuse_cooldown_time" in note and "alternate" in note for note in in_turns.notes)


def test_a_cooldown_without_priorities_is_inactive() -> None:
    (note,) = read(f"+{BUFFER}.reuse_cooldown_time=3").notes
    assert note.endswith("inactive, because the buffer is no priority queue.")


def taskset(**fields: Any) -> TrainTasksetConfig:
    return TrainTasksetConfig(**{"path": "train.jsonl", "answer": "response", **fields})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{path: train.jsonl}", taskset()),
        (
            "{path: folder, subset_name: main, split: test}",
            taskset(path="folder", subset="main", split="test"),
        ),
        ("{path: folder}", taskset(path="folder", split="train")),
        (
            "{storage_type: sql, name: sums, path: tasks.db}",
            taskset(path="sqlite:///tasks.db", table="sums"),
        ),
        (
            "{path: train.jsonl, format: {prompt_key: q, response_key: a, system_prompt: S, "
            "system_prompt_key: s, tools_key: t, reply_prefix: 'So:'}}",
            taskset(prompt="q", answer="a", system="S", system_column="s", tools="t", reply_prefix="So:"),
        ),
        (
            "{path: train.jsonl, format: {messages_key: m, system_prompt: S}}",
            taskset(prompt="m"),
        ),
        ("{path: train.jsonl, format: {prompt_type: messages}}", taskset(prompt="message")),
    ],
)
def test_tasks(written: str, expected: TrainTasksetConfig) -> None:
    assert read(f"~{TASKSET}", f"+{TASKSET}={written}").run.data.train == expected


def test_task_queue_is_a_database_table() -> None:
    written = "{storage_type: queue, path: tasks.db, name: asked}"
    run = read(f"~{TASKSET}", f"+{TASKSET}={written}", "+buffer.total_steps=3").run
    assert run.data.train == taskset(path="sqlite:///tasks.db", table="asked")
    assert run.data.queue == TaskQueueConfig() and not run.data.shuffle


def test_an_eval_taskset_has_its_own_settings() -> None:
    own = "{repeat_times: 4, format: {prompt_key: q}, rollout_args: {top_p: 0.9}}"
    loaded = read(
        f"{EVAL}={own}",
        "model.min_response_tokens=2",
    )
    (measured,) = loaded.run.data.eval
    assert (measured.name, measured.prompt, measured.rollouts_per_task) == ("test", "q", 4)
    assert (measured.sampling.top_p, measured.sampling.min_response_tokens) == (0.9, 2)
    assert value(read(f"+{EVAL}.rollout_args.n=3"), "data.eval.0.rollouts_per_task") == 3
    assert read("buffer.explorer_input.eval_tasksets=null").run.data.eval == ()


def test_a_rewards_arguments() -> None:
    args = "reward_fn_args={method: strict}"
    loaded = read(f"+{TASKSET}.{args}", f"+{EVAL}.{args}")
    assert loaded.run.reward.functions[0].args == {"method": "strict"}


@pytest.mark.parametrize(
    ("overrides", "trained", "measured"),
    [
        ([f"+{EVAL}.default_reward_fn_type=math_reward"], ["trinity_countdown"], ["trinity_math", "format"]),
        ([f"+{EVAL}.default_reward_fn_type=countdown_reward"], ["trinity_countdown"], None),
        ([f"+{TASKSET}.reward_fn_args={{method: strict}}"], ["trinity_countdown"], ["trinity_countdown"]),
        (
            [
                f"+{EVAL}.default_workflow_type=math_workflow",
                f"+{EVAL}.default_reward_fn_type=math_reward",
            ],
            ["trinity_countdown"],
            ["trinity_math", "format"],
        ),
    ],
)
def test_an_eval_taskset_has_its_own_reward(
    overrides: list[str], trained: list[str], measured: list[str] | None
) -> None:
    run = read(*overrides).run
    own = run.data.eval[0].reward
    assert [part.function for part in run.reward.functions] == trained
    assert (own and [part.function for part in own.functions]) == measured


SFT = (
    "algorithm.algorithm_type=sft",
    "mode=train",
    f"{BUFFER}.path=sft.jsonl",
    "buffer.train_batch_size=16",
)


def answers(**fields: Any) -> TrainTasksetConfig:
    return TrainTasksetConfig(**{"path": "sft.jsonl", "answer": None, **fields})


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{prompt_key: q, response_key: a}", answers(prompt="q", response="a")),
        ("{system_prompt_key: s}", answers(system_column="s", response="response")),
        (
            "{prompt_type: messages, messages_key: m, tools_key: t}",
            answers(response="m", tools="t", trained_turns="last"),
        ),
        (
            "{messages_key: m, enable_concatenated_multi_turn: true}",
            answers(response="m", trained_turns="all"),
        ),
    ],
)
def test_offline_data(written: str, expected: TrainTasksetConfig) -> None:
    run = read(*SFT, f"+{BUFFER}.format={written}").run
    assert (run.algorithm.type, run.trainer.tasks_per_step, run.data.train) == ("sft", 16, expected)


def test_sampling_keys_are_inactive_offline() -> None:
    loaded = read(*SFT)
    assert str(loaded.sources["data.train.path"]) == f"override {BUFFER}.path=sft.jsonl"
    inactive = [note.partition("(")[2].partition(")")[0] for note in loaded.notes]
    assert {f"{TASKSET}.path", f"{TASKSET}.format.prompt_key", "algorithm.repeat_times"} <= {*inactive}
    assert str(read(f"{BUFFER}.path=b.db").sources["data.train.path"]).startswith("t.yaml:7")


def test_offline_data_in_a_database() -> None:
    loaded = read(*SFT, f"{BUFFER}.storage_type=sql", f"{BUFFER}.path=given.db", f"{BUFFER}.name=talks")
    assert loaded.run.data.train == answers(path="sqlite:///given.db", table="talks", response="response")
    with pytest.raises(ConfigError, match="must exist when the run starts; write file or sql"):
        read(*SFT, f"{BUFFER}.storage_type=queue")


def test_preference_pairs() -> None:
    dpo = (*SFT, "algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn_args={beta: 0.3}")
    run = read(*dpo, f"{BUFFER}.format={{chosen_key: c, messages_key: m}}").run
    assert run.data.train == answers(prompt="m", chosen="c", rejected="rejected")
    assert run.algorithm.type == "dpo" and run.algorithm.beta == 0.3


def test_chat_templates_are_jinja_text() -> None:
    own = "[{{ messages }}]"
    assert read(f"model.custom_chat_template='{own}'").run.data.chat_template == own
    data = (f"{BUFFER}.format.chat_template='{{{{ messages }}}}'", f"model.custom_chat_template='{own}'")
    assert read(*SFT, *data).run.data.chat_template == "{{ messages }}"
    assert read(*data).run.data.chat_template == own


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [f"+{EVAL}.rollout_args.n=3", f"+{EVAL}.repeat_times=2"],
            r"n \(3\) differs from .*repeat_times \(2",
        ),
        ([f"+{BUFFER}.path=back.txt"], "names no file format"),
        ([f"+{BUFFER}.capacity=2"], "is less than one step"),
        ([f"{TASKSET}.path=null"], "a file or directory of JSON Lines"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read(*overrides)
