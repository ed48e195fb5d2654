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
from tests.data.conftest import WriteLines

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
def load(tokenizer: PreTrainedTokenizerBase) -> Load:
    return Load(tokenizer)


def ids_of(tasks: Any) -> list[str]:
    return [task.id for task in tasks]


def test_raw_columns(load: Load, write_lines: WriteLines) -> None:
    tasks = load(write_lines("a.jsonl", ROWS), prompt="question", system="Be brief.").all_tasks()
    assert ids_of(tasks) == [f"train:{i}" for i in range(10)]
    task = tasks[4]
    assert task.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "4 + 1"},
    )
    assert task.answer == "5"
    assert task.source == ""
    assert task.extra == {"answer": "5", "level": 1}, "rewards may ask for any column but the prompt"
    expected = PromptEncoder(load.tokenizer, "tokenizer").encode(task.messages)
    assert task.prompt_ids.tolist() == expected.tolist()


def test_verl_columns(load: Load, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([VERL_ROW]), tmp_path / "train.parquet")
    section = {"answer": "reward_model.ground_truth", "source": "data_source"}
    (task,) = load(tmp_path / "train.parquet", **section).all_tasks()
    assert task.messages == ({"role": "user", "content": "2 + 3"},)
    assert (task.answer, task.source) == ("5", "openai/gsm8k")
    assert task.extra == {key: value for key, value in VERL_ROW.items() if key != "prompt"}


def test_no_answer_column(load: Load, write_lines: WriteLines) -> None:
    (task,) = load(write_lines("a.jsonl", ROWS[:1]), prompt="question", answer=None).all_tasks()
    assert task.answer is None


def test_tools_reach_prompt_and_task(load: Load, write_lines: WriteLines, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for t in tools or [] %}{{ t.name }} {% endfor %}{{ messages[0].content }}")
    rows = [
        {"prompt": "2 + 3", "tools": json.dumps([{"name": "add"}])},
        {"prompt": "2 + 4", "tools": [{"name": "sub"}]},
        {"prompt": "2 + 5", "tools": None},
    ]
    taskset = load(
        write_lines("a.jsonl", rows), answer=None, tools="tools", data={"chat_template": str(template)}
    )
    tasks = taskset.all_tasks()
    assert [task.tools for task in tasks] == [({"name": "add"},), ({"name": "sub"},), ()]
    texts = [load.tokenizer.decode(task.prompt_ids) for task in tasks]
    assert texts == ["add 2 + 3", "sub 2 + 4", "2 + 5"]
    assert "tools" not in tasks[0].extra


def test_an_eval_taskset_has_its_name_in_its_ids(load: Load, write_lines: WriteLines) -> None:
    taskset = load(write_lines("a.jsonl", ROWS[:2]), prompt="question", name="sums")
    assert ids_of(taskset.all_tasks()) == ["sums:0", "sums:1"]


def test_filtering_keeps_row_numbers_and_counts(load: Load, write_lines: WriteLines) -> None:
    rows = [{"question": "one " * (50 if i % 4 == 1 else 1), "answer": i} for i in range(10)]
    data = {"overlong": "filter", "max_prompt_tokens": 40, "shuffle": False}
    taskset = load(write_lines("a.jsonl", rows), prompt="question", data=data)
    kept = [0, 2, 3, 4, 6, 7, 8]
    assert ids_of(taskset.all_tasks()) == [f"train:{i}" for i in kept]
    assert [task.answer for task in taskset.take(7)] == kept
    assert (len(taskset), taskset.num_overlong) == (7, 3)
    assert str(taskset) == "train: 7 tasks; 3 of 10 filtered, because their prompts are too long"


@pytest.mark.parametrize("rule", ["left", "right", "middle"])
def test_truncated_prompts(load: Load, write_lines: WriteLines, rule: str) -> None:
    file = write_lines("a.jsonl", [{"question": "one " * 50, "answer": "1"}, ROWS[0]])
    taskset = load(file, prompt="question", data={"overlong": rule, "max_prompt_tokens": 40})
    assert [len(task.prompt_ids) <= 40 for task in taskset.all_tasks()] == [True, True]
    assert len(taskset.all_tasks()[0].prompt_ids) == 40
    assert str(taskset) == "train: 2 tasks; 1 of them with a truncated prompt"


@pytest.mark.parametrize("section", [{}, {"name": "sums"}])
def test_overlong_prompts_are_an_error_at_load(
    load: Load, write_lines: WriteLines, section: dict[str, str]
) -> None:
    file = write_lines("a.jsonl", [ROWS[0], {"question": "one " * 100, "answer": "1"}])
    with pytest.raises(DataError, match=rf"{file} line 2: the prompt has \d+ tokens, more than"):
        load(file, prompt="question", data={"max_prompt_tokens": 40}, **section)


