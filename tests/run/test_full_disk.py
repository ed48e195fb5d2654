"""A disk that fills up during a run: one paragraph, no temporary files, and a resume to the same end.

The disk of a run in one process is a small tmpfs; mounting one needs root, so those tests are skipped elsewhere.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import StropError, message_with_notes
from tests.cases import nightly
from tests.files import digest

from .results import rows_of, train
from .test_launch import start
from .test_rank_killed import model, next_rank_process
from .test_rank_killed import settings as rank_settings

__all__ = ["model"]  # a fixture
PAGE = 4096
LARGE = 64 << 20
MANY_PARTS = (*(number / 1000 for number in range(1, 30, 2)), *(number / 30 for number in range(1, 30)))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs, whose size `resize` changes."""
    (disk := tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "tmpfs", str(disk)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def result_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The metrics without the clock's, and digests of the weights."""
    weights = {str(file.relative_to(folder)): digest(file) for file in folder.rglob("*.safetensors")}
    return rows_of(folder), weights


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def fill_and_resume(values: Any, disk: Path, size: int, whole: Path) -> str | None:
    """Train on a disk of `size` bytes, and resume on a large one; returns the error, None without one."""
    run = strop.load(values(name=f"full-{size}", output=str(disk), record__report=True))
    folder, message = run.run.folder_path, None
    resize(disk, size)
    try:
        strop.train(run)
    except StropError as error:
        message = message_with_notes(error)
        assert "\n" not in message and "No space left" in message, message
    assert leftovers(disk) == []
    resize(disk, LARGE)
    strop.train(run)
    assert result_of(folder) == result_of(whole)
    shutil.rmtree(folder)
    return message


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("parts", "failing"), [((0.002, 0.05, 0.5), 3), *nightly((MANY_PARTS, 31))])
def test_a_full_disk_loses_nothing(values, disk, parts, failing):
    """The disk takes a part of the files of the uninterrupted run."""
    whole = train(values(name="whole", record__report=True)).folder
    pages = sum(-(-path.stat().st_size // PAGE) for path in whole.rglob("*") if path.is_file())
    failed = [fill_and_resume(values, disk, int(pages * PAGE * part), whole) for part in parts]
    assert sum(message is not None for message in failed) >= failing


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_refuses_the_files_of_one_rank_loses_nothing(values, tmp_path, model, rank):
    """A limit on the size of files stands in for the full disk of one of two ranks."""
    run = rank_settings(values, model, "whole", False)
    start(tmp_path, run).finish()
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
    start(tmp_path, run | {"name": "full"}).finish()
    assert result_of(folder) == result_of(whole)
