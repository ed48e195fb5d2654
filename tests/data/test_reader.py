"""Files, lists, directories, URLs and saved datasets have the same rows; errors name the file."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, disable_progress_bars
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.data import TasksetConfig
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows, JsonLinesRows
from strop.errors import DataError, MissingExtraError
from tests.data.conftest import WriteLines

ROWS = [
    {"question": "2 + 3", "answer": "5"},
    {"question": "2 + 4", "answer": "6"},
    {"question": "2 + 5", "answer": "7"},
]


def rows_of(path: str | Path | list[Path], **kwargs: Any) -> list[dict[str, Any]]:
    given_path = [str(p) for p in path] if isinstance(path, list) else str(path)
    rows = read_rows(TasksetConfig(path=given_path, **kwargs))
    return [rows[i] for i in range(len(rows))]


def write_parquet(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file


@contextmanager
def as_nobody() -> Iterator[None]:
    """A context without root's permission to read every file."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "ndjson"])
def test_json_lines(write_lines: WriteLines, suffix: str) -> None:
    assert rows_of(write_lines(f"a.{suffix}", ROWS)) == ROWS


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_separated_values_are_text(tmp_path: Path, suffix: str, separator: str) -> None:
    file = tmp_path / f"a.{suffix}"
    lines = [("question", "answer"), ('"one, two\nand\tthree"', "007"), ("four", "")]
    file.write_text("\ufeff" + "\n".join(separator.join(line) for line in lines) + "\n\n")
    rows = [{"question": "one, two\nand\tthree", "answer": "007"}, {"question": "four", "answer": ""}]
    assert rows_of(file) == rows
    file.write_text(f"question{separator}answer\nonly one value\n")
    with pytest.raises(DataError, match=r"line 2: this row has 1 values, and the header names 2 columns"):
        rows_of(file)


@pytest.mark.parametrize("codec", ["gz", "zst", "bz2"])
def test_compressed_json_lines(tmp_path: Path, codec: str) -> None:
    file = tmp_path / f"a.jsonl.{codec}"
    with pa.CompressedOutputStream(str(file), {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}[codec]) as packed:
        packed.write("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    assert rows_of(file) == ROWS


def test_json_values_are_not_converted(write_lines: WriteLines) -> None:
    """No column types: a date stays text, a row has only its own keys, and types may differ."""
    rows = [{"answer": "2020-01-01", "x": None}, {"answer": 7}, {"answer": {"b": [1.5]}}]
    assert rows_of(write_lines("a.jsonl", rows)) == rows


def test_line_numbers_with_blank_lines_and_an_unterminated_last_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\n{"a": 1}\r\n   \n{"a": "\xe2\x80\xa8"}')
    rows = read_rows(TasksetConfig(path=str(file)))
    assert [rows[i]["a"] for i in range(len(rows))] == [1, "\u2028"]
    assert rows.where(0) == f"{file} line 2"
    assert rows.where(1) == f"{file} line 4"


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), max_size=8))
def test_written_objects_are_read_unchanged(objects: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects).encode(errors="replace")
    lines = JsonLinesRows("a", text)
    expected = [json.loads(line) for line in text.split(b"\n") if line]
    assert [lines[i] for i in range(len(lines))] == list(lines.scan([])) == expected


def test_parquet_with_nested_columns(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": "hi"}], "reward_model": {"ground_truth": "1"}, "n": 1},
        {"prompt": [{"role": "user", "content": "ho"}], "reward_model": None, "n": 2},
    ]
    assert rows_of(write_parquet(tmp_path / "a.parquet", rows)) == rows


def test_a_scan_reads_the_requested_columns(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [{"a": i, "b": {"c": i}, "d": 0} for i in range(2500)])
    rows = read_rows(TasksetConfig(path=str(file)))
    assert list(rows.scan(["a", "b.c"])) == [{"a": i, "b": {"c": i}} for i in range(2500)]
    assert next(iter(rows.scan(["nope"]))).keys() == {"a", "b", "d"}, "a missing column shows what is there"


