"""Task queue: training tasks that arrive during the run."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.config.schema import Run
from strop.errors import ConfigError, DataError
from strop.models.loading import load_tokenizer
from strop.run.rollout.tasks import TaskQueue

pytest.importorskip("sqlalchemy")
SAME = ("reward/mean", "loss", "grad_norm", "response_tokens/mean")
Values = Callable[..., dict[str, Any]]


def put(file: Path, rows: Iterable[tuple[str, str]]) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS asked (id INTEGER PRIMARY KEY, prompt TEXT, answer TEXT)"
        )
        database.executemany("INSERT INTO asked (prompt, answer) VALUES (?, ?)", rows)


def maxima(first: int, count: int) -> list[tuple[str, str]]:
    pairs = [(number % 10, number // 10 % 10) for number in range(first, first + count)]
    return [(f"max {a} {b}", str(max(a, b))) for a, b in pairs]


@pytest.fixture
def queued(values: Values, tmp_path: Path) -> Values:
    """The values of a small run over the table `asked`, which is empty."""
    put(tmp_path / "tasks.db", [])

    def make(**changes: Any) -> dict[str, Any]:
        table = {"path": f"sqlite:///{tmp_path / 'tasks.db'}", "table": "asked"}
        return values(**{"data__train": table, "data__queue": {}, "data__shuffle": False} | changes)

    return make


def run(changes: dict[str, Any]) -> strop.Outcome:
    return strop.train(strop.load(changes))


def rows_of(result: strop.Outcome) -> list[list[float]]:
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "loss" in row]
    return [[row[name] for name in SAME] for row in rows]


@pytest.mark.slow
def test_run_takes_each_task_once_as_it_arrives(queued: Values, tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"

    def fill() -> None:
        for first in range(0, 32, 4):
            put(file, maxima(first, 4))
            time.sleep(0.1)

    filler = threading.Thread(target=fill)
    filler.start()
    came = rows_of(run(queued(name="came")))
    filler.join()
    whole = queued(name="whole")
    del whole["data"]["queue"]
    assert len(came) == 4
    assert came == rows_of(run(whole))  # whose first epoch is the same rows in the same order


@pytest.mark.slow
def test_run_resumes_at_the_next_task(queued: Values, tmp_path: Path) -> None:
    put(tmp_path / "tasks.db", maxima(0, 32))
    whole = rows_of(run(queued(name="whole")))
    run(queued(name="parts", trainer__duration="2 steps"))
    assert rows_of(run(queued(name="parts"))) == whole


def test_empty_queue_ends_the_run_with_an_error(queued: Values) -> None:
    with pytest.raises(
        DataError, match=r"has not filled a step in 0 s: 0 of 8 are in the table\. Check the program"
    ):
        run(queued(data__queue__timeout_seconds=0))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data__shuffle": True}, "first in, first out; write `shuffle: false`"),
        ({"trainer__duration": "1 epochs"}, "a task queue has no epochs"),
        ({"data__incomplete_batch": "keep"}, "a task queue has no last, incomplete batch"),
        ({"data__train__table": None}, "write one `path` and its `table`"),
        ({"data__train__limit_tasks": 3}, "limit_tasks has no effect with data.queue"),
    ],
)
def test_invalid_queue_settings(queued: Values, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        strop.load(queued(**changes))


@pytest.fixture
def queue(queued: Values, tiny: Path) -> Callable[..., TaskQueue]:
    def make(**changes: Any) -> TaskQueue:
        run: Run = strop.load(queued(**changes)).run
        assert run.data.queue is not None
        return TaskQueue(run, run.data.queue, load_tokenizer(run.model))

    return make


def test_the_chat_template_gets_its_variables(queue: Callable[..., TaskQueue], tmp_path: Path) -> None:
    template = "{{ style }} {{ messages[0].content }}"
    tasks = queue(data__chat_template=template, data__chat_template_args={"style": "terse"})
    put(tmp_path / "tasks.db", [*maxima(0, 1), ('[{"role": "user", "content": "max 0 0"}]', "0")])
    taken = tasks.take(2)
    lengths = {len(task.prompt_ids) for task in taken}
    plain = queue(data__chat_template=template).take(2)
    assert len(lengths) == 1, "JSON text of messages is messages"
    assert all(len(plain[i].prompt_ids) < len(taken[i].prompt_ids) for i in range(2))


def test_incomplete_batch_does_not_advance(queue: Callable[..., TaskQueue], tmp_path: Path) -> None:
    tasks = queue()
    put(tmp_path / "tasks.db", maxima(0, 3))
    assert tasks.take(4) == [] and tasks.position == 0
    put(tmp_path / "tasks.db", maxima(3, 2))
    assert [task.id for task in tasks.take(4)] == [f"train:{number}" for number in range(4)]
    assert tasks.position == 4


def test_overlong_tasks_are_skipped(queue: Callable[..., TaskQueue], tmp_path: Path) -> None:
    put(tmp_path / "tasks.db", [("1 " * 90, ""), *maxima(0, 2), ("1 " * 90, ""), *maxima(2, 2)])
    tasks = queue(data__overlong="filter")
    assert [task.id for task in tasks.take(3)] == ["train:1", "train:2", "train:4"]
    assert tasks.position == 5
    with pytest.raises(DataError, match=r"table asked row 0 \(counting from 0\): the prompt has"):
        queue(data__overlong="error").take(1)


def test_unreachable_database_is_retried(queue: Callable[..., TaskQueue], tmp_path: Path) -> None:
    file, away = tmp_path / "tasks.db", tmp_path / "away.db"
    put(file, maxima(0, 2))
    tasks = queue()
    file.rename(away)
    assert tasks.take(2) == []
    away.rename(file)
    assert len(tasks.take(2)) == 2


def test_missing_table_is_an_immediate_error(queued: Values) -> None:
    with pytest.raises(DataError, match="there is no table 'questions'"):
        run(queued(data__train__table="questions"))
    with pytest.raises(DataError, match=r"tasks.jsonl is not a database URL"):
        run(queued(data__train__path="tasks.jsonl"))


OPERATORS = [
    {"type": "length", "column": "answer", "unit": "characters", "max": 1},
    {"type": "range", "column": "answer", "values": ["7", "8", "9"]},
    {"type": "template", "columns": {"prompt": "the larger one of {{ prompt[4:] }}"}},
]


def test_operators_see_the_rows_as_they_arrive(queue: Callable[..., TaskQueue], tmp_path: Path) -> None:
    """Rows `max a b` for a in 0..9 and b in 0..1: six have the answers 7, 8 and 9, from the rows 7 and 17 on."""
    put(tmp_path / "tasks.db", maxima(0, 20))
    first = queue(data__pipeline={"operators": OPERATORS})
    tasks = first.take(4)
    assert [task.id for task in tasks] == ["train:7", "train:8", "train:9", "train:17"]
    assert tasks[0].messages[0]["content"] == "the larger one of 7 0"
    assert first.position == 18
    rows = first.observe([])
    assert rows["task_pipeline/1_range/rows_in"] == 18 and rows["task_pipeline/1_range/rows_out"] == 4
    resumed = queue(data__pipeline={"operators": OPERATORS})
    resumed.restore(first.position, None)
    put(tmp_path / "tasks.db", [("max 9 9", "9")])
    assert [task.id for task in resumed.take(3)] == ["train:18", "train:19", "train:20"]


@pytest.mark.slow
def test_a_run_whose_rows_pass_through_operators(queued: Values, tmp_path: Path) -> None:
    put(tmp_path / "tasks.db", maxima(0, 100))
    result = run(queued(data__pipeline={"operators": OPERATORS[1:]}, trainer__duration="2 steps"))
    assert len(rows_of(result)) == 2
    last = json.loads((result.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["task_pipeline/0_range/rows_out"] == 8 < last["task_pipeline/0_range/rows_in"]


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ({"operators": [{"type": "order", "by": ["answer"]}]}, "order does not run on rows that arrive"),
        ({"operators": [OPERATORS[0] | {"unit": "tokens"}]}, "length in tokens does not run"),
        ({"operators": OPERATORS, "export": "x.jsonl"}, "export has no effect with data.queue"),
        ({"operators": OPERATORS, "processes": 2}, "pass through one process"),
    ],
)
def test_operators_that_a_queue_cannot_have(queued: Values, pipeline: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strop.load(queued(data__pipeline=pipeline))
