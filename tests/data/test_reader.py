"""Files, lists, directories, URLs and saved datasets have the same rows; errors name the file."""

from __future__ import annotations

import bz2
import gzip
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, disable_progress_bars
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from strop.config.schema.data import TasksetConfig
from strop.data.sources import files
from strop.data.sources.reader import read_rows, stream_rows
from strop.data.sources.rows import DatasetRows, JsonLinesRows
from strop.errors import DataError, MissingExtraError
from strop.types import Rollout, SamplingParams

ROWS = [
    {"question": "2 + 3", "answer": "5"},
    {"question": "2 + 4", "answer": "6"},
    {"question": "2 + 5", "answer": "7"},
]


def rows_of(path, **section):
    given = [str(p) for p in path] if isinstance(path, list) else str(path)
    rows = read_rows(TasksetConfig(path=given, **section))
    return [rows[i] for i in range(len(rows))]


def _by_text(value):
    """The name of a case by its texts, without its bytes."""
    return value if isinstance(value, str) else "bytes"


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows) if isinstance(rows, list) else rows, sink)
    return sink.getvalue().to_pybytes()


def write_parquet(file, rows):
    file.write_bytes(parquet(rows))
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


LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
FORMATS = {
    "a.jsonl": LINES,
    "a.json": LINES,
    "a.ndjson": LINES,
    "a.jsonl.gz": gzip.compress(LINES, mtime=0),
    "a.jsonl.bz2": bz2.compress(LINES),
    "a.jsonl.zst": pa.compress(LINES, "zstd", asbytes=True),
    "a.parquet": parquet(ROWS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_rows(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    assert rows_of(tmp_path / name) == ROWS


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_separated_values_have_the_types_of_datasets(tmp_path, suffix, separator):
    file = tmp_path / f"a.{suffix}"
    header = ("question", "answer", "float", "gap", "flag", "mixed", "empty", "word")
    lines = [
        header,
        ('"one, two\nand\tthree"', "007", "1.50", "1", "true", "1", "", "NA"),
        ("four", "-2", "1e-05", "", "False", "x", "", '"say ""hi"""'),
    ]
    file.write_text("\ufeff" + "\n".join(separator.join(line) for line in lines) + "\n\n")
    first, second = rows_of(file)
    assert first == dict(
        zip(header, ("one, two\nand\tthree", 7, 1.5, 1.0, True, "1", None, None), strict=True)
    )
    assert second == dict(zip(header, ("four", -2, 1e-05, None, False, "x", None, 'say "hi"'), strict=True))
    loaded = datasets.load_dataset(
        "csv", data_files=str(file), sep=separator, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [first, second] == list(loaded)
    assert [[type(value) for value in row.values()] for row in (first, second)] == [
        [type(value) for value in row.values()] for row in loaded
    ]
    file.write_text(f"question{separator}answer\nonly one value\n")
    with pytest.raises(DataError, match=r"line 2: this row has 1 values, and the header names 2 columns"):
        rows_of(file)


def test_columns_of_prompts_and_responses_in_csv_are_text(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("prompt,completion,answer\n07,1.50,07\n")
    section = TasksetConfig(path=str(file), response="completion")
    assert read_rows(section)[0] == {"prompt": "07", "completion": "1.50", "answer": 7}
    assert [row for _, row in stream_rows(section)] == [read_rows(section)[0]]


@pytest.mark.parametrize(("packed", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_csv_may_be_packed(tmp_path, packed, pack):
    (tmp_path / f"a.csv{packed}").write_bytes(pack(b"a,b\n1,x\n"))
    assert rows_of(tmp_path / f"a.csv{packed}") == [{"a": 1, "b": "x"}]


def test_json_values_are_not_converted(write_lines):
    """No column types: a date stays text, a row has only its own keys, and types may differ."""
    rows = [{"answer": "2020-01-01", "x": None}, {"answer": 7}, {"answer": {"b": [1.5]}}]
    assert rows_of(write_lines("a.jsonl", rows)) == rows


def test_line_numbers_with_blank_lines_and_an_unterminated_last_line(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\n{"a": 1}\r\n   \n{"a": "\xe2\x80\xa8"}')
    rows = read_rows(TasksetConfig(path=str(file)))
    assert [rows[i]["a"] for i in range(len(rows))] == [1, "\u2028"]
    assert rows.where(0) == f"{file} line 2"
    assert rows.where(1) == f"{file} line 4"


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), max_size=8))
def test_written_objects_are_read_unchanged(objects):
    text = "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects).encode(errors="replace")
    lines = JsonLinesRows("a", text)
    expected = [json.loads(line) for line in text.split(b"\n") if line]
    assert [lines[i] for i in range(len(lines))] == list(lines.scan([])) == expected


def test_parquet_with_nested_columns(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "hi"}], "reward_model": {"ground_truth": "1"}, "n": 1},
        {"prompt": [{"role": "user", "content": "ho"}], "reward_model": None, "n": 2},
    ]
    assert rows_of(write_parquet(tmp_path / "a.parquet", rows)) == rows


def test_a_scan_reads_the_requested_columns(tmp_path):
    file = write_parquet(tmp_path / "a.parquet", [{"a": i, "b": {"c": i}, "d": 0} for i in range(2500)])
    rows = read_rows(TasksetConfig(path=str(file)))
    assert list(rows.scan(["a", "b.c"])) == [{"a": i, "b": {"c": i}} for i in range(2500)]
    assert next(iter(rows.scan(["nope"]))).keys() == {"a", "b", "d"}, "a missing column shows what is there"


def test_a_list_is_read_in_its_order_and_each_row_knows_its_file(tmp_path, write_lines):
    first = write_lines("b.jsonl", ROWS[:2])
    second = write_parquet(tmp_path / "a.parquet", ROWS)
    rows = read_rows(TasksetConfig(path=(str(first), str(second))))
    assert [rows[i] for i in range(len(rows))] == ROWS[:2] + ROWS
    assert rows.where(1) == f"{first} line 2"
    assert rows.where(2) == f"{second} row 0 (counting from 0)"
    with pytest.raises(IndexError):
        rows[5]


@pytest.mark.parametrize("limit", [1, 2, 4, 99])
def test_limit_tasks_takes_the_first_rows(write_lines, limit):
    files = [write_lines("a.jsonl", ROWS), write_lines("b.jsonl", ROWS)]
    assert rows_of(files, limit_tasks=limit) == (ROWS + ROWS)[:limit]
    rows = read_rows(TasksetConfig(path=tuple(map(str, files)), limit_tasks=limit))
    assert len(list(rows.scan(["question"]))) == len(rows)


def test_a_directory_is_all_its_data_files_in_name_order(write_lines):
    folder = write_lines("d/part2.jsonl", ROWS[2:]).parent
    write_lines("d/part1.jsonl", ROWS[:2])
    for other in ("README.md", "dataset_info.json", ".hidden.jsonl", "_SUCCESS"):
        (folder / other).write_text("not data")
    (folder / "link.jsonl").symlink_to(write_lines("elsewhere", [{"question": "linked"}]))
    assert rows_of(folder) == [{"question": "linked"}, *ROWS]


def test_home_folder(write_lines, monkeypatch):
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
    def test_are_told_by_file_names(self, write_lines, files, split):
        folder = write_lines(f"d/{files[0]}", ROWS[:1]).parent
        write_lines(f"d/{files[1]}", ROWS[1:])
        assert rows_of(folder, split=split) == ROWS[1:]

    def test_shards_of_one_split_are_read_together(self, write_lines):
        for i, row in enumerate(ROWS):
            folder = write_lines(f"d/train-{i:05}-of-00003.jsonl", [row]).parent
        assert rows_of(folder, split="train") == rows_of(folder) == ROWS

    def test_subset_of_a_directory_is_a_subdirectory(self, write_lines):
        write_lines("d/socratic/train.jsonl", ROWS[:1])
        folder = write_lines("d/main/train.jsonl", ROWS).parents[1]
        assert rows_of(folder, subset="main", split="train") == ROWS


ONE = Dataset.from_list(ROWS[:1])


class TestSavedDatasets:
    @pytest.fixture
    def folder(self, tmp_path):
        disable_progress_bars()
        return tmp_path / "d"

    def test_one_dataset(self, folder):
        Dataset.from_list(ROWS).save_to_disk(folder)
        assert rows_of(folder) == rows_of(f"file://{folder}") == ROWS
        rows = read_rows(TasksetConfig(path=str(folder)))
        assert list(rows.scan(["answer"])) == [{"answer": row["answer"]} for row in ROWS]
        assert rows.where(1) == f"{folder} row 1 (counting from 0)"

    def test_a_dataset_that_was_shuffled_keeps_its_order(self, folder):
        Dataset.from_list(ROWS).select([2, 0]).save_to_disk(folder)
        assert rows_of(folder) == [ROWS[2], ROWS[0]]

    def test_several_splits(self, folder):
        DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:1])).save_to_disk(folder)
        assert rows_of(folder, split="train") == ROWS

    @pytest.mark.parametrize(
        ("dataset", "section", "message"),
        [
            (ONE, {"split": "train"}, "without splits: remove `split: train`"),
            (ONE, {"subset": "main"}, "remove `subset: main`"),
            (DatasetDict(train=ONE, test=ONE), {}, r"splits test, train.*write `split: train`"),
            (DatasetDict(train=ONE, test=ONE), {"split": "dev"}, "no split 'dev'; it has test, train"),
            (Dataset.from_dict({"question": []}), {}, "is empty"),
        ],
    )
    def test_what_they_do_not_have_is_refused(self, folder, dataset, section, message):
        dataset.save_to_disk(folder)
        with pytest.raises(DataError, match=message):
            rows_of(folder, **section)

    def test_a_broken_folder(self, folder):
        Dataset.from_list(ROWS).save_to_disk(folder)
        next(folder.glob("*.arrow")).write_bytes(b"cut")
        with pytest.raises(DataError, match="saved `datasets` folder but cannot be read"):
            rows_of(folder)


