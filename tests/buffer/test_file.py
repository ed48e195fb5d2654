"""The buffer in a folder of readable files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strop.buffer.factory import clear_buffer, open_buffer
from strop.config.schema.buffer import FileBufferConfig
from strop.errors import StoreError
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group, make_groups

KINDS = ["file-jsonl", "file-parquet"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


def files(folder: Path) -> list[Path]:
    """The files of the writes, in order."""
    return sorted(
        file for file in (folder / "experiences").iterdir() if file.suffix in (".jsonl", ".parquet")
    )


def test_pandas_and_json_can_read_the_files(place_of: Callable[[str], Place]) -> None:
    place_of("file-jsonl").open().put(make_groups(2))
    place = place_of("file-parquet")
    place.open().put(make_groups(2))
    lines, rows = files(place.folder)
    row = json.loads(lines.read_text().splitlines()[1])
    assert (row["id"], len(row["experiences"]), row["experiences"][0]["source"]) == ("g1", 2, "test")
    table = pq.read_table(rows).to_pandas()
    assert list(table["id"]) == ["g0", "g1"]
    assert table["experiences"][0][1]["token_ids"].dtype == "int32"


def test_a_reader_sees_what_other_writers_add(place: Place) -> None:
    reader, one, two = place.open(role="reader"), place.open(role="writer"), place.open(role="writer")
    one.put([make_group("a")])
    two.put([make_group("b"), make_group("a")])  # `two` has not seen the groups of `one`
    assert ids(reader.take(3, timeout_seconds=0)) == ["a", "b"]
    one.put([make_group("c")])
    assert ids(reader.take(1, timeout_seconds=0)) == ["c"]


def test_a_table_of_other_columns_is_refused(place_of: Callable[[str], Place]) -> None:
    place = place_of("file-parquet")
    place.open().put(make_groups(2))
    [file] = files(place.folder)
    pq.write_table(pq.read_table(file).select(["id"]), file)
    with pytest.raises(StoreError, match=f"The rows of {file.name}"):
        place.open().take(9, timeout_seconds=0)


def test_an_interrupted_write_is_ignored(place: Place) -> None:
    place.open().put(make_groups(2))
    [file] = files(place.folder)
    file.with_name("0" * 20 + "-" + "a" * 8 + file.suffix + ".new").write_bytes(file.read_bytes()[:50])
    assert ids(place.open().take(9, timeout_seconds=0)) == ["g0", "g1"]


def test_a_damaged_file_is_named(place: Place) -> None:
    place.open().put(make_groups(2))
    [file] = files(place.folder)
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StoreError, match=rf"{file.name} cannot be read as groups"):
        place.open()


def test_clearing_keeps_other_files(place: Place) -> None:
    first = place.open()
    first.put(make_groups(2))
    first.acknowledge(ids(first.take(2)))
    first.finish()
    notes = place.folder / "experiences" / "notes.jsonl"
    notes.write_text("mine")
    place.clear()
    assert list(notes.parent.iterdir()) == [notes]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiences").write_text("")
    with pytest.raises(StoreError, match=r"experiences for experiences cannot be used: File exists"):
        open_buffer(FileBufferConfig(), tmp_path)
    clear_buffer(FileBufferConfig(path="elsewhere"), tmp_path)
