"""A disk that fills up during a run: one paragraph, no temporary files, and a resume to the same end.

The disk of a run in one process is a small tmpfs; mounting one needs root, so those tests are skipped elsewhere.
"""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import StropError, message_with_notes
from tests.further_cases import further_cases

from .test_launch import start
from .test_rank_killed import finish, model, next_rank_process
from .test_rank_killed import settings as rank_settings

__all__ = ["model"]  # a fixture
CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")
PAGE = 4096
LARGE = 64 << 20


class Disk:
    """A tmpfs whose size can be changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a tmpfs needs root")

    def resize(self, size: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.unmount()


def result_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """The metrics without the clock's, and the weights."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.safetensors")}
    return [{name: row[name] for name in row if not name.startswith(CLOCKS)} for row in rows], weights


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def fill_and_resume(values: Any, disk: Disk, size: int, whole: Path) -> str | None:
    """Train on a disk of `size` bytes, and resume on a large one; returns the error, None without one."""
    run = strop.load(values(name=f"full-{size}", output=str(disk.path), record__report=True))
    folder = run.run.folder_path
    disk.resize(size)
    message = None
    try:
        strop.train(run)
    except StropError as error:
        message = message_with_notes(error)
        assert "\n" not in message and "No space left" in message, message
    assert leftovers(disk.path) == []
    disk.resize(LARGE)
    strop.train(run)
    assert result_of(folder) == result_of(whole)
    subprocess.run(["rm", "-r", str(folder)], check=True)
    return message


def whole_run(values: Any, disk: Disk) -> tuple[Path, int]:
    """An uninterrupted run on another disk, and the bytes of its files in pages."""
    folder = strop.train(strop.load(values(name="whole", record__report=True))).folder
    pages = sum(-(-path.stat().st_size // PAGE) for path in folder.rglob("*") if path.is_file())
    return folder, pages * PAGE


@pytest.mark.faults
def test_a_full_disk_loses_nothing(values, disk):
    whole, size = whole_run(values, disk)
    messages = [fill_and_resume(values, disk, int(size * part), whole) for part in (0.002, 0.05, 0.5)]
    assert all(messages)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.evidence
def test_a_disk_that_is_full_at_any_write_loses_nothing(values, disk):
    whole, size = whole_run(values, disk)
    sizes = {page * PAGE for page in range(1, 30, 2)} | {int(size * part / 30) for part in range(1, 30)}
    failed = [fill_and_resume(values, disk, size, whole) for size in sorted(sizes)]
    assert sum(message is not None for message in failed) > 30


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, *further_cases(1)])
def test_a_disk_that_refuses_the_files_of_one_rank_loses_nothing(values, tmp_path, model, rank):
    """A limit on the size of files stands in for the full disk of one of two ranks."""
    run = rank_settings(values, model, "whole", False)
    finish(start(tmp_path, run))
    whole = tmp_path / "runs" / "strop" / "whole"
    process = start(tmp_path, run | {"name": "full"})
    victim = next_rank_process(process, set())
    resource.prlimit(victim.pid if rank else process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    said, _ = process.communicate()
    assert process.returncode == 1, said
    paragraph = said[said.index("The checkpoint of step") :].strip()
    assert "\n" not in paragraph and "File too large" in paragraph and "Traceback" not in said
    assert f"(on rank {rank} of the trainer)" in paragraph
    folder = whole.with_name("full")
    assert leftovers(folder) == []
    finish(start(tmp_path, run | {"name": "full"}))
    assert result_of(folder) == result_of(whole)
