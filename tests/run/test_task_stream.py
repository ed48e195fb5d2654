"""Streams of tasks: order by hand, an exact resume, every kind of source, and refused combinations."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strop
from strop.data.sources.hub import stream_hub_dataset
from strop.data.task_order import epoch_permutation
from strop.errors import ConfigError, DataError
from strop.models.loading import load_tokenizer
from strop.run.rollout.tasks import TaskStream
from strop.seeds import derive_seed
from tests.files import digest

Values = Callable[..., dict[str, Any]]
ROWS = [{"prompt": f"max {i} 1", "answer": str(i)} for i in range(10)]


@pytest.fixture
def stream(values: Values, tmp_path: Path) -> Callable[..., TaskStream]:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def make(source: str | list[str] | None = None, **data: Any) -> TaskStream:
        section = {"path": source or str(path)}
        changes = {
            "data__train": section,
            "data__stream": {"shuffle_rows": 4},
            "data__eval": [],
            "evaluate": {},
        }
        loaded = strop.load(
            values(seed=0, **changes, **{f"data__{key}": value for key, value in data.items()})
        )
        assert loaded.run.data.stream is not None
        return TaskStream(loaded.run, loaded.run.data.stream, load_tokenizer(loaded.run.model))

    return make


def answers(stream: TaskStream, n: int) -> list[int]:
    return [int(str(task.answer)) for task in stream.take(n)]


def test_blocks_are_shuffled_and_epochs_follow_each_other(stream: Callable[..., TaskStream]) -> None:
    found = stream(shuffle=True)
    expected = []
    for epoch in (0, 1):
        for block, size in enumerate((4, 4, 2)):
            order = epoch_permutation(size, derive_seed(0, "stream", epoch, block), 0)
            expected += [4 * block + i for i in order.tolist()]
    assert [answer for _ in range(4) for answer in answers(found, 5)] == expected
    plain = stream(shuffle=False)
    assert [answer for _ in range(4) for answer in answers(plain, 5)] == [*range(10), *range(10)]


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_position_resumes_the_stream(stream: Callable[..., TaskStream], steps: int) -> None:
    whole = stream(overlong="filter", max_prompt_tokens=31)
    for _ in range(steps):
        whole.take(3)
    resumed = stream(overlong="filter", max_prompt_tokens=31)
    resumed.restore(whole.position, None)
    assert [task.id for task in resumed.take(9)] == [task.id for task in whole.take(9)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_every_kind_of_source_has_the_same_rows(
    stream: Callable[..., TaskStream], tmp_path: Path, served: str
) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "b.csv").write_text("prompt,answer\n" + "".join(f"max {i} 1,{i}\n" for i in range(10)))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "c.parquet")
    fsspec.filesystem("memory").pipe_file("memory://task-stream/d.jsonl", lines)
    sources = [
        f"{tmp_path}/a.jsonl.gz",
        f"{tmp_path}/b.csv",
        f"{tmp_path}/c.parquet",
        f"{served}/tasks.jsonl",
    ]
    for source in [*sources, "memory://task-stream/d.jsonl", [f"{tmp_path}/b.csv", f"{tmp_path}/c.parquet"]]:
        assert answers(stream(source, shuffle=False), 10) == list(range(10))


def test_a_dataset_of_the_hub_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    rows = list(stream_hub_dataset(str(tmp_path / "d"), None, None))
    assert [row for _, row in rows] == ROWS
    assert rows[3][0] == f"{tmp_path / 'd'} row 3 (counting from 0)"


def test_a_malformed_row_is_named_when_it_is_reached(
    stream: Callable[..., TaskStream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.run.rollout.tasks.MAX_REJECTED", 50)
    (tmp_path / "bad.jsonl").write_text(json.dumps(ROWS[0]) + "\n" * 4 + '{"prompt": "x"}\n')
    with pytest.raises(DataError, match="line 5 has no 'answer'"):
        stream(f"{tmp_path}/bad.jsonl").take(2)
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "1 " * 99, "answer": "1"}) + "\n")
    with pytest.raises(DataError, match=r"The last \d+ rows of .*long.jsonl have prompts of more than"):
        stream(f"{tmp_path}/long.jsonl", overlong="filter").take(256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__duration": "2 epochs"}, "trainer.duration: a stream has no known length"),
        ({"data__order": "curriculum"}, "data.order: the tasks of a stream are not known"),
        ({"data__incomplete_batch": "keep"}, "begins its next epoch within a step"),
        ({"data__train": {"path": "sqlite:///a.db", "table": "t"}}, "remove it for a database"),
    ],
)
def test_runs_that_cannot_stream_are_refused(values: Values, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strop.load(values(data__stream={}, **changes))


@pytest.mark.slow
def test_a_run_on_a_stream_resumes_exactly(values: Values) -> None:
    whole = strop.train(strop.load(values(name="whole", data__stream={})))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    again = strop.train(strop.load(values(name="again", data__stream={}, resume=str(checkpoint))))
    weights = "model.safetensors"
    assert whole.model is not None and again.model is not None
    assert digest(again.model / weights) == digest(whole.model / weights)


OPERATORS: list[dict[str, Any]] = [
    {"type": "length", "column": "answer", "unit": "characters", "max": 1},
    {"type": "range", "column": "answer", "values": ["2", "5", "8", "9"]},
    {"type": "template", "columns": {"prompt": "the larger one of {{ prompt[4:] }}"}},
]


@pytest.mark.parametrize("shuffle", [False, True])
def test_operators_see_the_rows_as_they_are_read(stream: Callable[..., TaskStream], shuffle: bool) -> None:
    """The tasks are those of the stream without operators whose answers are left; a resume continues with them."""
    pipeline = {"operators": OPERATORS}
    first = stream(shuffle=shuffle, pipeline=pipeline)
    expected = [i for i in answers(stream(shuffle=shuffle), 60) if i in (2, 5, 8, 9)]
    tasks = [task for _ in range(2) for task in first.take(3)]
    assert [task.id for task in tasks] == [f"train:{i}" for i in expected[:6]]
    assert tasks[0].messages[0]["content"] == f"the larger one of {expected[0]} 1"
    rows = first.observe([])
    assert (
        rows["task_pipeline/1_range/rows_in"] == first.position > 6 == rows["task_pipeline/1_range/rows_out"]
    )
    resumed = stream(shuffle=shuffle, pipeline=pipeline)
    resumed.restore(first.position, None)
    assert [answers(each, 3) for each in (first, resumed)] == [expected[6:9]] * 2


def test_operators_that_leave_no_row_are_an_error(
    stream: Callable[..., TaskStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = stream(pipeline={"operators": [OPERATORS[1] | {"values": ["x"]}]})
    monkeypatch.setattr("strop.run.rollout.tasks.MAX_REJECTED", 50)
    with pytest.raises(DataError, match=r"None of the last \d+ rows .* passed data\.pipeline"):
        nothing.take(4)


def test_a_row_that_an_operator_cannot_use_is_named(stream: Callable[..., TaskStream]) -> None:
    with pytest.raises(DataError, match=r"\(range\): .*tasks.jsonl line 1: there is no column 'size'"):
        stream(shuffle=False, pipeline={"operators": [OPERATORS[1] | {"column": "size"}]}).take(2)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            {"operators": [{"type": "order", "by": ["answer"]}]},
            "order does not run on rows that arrive in data.stream",
        ),
        ({"operators": OPERATORS, "export": "x.jsonl"}, "export has no effect with data.stream"),
    ],
)
def test_operators_that_a_stream_cannot_have(
    stream: Callable[..., TaskStream], pipeline: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        stream(pipeline=pipeline)
