"""Tasksets that are tables of a database."""

from __future__ import annotations

import sqlite3

import pytest

from strop.config.schema.data import TasksetConfig
from strop.data.sources.reader import read_rows
from strop.errors import DataError

pytest.importorskip("sqlalchemy")


@pytest.fixture
def url(tmp_path):
    """A database whose rows were not inserted in the order of their key."""
    file = tmp_path / "tasks.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE sums (id INTEGER PRIMARY KEY, question TEXT, raw JSON)")
        database.executemany(
            "INSERT INTO sums VALUES (?, ?, ?)",
            [(2, "2+2", '{"answer": "4"}'), (1, "1+1", '{"answer": "2"}'), (3, "3+3", None)],
        )
        database.execute("CREATE TABLE plain (question TEXT)")
        database.executemany("INSERT INTO plain VALUES (?)", [("b",), ("a",)])
        database.execute("CREATE TABLE empty (question TEXT)")
    return f"sqlite:///{file}"


def test_rows_are_in_the_order_of_their_key_and_json_is_parsed(url):
    rows = read_rows(TasksetConfig(path=url, table="sums"))
    assert [row["question"] for row in rows.scan(["question"])] == ["1+1", "2+2", "3+3"]
    assert rows[1]["raw"] == {"answer": "4"} and rows[2]["raw"] is None
    assert rows.where(1).endswith("tasks.db table sums row 1 (counting from 0)")
    assert len(read_rows(TasksetConfig(path=url, table="sums", limit_tasks=2))) == 2


def test_without_a_key_rows_are_in_the_order_of_row_ids(url):
    rows = read_rows(TasksetConfig(path=url, table="plain"))
    assert [row["question"] for row in rows.scan([])] == ["b", "a"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "no table is named. Write `table:` next to the path; its tables are: empty, plain, sums"),
        ({"table": "sum"}, "there is no table 'sum'"),
        ({"table": "empty"}, "is empty"),
        ({"table": "sums", "split": "train"}, "is a database, which has no split"),
    ],
)
def test_invalid_databases_are_refused(url, changes, expected):
    with pytest.raises(DataError, match=expected):
        read_rows(TasksetConfig(path=url, **changes))


def test_a_missing_database_is_not_created(tmp_path):
    file = tmp_path / "none.db"
    with pytest.raises(DataError, match=r"There is no SQLite database .*none\.db"):
        read_rows(TasksetConfig(path=f"sqlite:///{file}", table="sums"))
    assert not file.exists()


def test_a_file_has_no_table(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"question": "1+1"}\n')
    with pytest.raises(DataError, match="is not a database, so it has no table"):
        read_rows(TasksetConfig(path=str(tmp_path / "t.jsonl"), table="sums"))