def test_no_prompt_is_encoded_twice(
    load: Load, write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_workers_encode_the_same(load: Load, write_lines: WriteLines) -> None:
    rows = [{"question": f"{i} " * (i % 50), "answer": str(i)} for i in range(1, 1200)]
    file = write_lines("a.jsonl", rows)
    one, two = (
        load(
            file,
            prompt="question",
            data={"overlong": "filter", "max_prompt_tokens": 60, "tokenize_workers": w},
        )
        for w in (1, 2)
    )
    assert str(one) == str(two)
    for a, b in zip(one.all_tasks(), two.all_tasks(), strict=True):
        assert (a.id, a.prompt_ids.tolist()) == (b.id, b.prompt_ids.tolist())


def test_taking_and_resuming(load: Load, write_lines: WriteLines) -> None:
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


def test_incomplete_batches(load: Load, write_lines: WriteLines) -> None:
    file = write_lines("a.jsonl", ROWS)
    keep = load(file, prompt="question", data={"incomplete_batch": "keep"})
    assert [len(keep.take(4)) for _ in range(4)] == [4, 4, 2, 4]
    with pytest.raises(DataError, match="The taskset train has 10 tasks, too few for one step of 64"):
        load(file, prompt="question").steps_per_epoch(64)


class TestBadRows:
    def test_without_the_prompt_column(self, load: Load, write_lines: WriteLines) -> None:
        file = write_lines("a.jsonl", [*ROWS[:2], {"Question": "2 + 3", "answer": "5"}])
        with pytest.raises(DataError, match=rf"{file} line 3 has no 'question': its columns are 'Question'"):
            load(file, prompt="question")

    def test_parquet_without_the_column_shows_all_columns(self, load: Load, tmp_path: Path) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
        with pytest.raises(
            DataError, match=r"row 0 .*has no 'prompt': its columns are 'question', 'answer', 'l"
        ):
            load(tmp_path / "a.parquet")

    def test_a_missing_answer_is_found_at_load(self, load: Load, write_lines: WriteLines) -> None:
        file = write_lines("a.jsonl", [ROWS[0], {"question": "2 + 3"}])
        with pytest.raises(DataError, match="line 2 has no 'answer'"):
            load(file, prompt="question")

    def test_a_null_prompt(self, load: Load, write_lines: WriteLines) -> None:
        file = write_lines("a.jsonl", [ROWS[0], {"question": None, "answer": "5"}])
        with pytest.raises(DataError, match="line 2: the prompt is null"):
            load(file, prompt="question")

    def test_a_source_that_is_not_text(self, load: Load, write_lines: WriteLines) -> None:
        with pytest.raises(DataError, match="line 1: the source, column 'level', is 0 and not text"):
            load(write_lines("a.jsonl", ROWS), prompt="question", source="level")

    def test_an_error_in_a_worker_process_names_the_row(
        self, load: Load, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        template = tmp_path / "t.jinja"
        template.write_text("{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}x")
        rows = [{"prompt": "bad" if i == 700 else "good"} for i in range(1000)]
        with pytest.raises(DataError, match="line 701: the chat template cannot render this prompt: no"):
            load(
                write_lines("a.jsonl", rows),
                answer=None,
                data={"tokenize_workers": 2, "chat_template": str(template)},
            )


def test_a_row_may_have_its_own_system_message(load: Load, write_lines: WriteLines) -> None:
    rows = [{"prompt": "1+1", "answer": "2", "who": "Own."}, {"prompt": "2+2", "answer": "4", "who": None}]
    path = write_lines("a.jsonl", rows)
    tasks = load(path, system="All.", system_column="who").all_tasks()
    assert [task.messages[0]["content"] for task in tasks] == ["Own.", "All."]
    with pytest.raises(DataError, match=r"system message, column 'n', is 3 and not text"):
        load(write_lines("b.jsonl", [{**rows[0], "n": 3}]), system_column="n")


def test_answers_begin_with_the_prefix(load: Load, write_lines: WriteLines) -> None:
    path = write_lines("a.jsonl", ROWS[:1])
    plain = load(path, prompt="question").all_tasks()[0]
    begun = load(path, prompt="question", reply_prefix="Let me").all_tasks()[0]
    assert load.tokenizer.decode(begun.prompt_ids) == load.tokenizer.decode(plain.prompt_ids) + "Let me"
    assert begun.messages == plain.messages


def test_a_template_may_be_inline_text(load: Load, write_lines: WriteLines) -> None:
    template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    task = load(write_lines("a.jsonl", ROWS[:1]), prompt="question", data={"chat_template": template})
    assert load.tokenizer.decode(task.all_tasks()[0].prompt_ids) == "[0 + 1]"
