"""Files that someone else has put there: no read waits, and none is endless."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from strop.workers.files import open_regular, read_regular


@pytest.mark.parametrize("kind", ["fifo", "folder", "/proc/self/status", "/proc/kmsg", "/dev/zero", "link"])
def test_other_than_regular_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/proc/self/status" if kind == "link" else kind)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_files_in_shared_memory_are_regular() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "file")
        path.write_bytes(b"content")
        assert read_regular(path) == b"content"


def test_a_regular_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert (read_regular(path), read_regular(path, 4)) == (b"content", b"cont")
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing")