@pytest.mark.parametrize("split", ["train", None])
def test_a_damaged_file_in_the_cache_of_datasets_is_named(split, monkeypatch):
    """A fake: the library maps the Arrow files of its cache without a look at their values."""
    offsets, text = (pa.py_buffer(data) for data in (b"\0\0\0\0\0\0\0\x7f\3\0\0\0", b"one"))
    table = pa.table({"prompt": pa.Array.from_buffers(pa.string(), 2, [None, offsets, text])})
    damaged = Dataset(table, fingerprint="damaged")
    loaded = damaged if split else DatasetDict(train=damaged)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    with pytest.raises(
        DataError, match=r"owner/name is damaged in the cache of `datasets`: .*Delete its folder"
    ):
        rows_of("owner/name", split=split)


class LibraryError(Exception):
    """An error of a store's library, such as botocore's."""


class FailingStore(MemoryFileSystem):
    """A fake object store, one of whose methods fails."""

    protocol = "failing"


STORE_CALLS = [
    ("t/train.jsonl", "__init__"),
    ("t/train.jsonl", "info"),
    ("t", "ls"),
    ("t/train.jsonl", "_open"),
    ("x/x.parquet", "_open"),
]
STORE_ERRORS = [
    LibraryError("token expired"),
    PermissionError("Forbidden"),
    TimeoutError("no answer"),
    KeyError("region"),
]