def test_a_list_is_read_in_its_order_and_each_row_knows_its_file(
    tmp_path: Path, write_lines: WriteLines
) -> None:
    first = write_lines("b.jsonl", ROWS[:2])
    second = write_parquet(tmp_path / "a.parquet", ROWS)
    rows = read_rows(TasksetConfig(path=(str(first), str(second))))
    assert [rows[i] for i in range(len(rows))] == ROWS[:2] + ROWS
    assert rows.where(1) == f"{first} line 2"
    assert rows.where(2) == f"{second} row 0 (counting from 0)"
    with pytest.raises(IndexError):
        rows[5]


@pytest.mark.parametrize("limit", [1, 2, 4, 99])
def test_limit_tasks_takes_the_first_rows(write_lines: WriteLines, limit: int) -> None:
    files = [write_lines("a.jsonl", ROWS), write_lines("b.jsonl", ROWS)]
    assert rows_of(files, limit_tasks=limit) == (ROWS + ROWS)[:limit]
    rows = read_rows(TasksetConfig(path=tuple(map(str, files)), limit_tasks=limit))
    assert len(list(rows.scan(["question"]))) == len(rows)


def test_a_directory_is_all_its_data_files_in_name_order(write_lines: WriteLines) -> None:
    folder = write_lines("d/part2.jsonl", ROWS[2:]).parent
    write_lines("d/part1.jsonl", ROWS[:2])
    for other in ("README.md", "dataset_info.json", ".hidden.jsonl", "_SUCCESS"):
        (folder / other).write_text("not data")
    (folder / "link.jsonl").symlink_to(write_lines("elsewhere", [{"question": "linked"}]))
    assert rows_of(folder) == [{"question": "linked"}, *ROWS]


def test_home_folder(write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(write_lines("a.jsonl", ROWS).parent))
    assert rows_of("~/a.jsonl") == ROWS


class TestSplits:
    @pytest.mark.parametrize(
        ("files", "split"),
        [
            (["train.jsonl", "test.jsonl"], "test"),
            (["gsm8k_train.jsonl", "gsm8k-test.v2.jsonl"], "test"),
            (["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"], "test"),
            (["train-00000-of-00001.jsonl", "test_mini-00000-of-00001.jsonl"], "test_mini"),
            (["train.jsonl", "dev.jsonl"], "validation"),
            (["train.jsonl", "validation.jsonl"], "val"),
            (["retrained.jsonl", "test.jsonl"], "test"),
        ],
    )
    def test_are_told_by_file_names(self, write_lines: WriteLines, files: list[str], split: str) -> None:
        folder = write_lines(f"d/{files[0]}", ROWS[:1]).parent
        write_lines(f"d/{files[1]}", ROWS[1:])
        assert rows_of(folder, split=split) == ROWS[1:]

    def test_shards_of_one_split_are_read_together(self, write_lines: WriteLines) -> None:
        for i, row in enumerate(ROWS):
            folder = write_lines(f"d/train-{i:05}-of-00003.jsonl", [row]).parent
        assert rows_of(folder, split="train") == rows_of(folder) == ROWS

    @pytest.mark.parametrize(
        ("files", "split", "message"),
        [
            (["train.jsonl", "test.jsonl"], None, "test, train.*write `split: train`"),
            (["train.jsonl", "more.jsonl"], None, r"train, and files of no split \(more"),
            (["train.jsonl", "test.jsonl"], "validation", "no split 'validation'; it has test, train"),
            (["a.jsonl", "b.jsonl"], "train", "has no splits.*Remove `split: train`"),
        ],
    )
    def test_ambiguous_splits_are_refused(
        self, write_lines: WriteLines, files: list[str], split: str | None, message: str
    ) -> None:
        for file in files:
            folder = write_lines(f"d/{file}", ROWS).parent
        with pytest.raises(DataError, match=message):
            rows_of(folder, split=split)

    @pytest.mark.parametrize("key", ["split", "subset"])
    def test_of_one_file_are_refused(self, write_lines: WriteLines, key: str) -> None:
        with pytest.raises(DataError, match=f"is one file, which has no {key}. Remove `{key}: main`"):
            rows_of(write_lines("train.jsonl", ROWS), **{key: "main"})

    def test_subset_of_a_directory_is_a_subdirectory(self, write_lines: WriteLines) -> None:
        write_lines("d/socratic/train.jsonl", ROWS[:1])
        folder = write_lines("d/main/train.jsonl", ROWS).parents[1]
        assert len(rows_of(folder, subset="main", split="train")) == len(ROWS)

    def test_missing_subset_of_a_directory_is_refused(self, write_lines: WriteLines) -> None:
        with pytest.raises(DataError, match="is a directory, which has no subset 'main'"):
            rows_of(write_lines("d/train.jsonl", ROWS).parent, subset="main")


