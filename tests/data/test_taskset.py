"""Tasksets: columns, ids, overlong prompts, order and resume, and invalid rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

from strop.config.schema.data import DataConfig, EvalTasksetConfig, TasksetConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.taskset import TaskSet, load_taskset
from strop.errors import DataError

ROWS = [{"question": f"{i} + 1", "answer": str(i + 1), "level": i % 3} for i in range(10)]
VERL_ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 3"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "train", "index": 0, "answer": "... #### 5"},
}


class Load:
    """Loads a taskset with one tokenizer; keywords are keys of the section, `data` those of `DataConfig`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, path: Path, *, data: dict[str, Any] | None = None, **section: Any) -> TaskSet:
        kind = EvalTasksetConfig if "name" in section else TasksetConfig
        taskset = kind(path=str(path), **section)
        settings = DataConfig(train=TasksetConfig(path=str(path)), **(data or {}))
        return load_taskset(taskset, settings, self.tokenizer, seed=1, shuffle=settings.shuffle)


@pytest.fixture
def load(tokenizer):
    return Load(tokenizer)


def ids_of(tasks: Any) -> list[str]:
    return [task.id for task in tasks]


def test_raw_columns(load, write_lines):
    tasks = load(write_lines("a.jsonl", ROWS), prompt="question", system="Be brief.").all_tasks()
    assert ids_of(tasks) == [f"train:{i}" for i in range(10)]
    task = tasks[4]
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "4 + 1"}
    assert task.messages == (system, user)
    assert task.answer == "5"
    assert task.source == ""
    assert task.extra == {"answer": "5", "level": 1}, "rewards may ask for any column but the prompt"
    expected = PromptEncoder(load.tokenizer, "tokenizer").encode(task.messages)
    assert task.prompt_ids.tolist() == expected.tolist()


def test_verl_columns(load, tmp_path):
    pq.write_table(pa.Table.from_pylist([VERL_ROW]), tmp_path / "train.parquet")
    section = {"answer": "reward_model.ground_truth", "source": "data_source"}
    (task,) = load(tmp_path / "train.parquet", **section).all_tasks()
    assert task.messages == ({"role": "user", "content": "2 + 3"},)
    assert (task.answer, task.source) == ("5", "openai/gsm8k")
    assert task.extra == {key: value for key, value in VERL_ROW.items() if key != "prompt"}


def test_tools_reach_prompt_and_task(load, write_lines):
    template = "{% for t in tools or [] %}{{ t.name }} {% endfor %}{{ messages[0].content }}"
    tools = [json.dumps([{"name": "add"}]), [{"name": "sub"}], None]
    path = write_lines("a.jsonl", [{"prompt": f"2 + {3 + n}", "tools": each} for n, each in enumerate(tools)])
    tasks = load(path, answer=None, tools="tools", data={"chat_template": template}).all_tasks()
    assert [task.tools for task in tasks] == [({"name": "add"},), ({"name": "sub"},), ()]
    texts = [load.tokenizer.decode(task.prompt_ids) for task in tasks]
    assert texts == ["add 2 + 3", "sub 2 + 4", "2 + 5"]
    assert "tools" not in tasks[0].extra and tasks[0].answer is None


def test_an_eval_taskset_has_its_name_in_its_ids(load, write_lines):
    taskset = load(write_lines("a.jsonl", ROWS[:2]), prompt="question", name="sums")
    assert ids_of(taskset.all_tasks()) == ["sums:0", "sums:1"]


def test_filtering_keeps_row_numbers_and_counts(load, write_lines):
    rows = [{"question": "one " * (50 if i % 4 == 1 else 1), "answer": i} for i in range(10)]
    data = {"overlong": "filter", "max_prompt_tokens": 40, "shuffle": False}
    taskset = load(write_lines("a.jsonl", rows), prompt="question", data=data)
    kept = [0, 2, 3, 4, 6, 7, 8]
    assert ids_of(taskset.all_tasks()) == [f"train:{i}" for i in kept]
    assert [task.answer for task in taskset.take(7)] == kept
    assert (len(taskset), taskset.num_overlong) == (7, 3)
    assert str(taskset) == "train: 7 tasks; 3 of 10 filtered, because their prompts are too long"


@pytest.mark.parametrize("rule", ["left", "right", "middle"])
def test_truncated_prompts(load, write_lines, rule):
    file = write_lines("a.jsonl", [{"question": "one " * 50, "answer": "1"}, ROWS[0]])
    taskset = load(file, prompt="question", data={"overlong": rule, "max_prompt_tokens": 40})
    assert [len(task.prompt_ids) <= 40 for task in taskset.all_tasks()] == [True, True]
    assert len(taskset.all_tasks()[0].prompt_ids) == 40
    assert str(taskset) == "train: 2 tasks; 1 of them with a truncated prompt"