class TestUrls:
    @pytest.fixture
    def server(self, tmp_path):
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        server.server_close()

    def test_memory(self):
        files = fsspec.filesystem("memory")
        files.pipe({"/set/train.jsonl": LINES, "/set/test.jsonl": LINES})
        assert rows_of("memory://set/train.jsonl") == ROWS
        assert rows_of("memory://set", split="test") == ROWS
        with pytest.raises(DataError, match=r"memory://set/nope\.jsonl, or it cannot be reached"):
            rows_of("memory://set/nope.jsonl")

    @pytest.mark.parametrize(("path", "call"), STORE_CALLS)
    @pytest.mark.parametrize("error", STORE_ERRORS, ids=str)
    def test_an_error_of_a_remote_stores_library_is_one_paragraph(self, path, call, error, monkeypatch):
        def fail(*_: object, **__: object) -> None:
            raise error

        fsspec.register_implementation("failing", FailingStore, clobber=True)
        for name, content in (("train.jsonl", LINES), ("x.parquet", FORMATS["a.parquet"])):
            fsspec.filesystem("failing").pipe_file(f"failing://{name[0]}/{name}", content)
        monkeypatch.setattr(FailingStore, call, fail)
        FailingStore.clear_instance_cache()
        for read in (rows_of, lambda url: list(stream_rows(TasksetConfig(path=url)))):
            with pytest.raises(DataError, match=r"^failing://") as caught:
                read(f"failing://{path}")
            assert str(error) in str(caught.value) and "\n" not in str(caught.value)

    def test_file(self, write_lines):
        assert rows_of(f"file://{write_lines('a.jsonl', ROWS)}") == ROWS

    def test_http(self, server, tmp_path):
        pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
        for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
            (tmp_path / name).write_bytes(FORMATS[name])
            assert rows_of(f"{server}/{name}") == ROWS
        assert rows_of(f"{server}/a.jsonl?token=secret") == ROWS
        with pytest.raises(DataError, match=r"no file or directory .*/nope\.jsonl, or it cannot be reached"):
            rows_of(f"{server}/nope.jsonl")

    def test_secrets_in_a_url_are_not_shown(self):
        pytest.importorskip("aiohttp", reason="fsspec's http needs aiohttp")
        with pytest.raises(DataError) as error:
            rows_of("http://me:hunter2@127.0.0.1:1/a.jsonl?token=hunter3")
        assert "hunter" not in str(error.value)

    def test_a_file_system_that_needs_a_package(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
        with pytest.raises(MissingExtraError, match="Install s3fs"):
            rows_of("s3://bucket/a.parquet")

    def test_an_unknown_file_system(self):
        with pytest.raises(DataError, match="Protocol not known: gopher"):
            rows_of("gopher://a/b.jsonl")


PARQUET = FORMATS["a.parquet"]
EMPTY = parquet(pa.table({"a": pa.array([], pa.string())}))
DAMAGED = PARQUET[:4] + bytes(56) + PARQUET[60:]
CUT_GZIP = gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-12]


