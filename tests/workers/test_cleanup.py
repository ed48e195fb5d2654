"""Errors of cleanup code, and files to which lines are appended."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from strop.errors import RunFolderError, message_with_notes
from strop.workers.cleanup import cleanup, closing, keep_first_error
from strop.workers.files import AppendFile


def fail() -> None:
    raise OSError(28, "No space left on device")


class FailsToClose:
    def close(self) -> None:
        fail()


def test_an_error_of_the_cleanup_never_replaces_the_first_one() -> None:
    with pytest.raises(RunFolderError, match="first") as caught, cleanup(fail):
        raise RunFolderError("The first one.")
    assert message_with_notes(caught.value) == (
        "The first one. After that, a second error: [Errno 28] No space left on device"
    )
    with pytest.raises(OSError, match="No space"), cleanup(fail):
        pass
    with pytest.raises(KeyError) as caught_key, closing(FailsToClose()):
        raise KeyError("first")
    assert "No space left" in message_with_notes(caught_key.value)
    with pytest.raises(OSError, match="No space"), keep_first_error(None):
        fail()


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for content, complete in (
        (b"", b""),
        (b"half", b""),
        (b"one\nha", b"one\n"),
        (b"one\n" + b"x" * 70_000, b"one\n"),
    ):
        path.write_bytes(content)
        file = AppendFile(path)
        file.append(b"two\n")
        file.close()
        assert path.read_bytes() == complete + b"two\n"


def test_a_line_that_does_not_fit_is_removed(tmp_path: Path) -> None:
    """The limit of a file's size makes a real `write` end early, and the next one fail."""
    file = AppendFile(tmp_path / "lines")
    file.append(b"one\n")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(OSError, match="File too large"):
            file.append(b"a line that is too long\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    assert file.append(b"two\n") == 4
    file.sync()
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