class TestSavedDatasets:
    @pytest.fixture(autouse=True)
    def _quiet(self) -> None:
        disable_progress_bars()

    def test_one_dataset(self, tmp_path: Path) -> None:
        Dataset.from_list(ROWS).save_to_disk(tmp_path / "d")
        assert rows_of(tmp_path / "d") == ROWS
        rows = read_rows(TasksetConfig(path=str(tmp_path / "d")))
        assert list(rows.scan(["answer"])) == [{"answer": row["answer"]} for row in ROWS]
        assert rows.where(1) == f"{tmp_path / 'd'} row 1 (counting from 0)"
        with pytest.raises(DataError, match="without splits: remove `split: train`"):
            rows_of(tmp_path / "d", split="train")
        with pytest.raises(DataError, match="remove `subset: main`"):
            rows_of(tmp_path / "d", subset="main")

    def test_a_dataset_that_was_shuffled_keeps_its_order(self, tmp_path: Path) -> None:
        shuffled = Dataset.from_list(ROWS).select([2, 0])
        shuffled.save_to_disk(tmp_path / "d")
        assert rows_of(tmp_path / "d") == [ROWS[2], ROWS[0]]

    def test_several_splits(self, tmp_path: Path) -> None:
        both = DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:1]))
        both.save_to_disk(tmp_path / "d")
        assert rows_of(tmp_path / "d", split="train") == ROWS
        with pytest.raises(DataError, match=r"splits test, train.*write `split: train`"):
            rows_of(tmp_path / "d")
        with pytest.raises(DataError, match="no split 'dev'; it has test, train"):
            rows_of(tmp_path / "d", split="dev")

    def test_a_broken_folder(self, tmp_path: Path) -> None:
        Dataset.from_list(ROWS).save_to_disk(tmp_path / "d")
        next((tmp_path / "d").glob("*.arrow")).write_bytes(b"cut")
        with pytest.raises(DataError, match="saved `datasets` folder but cannot be read"):
            rows_of(tmp_path / "d")

    def test_an_empty_one(self, tmp_path: Path) -> None:
        Dataset.from_dict({"question": []}).save_to_disk(tmp_path / "d")
        with pytest.raises(DataError, match="is empty"):
            rows_of(tmp_path / "d")


class TestUrls:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[str]:
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    def test_memory(self) -> None:
        files = fsspec.filesystem("memory")
        text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        files.pipe({"/set/train.jsonl": text, "/set/test.jsonl": text})
        assert rows_of("memory://set/train.jsonl") == ROWS
        assert rows_of("memory://set", split="test") == ROWS
        with pytest.raises(DataError, match=r"memory://set/nope\.jsonl, or it cannot be reached"):
            rows_of("memory://set/nope.jsonl")

    def test_file(self, tmp_path: Path, write_lines: WriteLines) -> None:
        assert rows_of(f"file://{write_lines('a.jsonl', ROWS)}") == ROWS
        Dataset.from_list(ROWS).save_to_disk(tmp_path / "d")
        assert rows_of(f"file://{tmp_path / 'd'}") == ROWS

    def test_http(self, server: str, tmp_path: Path, write_lines: WriteLines) -> None:
        pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
        write_lines("a.jsonl", ROWS)
        (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
        write_parquet(tmp_path / "c.parquet", ROWS)
        for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "a.jsonl?token=secret"):
            assert rows_of(f"{server}/{name}") == ROWS
        with pytest.raises(DataError, match=r"no file or directory .*/nope\.jsonl, or it cannot be reached"):
            rows_of(f"{server}/nope.jsonl")

    def test_secrets_in_a_url_are_not_shown(self) -> None:
        pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
        with pytest.raises(DataError) as error:
            rows_of("http://me:hunter2@127.0.0.1:1/a.jsonl?token=hunter3")
        assert "hunter" not in str(error.value)

    def test_a_file_system_that_needs_a_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
        with pytest.raises(MissingExtraError, match="Install s3fs"):
            rows_of("s3://bucket/a.parquet")

    def test_an_unknown_file_system(self) -> None:
        with pytest.raises(DataError, match="Protocol not known: gopher"):
            rows_of("gopher://a/b.jsonl")