@pytest.mark.parametrize(
    ("files", "path", "section", "message"),
    [
        ("d/train.jsonl d/test.jsonl", "d", {}, "test, train.*write `split: train`"),
        ("d/train.jsonl d/more.jsonl", "d", {}, r"train, and files of no split \(more"),
        ("d/train.jsonl d/test.jsonl", "d", {"split": "dev"}, "no split 'dev'; it has test, train"),
        ("d/a.jsonl d/b.jsonl", "d", {"split": "train"}, "has no splits.*Remove `split: train`"),
        ("d/train.jsonl", "d", {"subset": "main"}, "is a directory, which has no subset 'main'"),
        ("d/train.jsonl d/train.parquet", "d", {}, "files of several formats"),
        ("d/main/train.jsonl", "d", {}, r"d has no data files.*in a subdirectory.*: main"),
        ("a.jsonl", "a.jsonl", {"split": "main"}, "one file, which has no split. Remove `split: main`"),
        (
            "a.jsonl",
            "a.jsonl",
            {"subset": "main"},
            "one file, which has no subset. Remove `subset: main`",
        ),
        ("d/a.jsonl", "d/b.jsonl", {}, r"no file or directory .*/d/b\.jsonl\.$"),
        ("d/a.jsonl", "e/deeper/b.jsonl", {}, r"there is no .*/e\."),
    ],
)
def test_wrong_paths_splits_and_subsets(tmp_path, files, path, section, message):
    for name in files.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / path, **section)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", r"a\.jsonl is empty"),
        ("a.jsonl", b"\n \n", r"a\.jsonl is empty"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), r"a\.jsonl\.gz is empty"),
        ("a.jsonl.gz", gzip.compress(b"\n \n", mtime=0), r"a\.jsonl\.gz is empty"),
        ("a.parquet", EMPTY, "is empty"),
        ("a.parquet", b"", r"a\.parquet is not a complete Parquet file"),
        ("a.parquet", PARQUET[:2], r"a\.parquet is not a complete Parquet file"),
        ("a.parquet", PARQUET[:100], r"a\.parquet is not a complete Parquet file"),
        ("a.parquet", PARQUET[:-4], r"a\.parquet is not a complete Parquet file"),
        ("a.parquet", DAMAGED, r"a\.parquet (cannot be read|is not a complete)"),
        ("a.jsonl.gz", CUT_GZIP, r"a\.jsonl\.gz cannot be read: Truncated"),
        ("a.xls", b"question,answer\n", r"a\.xls has no format that Strop reads.*\*\.parquet"),
    ],
    ids=_by_text,
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "2 + 3', r"is not JSON \(Unterminated string.*Each line must hold"),
        (b'["2 + 3"]', "holds a JSON list"),
        (b'"2 + 3"', "holds a JSON str"),
        (b"[" * 10_000, "is not JSON"),
        (b'{"a": "\xff\xfe\xfd"}', "is not JSON"),
        (b'{"q": ' + b"[" * 500 + b"]" * 500 + b"}", "nests more than 100"),
        (b'{"q": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "(is not JSON|nests more than 100)"),
        (b'{"q": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"q": "a\\ud83d"}', r"contains \\ud83d, half of a surrogate pair"),
    ],
    ids=_by_text,
)
def test_a_bad_line_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_bytes(b'{"q": "\\ud83d\\ude00"}\n\n' + line + b"\n" + LINES)
    with pytest.raises(DataError, match=rf"a\.jsonl line 3 {message}"):
        rows_of(tmp_path / "a.jsonl")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("value", "rows", "place"),
    [
        (ROWS, ROWS, "item 2"),
        ({"data": ROWS}, ROWS, "item 2"),
        ([{"answer": "\u00e9\U0001f600"}] * 2, [{"answer": "\u00e9\U0001f600"}] * 2, "item 2"),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_that_is_one_list(tmp_path, monkeypatch, value, rows, place, mapped, indent):
    path = tmp_path / "a.json"
    path.write_text("\n" + json.dumps(value, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert [row for _, row in stream_rows(TasksetConfig(path=str(path)))] == rows
    monkeypatch.setattr(files, "MAPPED_FROM_BYTES", 1 if mapped else 1 << 20)
    found = read_rows(TasksetConfig(path=str(path)))
    assert [found[i] for i in range(len(found))] == rows == list(found.scan([]))
    assert found.where(1) == f"{path} {place}" == list(found.locations())[1]


def test_a_column_with_the_name_of_such_a_list(tmp_path):
    row = {"data": [{"role": "user", "content": "2 + 3"}]}
    (tmp_path / "a.json").write_text(json.dumps(row))
    assert rows_of(tmp_path / "a.json") == [row]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["2 + 3"]', "a.json item 1 is a JSON str, not an object"),
        ('[{"a": "\\ud83d"}]', r"a.json item 1 contains \\ud83d"),
        ("[]", "a.json is empty: it has no rows"),
        ('[\n{"a": 1}\n', "a.json line 1 is not JSON"),
        ('{\n"a": 1,\n"b": 2\n}', "a.json is one JSON object with the keys 'a', 'b'.*list of objects"),
        ('{"version": 1,\n"data": []}', "keys 'version', 'data'"),
    ],
)
def test_lists_that_are_refused(tmp_path, monkeypatch, text, message, mapped):
    monkeypatch.setattr(files, "MAPPED_FROM_BYTES", 1 if mapped else 1 << 20)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        rows_of(tmp_path / "a.json")


def test_a_name_that_is_neither_here_nor_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="no file or directory nobody/nothing, and it cannot be loaded"):
        rows_of("nobody/nothing")


