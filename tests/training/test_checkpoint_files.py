"""Concurrency of checkpoint writes, and tensors read from shards."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.errors import CheckpointError
from strop.training.checkpoints.file_writer import write_files, write_order, writes_in_parallel
from strop.training.checkpoints.tensors import ShardedTensors, shard_file_name, write_tensors

RANK_BY_RANK = (frozenset({0}), frozenset({1}), frozenset({2}))


@pytest.mark.parametrize(
    ("writers", "threads", "order"),
    [
        ("all", True, (frozenset({0, 1, 2}),)),
        ("node", True, (frozenset({0, 2}), frozenset({1}))),
        ("process", True, RANK_BY_RANK),
        ("thread", False, RANK_BY_RANK),
    ],
)
def test_which_ranks_and_threads_write_at_the_same_time(writers, threads, order):
    assert writes_in_parallel(writers) == threads
    assert write_order(writers, ("one", "two", "one")) == order


def test_parallel_writes_overlap(tmp_path):
    meeting = threading.Barrier(3, timeout=30)

    def write(path: Path) -> None:
        meeting.wait()
        path.write_bytes(b"123456789")

    written = write_files(tmp_path, dict.fromkeys(("a", "b", "c"), write), parallel=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    assert {(file.bytes, file.crc32) for file in written.values()} == {(9, f"{zlib.crc32(b'123456789'):08x}")}


def test_sequential_writes_do_not_overlap(tmp_path):
    busy, order = threading.Lock(), []

    def write(path: Path) -> None:
        assert busy.acquire(blocking=False)
        order.append(path.name)
        path.touch()
        busy.release()

    write_files(tmp_path, dict.fromkeys("abcdefgh", write), parallel=False)
    assert order == list("abcdefgh")


def test_an_error_is_raised_after_all_writes_have_ended(tmp_path):
    failed = threading.Event()

    def fail(path: Path) -> None:
        failed.set()
        raise OSError("no space")

    def write(path: Path) -> None:
        assert failed.wait(30)
        path.touch()

    with pytest.raises(OSError, match="no space"):
        write_files(tmp_path, {"a": fail, "b": write}, parallel=True)
    assert (tmp_path / "b").exists()


@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
)
def test_shards_are_read_as_the_full_tensor(tmp_path_factory, rows, dtype):
    folder = tmp_path_factory.mktemp("parts")
    tensor = torch.arange(sum(rows) * 6).reshape(-1, 2, 3).to(dtype)
    for rank, part in enumerate(tensor.split(rows)):
        alone = {"count": torch.tensor(7.0)} if rank == 0 else {}
        write_tensors(folder / shard_file_name("w.safetensors", rank, len(rows)), {"x": part, **alone})
    stored = ShardedTensors(folder, "w.safetensors")
    assert stored.shapes == {"x": tensor.shape, "count": torch.Size([])}
    assert torch.equal(stored.read("x"), tensor) and stored.read("x").dtype == dtype
    assert stored.read("count") == 7


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_shard_is_reported(tmp_path, gone):
    for rank in {0, 1, 2} - {gone}:
        write_tensors(tmp_path / shard_file_name("w.safetensors", rank, 3), {"x": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"w\.safetensors cannot be read: .* of its shards w-0000"):
        ShardedTensors(tmp_path, "w.safetensors")
