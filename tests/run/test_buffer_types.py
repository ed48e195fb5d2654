"""Which store holds the experiences changes nothing of a synchronous run."""

import pytest

from .results import trained_rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "buffer",
    ["sql", "file", {"type": "priority"}, {"type": "queue", "backup": "queue.db"}],
    ids=["sql", "file", "priority", "queue with backup"],
)
def test_every_store_gives_the_same_run(values, buffer):
    if buffer == "sql":
        pytest.importorskip("sqlalchemy")
    assert trained_rows(values(name="with-store", buffer=buffer)) == trained_rows(values(name="in-memory"))
