"""Large files are converted once and memory-mapped: the same rows, order and draws as with all prompts in memory."""

from __future__ import annotations

import gzip
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data import prompt_check
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.prompt_bounds import TokenBound
from strop.data.encoding.truncation import fit_prompts
from strop.data.sources import csv_file, files, mapped_rows
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.data.task_order import EpochOrder
from strop.data.taskset import TaskSet, load_taskset
from strop.errors import DataError

ROWS = [{"question": "one " * (i % 9 + 1) + str(i), "answer": i if i % 2 else str(i)} for i in range(40)]


@pytest.fixture(autouse=True)
def small_batches(tmp_path, monkeypatch):
    """Every file is large, and batches of its Arrow file are small."""
    monkeypatch.setenv("STROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "MAPPED_FROM_BYTES", 1)
    monkeypatch.setattr(prompt_check, "CACHED_FROM_ROWS", 1)
    for module in (mapped_rows, mapped_rows):
        monkeypatch.setattr(module, "ROWS_PER_BATCH", 3)


@pytest.fixture
def entries(tmp_path):
    """The names of the cache's entries."""
    return lambda: sorted(entry.name for entry in (tmp_path / "cache").glob("*"))


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DatasetRows, DatasetRows]:
    """The rows of a file, mapped and in memory."""
    mapped = read_rows(TasksetConfig(path=str(path)))
    assert mapped.fingerprint is not None
    with monkeypatch.context() as patch:
        patch.setattr(files, "MAPPED_FROM_BYTES", 1 << 30)
        plain = read_rows(TasksetConfig(path=str(path)))
    assert plain.fingerprint is None
    return mapped, plain


def assert_same(mapped: DatasetRows, plain: DatasetRows, columns: list[str]) -> None:
    assert len(mapped) == len(plain)
    for index in reversed(range(len(plain))):
        assert mapped[index] == plain[index]
        assert list(mapped[index]) == list(plain[index]), "the order of the columns"
        assert mapped.where(index) == plain.where(index)
        assert mapped.folder(index) == plain.folder(index)
    assert list(mapped.locations()) == list(plain.locations())
    assert list(mapped.scan(columns)) == list(plain.scan(columns))
    with pytest.raises(IndexError):
        mapped[len(plain)]