class TestBadFiles:
    def test_missing(self, tmp_path: Path, write_lines: WriteLines) -> None:
        write_lines("data/a.jsonl", ROWS)
        with pytest.raises(DataError, match=r"no file or directory .*/data/b\.jsonl\.$"):
            rows_of(tmp_path / "data" / "b.jsonl")
        with pytest.raises(DataError, match=rf"there is no {tmp_path / 'date'}\."):
            rows_of(tmp_path / "date" / "deeper" / "b.jsonl")

    def test_a_name_that_is_neither_here_nor_on_the_hub(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        with pytest.raises(DataError, match="no file or directory nobody/nothing, and it cannot be loaded"):
            rows_of("nobody/nothing")

    @pytest.mark.parametrize("path", ["", []])
    def test_no_path(self, path: Any) -> None:
        with pytest.raises(DataError, match="`path` is empty"):
            rows_of(path)

    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
    @pytest.mark.parametrize("text", ["", "\n \n"])
    def test_empty(self, tmp_path: Path, name: str, text: str) -> None:
        data = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name} is empty"):
            rows_of(tmp_path / name)

    def test_parquet_without_rows(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="is empty"):
            rows_of(tmp_path / "a.parquet")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"question": "2 + 3', r"line 3 is not JSON \(Unterminated string.*Each line must hold"),
            ('["2 + 3"]', "line 3 holds a JSON list.*jq"),
            ('"2 + 3"', "line 3 holds a JSON str"),
            ("[" * 10_000, "line 3 is not JSON"),
        ],
    )
    def test_malformed_line(self, write_lines: WriteLines, line: str, message: str) -> None:
        with pytest.raises(DataError, match=message):
            rows_of(write_lines("a.jsonl", [ROWS[0], "", line, ROWS[1]]))

    def test_line_that_is_no_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff\xfe\xfd"}\n')
        with pytest.raises(DataError, match="line 2 is not JSON"):
            rows_of(tmp_path / "a.jsonl")

    @pytest.mark.parametrize("keep", [0, 2, 100, -4])
    def test_parquet_cut_short(self, tmp_path: Path, keep: int) -> None:
        file = write_parquet(tmp_path / "a.parquet", ROWS)
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(DataError, match=r"a\.parquet is not a complete Parquet file"):
            rows_of(file)

    def test_parquet_with_damaged_pages(self, tmp_path: Path) -> None:
        file = write_parquet(tmp_path / "a.parquet", ROWS)
        data = bytearray(file.read_bytes())
        data[4:60] = bytes(56)
        file.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.parquet (cannot be read|is not a complete)"):
            rows_of(file)

    def test_gzip_cut_short(self, tmp_path: Path) -> None:
        packed = gzip.compress(b'{"a": 1}\n' * 1000)
        (tmp_path / "a.jsonl.gz").write_bytes(packed[:-12])
        with pytest.raises(DataError, match=r"a\.jsonl\.gz cannot be read: Truncated"):
            rows_of(tmp_path / "a.jsonl.gz")

    def test_unknown_format(self, tmp_path: Path) -> None:
        (tmp_path / "a.xls").write_text("question,answer\n")
        with pytest.raises(DataError, match=r"a\.xls has no format that Strop reads.*\*\.parquet"):
            rows_of(tmp_path / "a.xls")

    def test_directory_without_data(self, tmp_path: Path, write_lines: WriteLines) -> None:
        write_lines("repo/main/train.jsonl", ROWS)
        with pytest.raises(DataError, match=r"repo has no data files.*in a subdirectory.*: main"):
            rows_of(tmp_path / "repo")

    def test_directory_with_two_formats(self, write_lines: WriteLines) -> None:
        folder = write_lines("d/train.jsonl", ROWS).parent
        write_parquet(folder / "train.parquet", ROWS)
        with pytest.raises(DataError, match="files of several formats"):
            rows_of(folder)

    def test_not_allowed(self, write_lines: WriteLines) -> None:
        file = write_lines("a.jsonl", ROWS)
        file.chmod(0)
        with as_nobody(), pytest.raises(DataError, match=r"cannot be (read|opened): .*Permission denied"):
            rows_of(file)


def test_no_rows_at_all() -> None:
    assert len(DatasetRows([])) == 0