@pytest.mark.parametrize("path", ["", []])
def test_an_empty_path(path):
    with pytest.raises(DataError, match="`path` is empty"):
        rows_of(path)


def test_a_file_without_permission(write_lines):
    file = write_lines("a.jsonl", ROWS)
    file.chmod(0)
    with as_nobody(), pytest.raises(DataError, match=r"cannot be (read|opened): .*Permission denied"):
        rows_of(file)


def test_no_rows_at_all():
    assert len(DatasetRows([])) == 0


def test_rows_within_the_limits_are_read():
    row = {"q": "\U0001f600 \\ud83d", "nested": [[[1]]] * 200}
    assert JsonLinesRows("d.jsonl", json.dumps(row).encode())[0] == row


def test_texts_of_user_code_in_a_rollout_can_be_encoded():
    said = {"reward_parts": {"a\ud800": 1.0}, "error": "bad \udcff"}
    rollout = Rollout("r", "t", "g", 0, (), "", "error", SamplingParams(), **said)
    assert rollout.error == r"bad \udcff" and rollout.reward_parts == {r"a\ud800": 1.0}


def test_text_that_is_not_utf8_in_a_parquet_file_is_refused(tmp_path):
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"prompt": broken}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet is not a complete Parquet file .*UTF8"):
        read_rows(TasksetConfig(path=str(tmp_path / "rows.parquet")))