@pytest.mark.parametrize("last", ["", "7", "1.5", "true", "x", str(2**64)])
@pytest.mark.parametrize("first", ["", "0", "-3", "False", "y"])
def test_the_types_of_csv_are_those_of_the_whole_file(first, last, tmp_path, monkeypatch):
    """The columns are converted in chunks, whose values alone may have other types."""
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{value},{i}\n" for i, value in enumerate([first, first, last])))
    monkeypatch.setattr(csv_file, "ROWS_PER_CHUNK", 2)
    monkeypatch.setattr(mapped_rows, "ROWS_PER_CHUNK", 2)
    mapped, plain = both(path, monkeypatch)
    assert [repr(mapped[i]) for i in range(3)] == [repr(plain[i]) for i in range(3)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_the_rows_are_those_of_the_file(count, suffix, tmp_path, monkeypatch):
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        path.write_text("a,b\n" + "".join(f'"{i},\n",00{i}\n' for i in range(count)))
    elif suffix == "parquet":
        rows = [{"b": {"c": [i]}, "a": None if i == 1 else str(i)} for i in range(count)]
        table = pa.Table.from_pylist(rows)
        table = table.append_column("d", pa.array(["x", "y"] * count)[:count].dictionary_encode())
        pq.write_table(table, path, row_group_size=2)
    else:
        values = [7, "7", None, {"deep": [1.5, 7]}, "\u2028\U0001f600"]
        lines = [json.dumps({"b": i, "a": values[i % 5]}, ensure_ascii=i % 2 == 0) for i in range(count)]
        text = ("\n\n" + "\r\n  \n".join(lines)).encode()
        path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    mapped, plain = both(path, monkeypatch)
    assert len(plain) == count
    assert_same(mapped, plain, ["a"])


def test_a_file_is_converted_once_per_version(write_lines, entries, monkeypatch):
    path = write_lines("a.jsonl", ROWS)
    first = read_rows(TasksetConfig(path=str(path)))
    assert len(entries()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(mapped_rows, "iterate_lines", None)
        again = read_rows(TasksetConfig(path=str(path)))
    assert [again[i] for i in range(40)] == ROWS
    assert again.fingerprint == first.fingerprint
    write_lines("a.jsonl", [{"question": "new"}])
    assert read_rows(TasksetConfig(path=str(path)))[0] == {"question": "new"}
    assert first[39] == ROWS[39], "a run that has begun keeps its rows"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_damaged_arrow_file_is_converted_again(suffix, tmp_path):
    """Arrow reads what a damaged file says: other rows, or offsets beyond its end, which end the process."""
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([{"a": "one"}, {"a": "two"}]), path)
    else:
        path.write_text('{"a": "one"}\n{"a": "two"}\n')
    rows = list(read_rows(TasksetConfig(path=str(path))).scan(["a"]))
    (arrow,) = (tmp_path / "cache").glob("*/rows.arrow")
    valid = arrow.read_bytes()
    for damaged in (valid[:-100], valid.replace(b"one", b"six"), bytes(len(valid))):
        assert damaged != valid
        arrow.write_bytes(damaged)
        assert list(read_rows(TasksetConfig(path=str(path))).scan(["a"])) == rows


def test_a_remote_file_is_converted_once_per_version(monkeypatch):
    memory = fsspec.filesystem("memory")
    url = "memory://test-large-files/a.jsonl"
    memory.pipe_file(url, b'{"a": 1}\n')
    assert read_rows(TasksetConfig(path=url))[0] == {"a": 1}
    with monkeypatch.context() as patch:
        patch.setattr(mapped_rows, "iterate_lines", None)
        assert read_rows(TasksetConfig(path=url))[0] == {"a": 1}
    memory.pipe_file(url, b'{"a": 2}\n')
    assert read_rows(TasksetConfig(path=url))[0] == {"a": 2}
    memory.rm(url)


def test_a_malformed_line_is_named_and_leaves_no_entry(write_lines, entries):
    path = write_lines("a.jsonl", [*ROWS, "{"])
    with pytest.raises(DataError, match="line 41 is not JSON"):
        read_rows(TasksetConfig(path=str(path)))
    assert entries() == []


def test_without_a_folder_for_the_cache_a_temporary_one_is_used(write_lines, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, in which no folder can be made")
    rows = read_rows(TasksetConfig(path=str(write_lines("a.jsonl", ROWS))))
    assert rows[7] == ROWS[7]


def load(path: Path, tokenizer: PreTrainedTokenizerBase, **data: Any) -> TaskSet:
    section = TasksetConfig(path=str(path), prompt="question")
    return load_taskset(section, DataConfig(train=section, **data), tokenizer, seed=7, shuffle=True)


@pytest.mark.parametrize("rule", ["filter", "left", "middle"])
@pytest.mark.parametrize("limit", [24, 400])
def test_order_and_draws_are_those_of_encoding_everything_first(rule, limit, tokenizer, write_lines):
    path = write_lines("a.jsonl", ROWS)
    prompts = [ChatPrompt("", ({"role": "user", "content": row["question"]},)) for row in ROWS]
    whole = PromptEncoder(tokenizer, "tokenizer").encode_all(prompts)
    expected = fit_prompts(whole, rule, limit, str)
    order = EpochOrder(len(expected.rows), seed=7, shuffle=True, incomplete="drop")
    assert limit == 400 or 0 < expected.num_overlong < 40
    for _ in range(2):  # the second time from the cache
        order.position = 0
        taskset = load(path, tokenizer, overlong=rule, max_prompt_tokens=limit)
        assert (len(taskset), taskset.num_overlong) == (len(expected.rows), expected.num_overlong)
        assert [task.id for task in taskset.all_tasks()] == [f"train:{row}" for row in expected.rows]
        for _ in range(10):
            tasks, indices = taskset.take(4), order.take(4).tolist()
            assert [task.id for task in tasks] == [f"train:{expected.rows[i]}" for i in indices]
            for task, i in zip(tasks, indices, strict=True):
                assert task.prompt_ids.tolist() == expected.prompts[i].tolist()
                assert task.answer == ROWS[expected.rows[i]]["answer"]


def count_encoded(monkeypatch, method: str) -> list[int]:
    """The number of prompts in each call of a method of PromptEncoder, as the calls come."""
    encoded: list[int] = []
    original = getattr(PromptEncoder, method)

    def counted(self: PromptEncoder, prompts: Any, *limit: int) -> Any:
        encoded.append(len(prompts))
        return original(self, prompts, *limit)

    monkeypatch.setattr(PromptEncoder, method, counted)
    return encoded


def test_the_check_is_cached_until_what_it_depends_on_changes(tokenizer, write_lines, monkeypatch):
    checked = count_encoded(monkeypatch, "encode_longer")
    path = write_lines("a.jsonl", ROWS)
    first = load(path, tokenizer)
    assert sum(checked) == 40
    assert load(path, tokenizer).fingerprint == first.fingerprint
    assert sum(checked) == 40
    load(path, tokenizer, max_prompt_tokens=500)
    load(path, tokenizer, chat_template="{{ messages[0].content }}")
    assert sum(checked) == 120
    write_lines("a.jsonl", ROWS[:20])
    assert load(path, tokenizer).fingerprint != first.fingerprint


def test_the_next_step_is_encoded_in_the_background(tokenizer, write_lines, monkeypatch):
    encoded = count_encoded(monkeypatch, "encode_all")
    taskset = load(write_lines("a.jsonl", ROWS), tokenizer)
    assert encoded == [], "nothing is encoded before it is needed"
    taskset.take(5)
    taskset.take(5)  # waits for the background
    assert encoded[:2] == [5, 5]
    taskset.take(5)
    assert encoded[:3] == [5, 5, 5] and sum(encoded) <= 20


def changed(tokenizer, **parts: Any) -> PreTrainedTokenizerFast:
    """The tokenizer with other parts."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture(scope="module")
def tokenizers(tokenizer):
    """The tokenizer without and with NFC, each with its bound."""
    both = (tokenizer, changed(tokenizer, normalizer=normalizers.NFC()))
    return [(each, TokenBound.of(each, adds_special_tokens=False)) for each in both]


@settings(max_examples=60)
@given(text=st.text(st.characters(codec="utf-8")) | st.text("\u0958\u0344\ufb2c\U0001d160e\u0301 <|end|>"))
def test_a_text_has_no_more_tokens_than_the_bound(tokenizers, text):
    for each, bound in tokenizers:
        assert bound is not None
        assert len(each(text, add_special_tokens=False)["input_ids"]) <= bound(text)


def test_nfc_can_lengthen_a_text():
    text = "\U0001d160"  # a musical symbol, of four bytes
    assert len(unicodedata.normalize("NFC", text).encode()) == 12


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.NFKC()},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        {"model": models.WordLevel({"a": 0}, unk_token="a")},
    ],
    ids=str,
)
def test_other_tokenizers_have_no_bound(parts, tokenizer):
    assert TokenBound.of(changed(tokenizer, **parts), adds_special_tokens=False) is None


def test_entries_that_were_not_used_for_a_month_are_deleted(write_lines, tmp_path, entries):
    read_rows(TasksetConfig(path=str(write_lines("a.jsonl", ROWS))))
    (old,) = entries()
    os.utime(tmp_path / "cache" / old / "entry.json", (0, 0))
    read_rows(TasksetConfig(path=str(write_lines("b.jsonl", ROWS))))
    assert len(entries()) == 1 and old not in entries()
