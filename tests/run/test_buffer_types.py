"""Which store holds the experiences changes nothing of a synchronous run."""

import json

import pytest

import strop

CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")


def rows_of(run):
    result = strop.train(strop.load(run))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    "buffer",
    ["sql", "file", {"type": "priority"}, {"type": "queue", "backup": "queue.db"}],
    ids=["sql", "file", "priority", "queue with backup"],
)
def test_every_store_gives_the_same_run(values, buffer):
    if buffer == "sql":
        pytest.importorskip("sqlalchemy")
    assert rows_of(values(name="with-store", buffer=buffer)) == rows_of(values(name="in-memory"))
