"""Checkpoints are complete or absent, whatever happens during a write."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from strop.errors import CheckpointError
from strop.protocols import FileChecksum
from strop.training.checkpoints import checkpoint
from tests.cases import nightly


def write(root: Path, step: int, fill: Callable[[Path], object], **kept: int | None) -> Path:
    """In one go; whatever `fill` returns, nothing is known of its files."""

    def filled(folder: Path) -> dict[str, FileChecksum]:
        fill(folder)
        return {}

    return checkpoint.commit(checkpoint.begin(root, step), filled, **kept)  # type: ignore[arg-type]


def fill(folder: Path) -> None:
    (folder / "state.json").write_text('{"step": 1}')
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(bytes(range(256)) * 40)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_a_written_checkpoint_is_verified_and_found(tmp_path: Path) -> None:
    path = write(tmp_path / "deep" / "checkpoints", 20, fill, keep=3)
    assert path.name == "step-000020"
    assert checkpoint.step_of(path) == 20
    checkpoint.verify(path)
    assert checkpoint.latest(path.parent) == (path, ())
    assert (path / "model" / "weights.bin").stat().st_size == 256 * 40
    assert names(path.parent) == ["step-000020"]


def test_latest_without_checkpoints(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "none") == (None, ())
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        checkpoint.verify(tmp_path)


def test_a_checkpoint_that_the_run_deletes_while_it_is_verified_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 20, fill, keep=None)
    newer = write(tmp_path, 30, fill, keep=None)
    (newer / "model" / "weights.bin").unlink()
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # as it was before
    found, (skipped,) = checkpoint.latest(tmp_path)
    assert found == tmp_path / "step-000020" and "lacks the file model/weights.bin" in skipped


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 1_000_000, 15):
        write(tmp_path, step, fill, keep=2)
    # 15 was written after 1000000: the run went back, and that one is of a course it left.
    assert names(tmp_path) == ["step-000010", "step-000015"]


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, 2, [2, 5]),
        (3, 2, [2, 4, 5]),
        (3, 5, [3, 4, 5]),
        (1, 2, [2, 5]),
        (1, 5, [5]),
        (None, 2, [1, 2, 3, 4, 5]),
        (None, None, [1, 2, 3, 4, 5]),
        (2, 9, [4, 5]),
    ],
)
def test_the_best_is_kept_and_counts_towards_keep(
    tmp_path: Path, keep: int | None, best: int | None, left: list[int]
) -> None:
    for step in range(1, 6):
        write(tmp_path, step, fill, keep=keep, best=best)
    assert names(tmp_path) == [f"step-{step:06d}" for step in left]


@given(st.integers(0, 256 * 40 - 1), st.sampled_from(["cut", "flip", "gone", "grown"]))
def test_any_damage_is_detected(tmp_path_factory: pytest.TempPathFactory, at: int, how: str) -> None:
    root = tmp_path_factory.mktemp("checkpoints")
    older = write(root, 10, fill, keep=3)
    newer = write(root, 20, fill, keep=3)
    victim = newer / "model" / "weights.bin"
    content = bytearray(victim.read_bytes())
    match how:
        case "cut":
            victim.write_bytes(content[:at])
        case "flip":
            content[at] ^= 1
            victim.write_bytes(content)
        case "gone":
            victim.unlink()
        case _:
            victim.write_bytes(content + b"x")
    found, passed_over = checkpoint.latest(root)
    assert found == older
    assert len(passed_over) == 1
    assert "step-000020" in passed_over[0] and "weights.bin" in passed_over[0]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"step": 20}', "[" * 100_000],
    ids=["empty", "cut", "list", "no files", "deep"],
)
def test_a_broken_manifest_is_detected(tmp_path: Path, content: str) -> None:
    older = write(tmp_path, 10, fill, keep=3)
    (write(tmp_path, 20, fill, keep=3) / checkpoint.MANIFEST_FILE).write_text(content)
    found, passed_over = checkpoint.latest(tmp_path)
    assert found == older and "manifest" in passed_over[0]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_repeated(tmp_path: Path) -> None:
    write(tmp_path, 10, fill, keep=1)
    damaged = write(tmp_path, 20, fill, keep=2)
    (damaged / "state.json").unlink()
    again = write(tmp_path, 20, fill, keep=2)
    assert checkpoint.latest(tmp_path) == (again, ())
    assert names(tmp_path) == ["step-000010", "step-000020"]


def test_a_damaged_later_checkpoint_does_not_evict_a_good_one(tmp_path: Path) -> None:
    write(tmp_path, 10, fill, keep=1)
    (write(tmp_path, 30, fill, keep=2) / "state.json").unlink()
    good = write(tmp_path, 20, fill, keep=1)
    assert checkpoint.latest(tmp_path) == (good, ())


def test_incomplete_checkpoints_are_never_resumed_from_and_are_removed_by_the_next_write(
    tmp_path: Path,
) -> None:
    leftover = tmp_path / ".step-000030.tmp"
    leftover.mkdir()
    fill(leftover)
    assert checkpoint.latest(tmp_path) == (None, ())
    write(tmp_path, 20, fill, keep=3)
    assert names(tmp_path) == ["step-000020"]


def test_other_errors_propagate_and_leave_no_files(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("a fault in the program")

    write(tmp_path, 10, fill, keep=3)
    with pytest.raises(RuntimeError, match="a fault in the program"):
        write(tmp_path, 20, broken, keep=3)
    assert names(tmp_path) == ["step-000010"]


def test_a_folder_that_cannot_be_created_is_reported_in_one_paragraph(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"step 20 .* Not a directory") as caught:
        write(tmp_path / "file" / "checkpoints", 20, fill, keep=3)
    assert "\n" not in str(caught.value)


def test_other_folders_are_not_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="step-000020"):
        checkpoint.step_of(tmp_path)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-000009").touch()
    assert checkpoint.latest(tmp_path) == (None, ())


WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda folder: (folder / "a").write_bytes(bytes(1 << 20)),
    "torch": lambda folder: torch.save({"a": torch.zeros(1 << 18)}, folder / "a.pt"),
    "safetensors": lambda folder: save_file({"a": torch.zeros(1 << 18)}, folder / "a.safetensors"),
}


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Stands in for a full disk: the write itself fails, as it then would."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("how", WRITERS)
def test_a_failed_write_keeps_the_older_checkpoint(tmp_path: Path, how: str) -> None:
    older = write(tmp_path, 10, WRITERS[how], keep=1)
    with pytest.raises(CheckpointError) as caught, limited_file_size(1 << 19):
        write(tmp_path, 20, WRITERS[how], keep=1)
    assert "The checkpoint of step 20 could not be written" in str(caught.value)
    assert "step-000010, is unchanged" in str(caught.value) and "\n" not in str(caught.value)
    assert checkpoint.latest(tmp_path) == (older, ())
    assert names(tmp_path) == ["step-000010"]


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of 1 MB, where this user may mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    def fill_with(elements: int):  # type: ignore[no-untyped-def]
        return lambda folder: save_file({"a": torch.zeros(elements)}, folder / "a.safetensors")

    older = write(small_disk, 10, fill_with(1 << 17), keep=1)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(small_disk, 20, fill_with(1 << 17), keep=1)
    assert checkpoint.latest(small_disk) == (older, ())
    write(small_disk, 20, fill_with(1 << 10), keep=1)
    assert names(small_disk) == ["step-000020"]


KILLED = """
import sys, time
from pathlib import Path
from strop.training.checkpoints import checkpoint