@pytest.mark.parametrize("section", [{}, {"name": "sums"}])
def test_overlong_prompts_are_an_error_at_load(load, write_lines, section):
    file = write_lines("a.jsonl", [ROWS[0], {"question": "one " * 100, "answer": "1"}])
    with pytest.raises(DataError, match=rf"{file} line 2: the prompt has \d+ tokens, more than"):
        load(file, prompt="question", data={"max_prompt_tokens": 40}, **section)


def test_no_prompt_is_encoded_twice(load, write_lines, monkeypatch):
    encoded: list[str] = []
    encode_all = PromptEncoder.encode_all

    def counted(self: PromptEncoder, prompts: Any) -> Any:
        encoded.extend(prompt.where for prompt in prompts)
        return encode_all(self, prompts)

    monkeypatch.setattr(PromptEncoder, "encode_all", counted)
    taskset = load(write_lines("a.jsonl", ROWS), prompt="question")
    for _ in range(3):
        taskset.take(10)
    taskset.all_tasks()
    assert len(encoded) == len(set(encoded)) == 10


@pytest.mark.slow
def test_workers_encode_the_same(load, write_lines):
    path = write_lines("a.jsonl", [{"question": f"{i} " * (i % 50), "answer": str(i)} for i in range(1, 600)])
    data = {"overlong": "filter", "max_prompt_tokens": 60}
    one, two = (load(path, prompt="question", data={**data, "tokenize_workers": w}) for w in (1, 2))
    assert str(one) == str(two)
    for a, b in zip(one.all_tasks(), two.all_tasks(), strict=True):
        assert (a.id, a.prompt_ids.tolist()) == (b.id, b.prompt_ids.tolist())


def test_taking_and_resuming(load, write_lines):
    file = write_lines("a.jsonl", ROWS)
    taskset = load(file, prompt="question")
    assert taskset.steps_per_epoch(4) == 2
    first = [ids_of(taskset.take(4)) for _ in range(3)]
    position = taskset.position
    rest = [ids_of(taskset.take(4)) for _ in range(6)]
    resumed = load(file, prompt="question")
    assert ids_of(resumed.take(4)) == first[0]
    resumed.position = position
    assert [ids_of(resumed.take(4)) for _ in range(6)] == rest


def test_incomplete_batches(load, write_lines):
    file = write_lines("a.jsonl", ROWS)
    keep = load(file, prompt="question", data={"incomplete_batch": "keep"})
    assert [len(keep.take(4)) for _ in range(4)] == [4, 4, 2, 4]
    with pytest.raises(DataError, match="The taskset train has 10 tasks, too few for one step of 64"):
        load(file, prompt="question").steps_per_epoch(64)


@pytest.mark.parametrize(
    ("rows", "section", "message"),
    [
        (
            [*ROWS[:2], {"Question": "1", "answer": "1"}],
            {},
            "line 3 has no 'question': its columns are 'Question'",
        ),
        ([ROWS[0], {"question": "2 + 3"}], {}, "line 2 has no 'answer'"),  # found at load
        ([ROWS[0], {"question": None, "answer": "5"}], {}, "line 2: the prompt is null"),
        (ROWS, {"source": "level"}, "line 1: the source, column 'level', is 0 and not text"),
        (ROWS, {"system_column": "level"}, "system message, column 'level', is 0 and not text"),
    ],
)
def test_a_bad_row_is_named(load, write_lines, rows, section, message):
    path = write_lines("a.jsonl", rows)
    with pytest.raises(DataError, match=message):
        load(path, prompt="question", **section)


def test_parquet_without_the_prompt_shows_all_columns(load, tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    message = r"row 0 .*has no 'prompt': its columns are 'question', 'answer', 'l"
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.parquet")


def test_a_row_may_have_its_own_system_message(load, write_lines):
    rows = [{"prompt": "1+1", "answer": "2", "who": "Own."}, {"prompt": "2+2", "answer": "4", "who": None}]
    path = write_lines("a.jsonl", rows)
    tasks = load(path, system="All.", system_column="who").all_tasks()
    assert [task.messages[0]["content"] for task in tasks] == ["Own.", "All."]


def test_answers_begin_with_the_prefix(load, write_lines):
    path = write_lines("a.jsonl", ROWS[:1])
    plain = load(path, prompt="question").all_tasks()[0]
    begun = load(path, prompt="question", reply_prefix="Let me").all_tasks()[0]
    assert load.tokenizer.decode(begun.prompt_ids) == load.tokenizer.decode(plain.prompt_ids) + "Let me"
    assert begun.messages == plain.messages