def fill(folder):
    for number in range(4):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 200_000)
    return {}

root = Path(sys.argv[1])
print("ready", flush=True)
for step in range(1, 100_000):
    checkpoint.commit(checkpoint.begin(root, step), fill, keep=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("delays", [(0.01, 0.02), *nightly(((0.0, 0.003, 0.01, 0.02, 0.035, 0.06),))])
def test_after_a_kill_at_any_moment_the_newest_checkpoint_is_complete(
    tmp_path: Path, delays: tuple[float, ...]
) -> None:
    for delay in delays:
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(timeout=0.05 + delay)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found, passed_over = checkpoint.latest(tmp_path)
        assert passed_over == ()
        assert found is None or sum(f.stat().st_size for f in found.glob("*.bin")) == 800_000


REPLACED = """
import os, signal, sys
from pathlib import Path
from strop.training.checkpoints import checkpoint
from strop.workers import files

root = Path(sys.argv[1])

def fill(folder):
    (folder / "again").touch()
    return {}

def kill(path):
    os.kill(os.getpid(), signal.SIGKILL)

pending = checkpoint.begin(root, 10)
files._exchange = lambda one, other: False
rename = Path.rename
Path.rename = lambda old, new: kill(new) if new.name == "step-000010" else rename(old, new)
checkpoint.commit(pending, fill, keep=1)
"""


def test_a_kill_while_the_only_checkpoint_is_written_again_loses_nothing(tmp_path: Path) -> None:
    """As at the end of an evaluation: killed between two renames, where folders cannot be exchanged."""
    older = write(tmp_path, 10, fill, keep=1)
    child = subprocess.run([sys.executable, "-c", REPLACED, str(tmp_path)], timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    assert checkpoint.latest(tmp_path) == (None, ())
    checkpoint.restore(tmp_path)
    assert checkpoint.latest(tmp_path) == (older, ())
    write(tmp_path, 20, fill, keep=2)
    assert names(tmp_path) == ["step-000010", "step-000020"]
