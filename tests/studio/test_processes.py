"""Processes that Studio starts are forks of a server with torch loaded, which go on without it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strop import __version__
from strop.studio import processes
from strop.workers import fork_server
from strop.workers.fork_server import ForkedProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other platforms start new interpreters")
TIMEOUT = 600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run's folder, and a fork server of this test, which imports the command line only."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(fork_server, "_server", None)
    monkeypatch.setattr(processes, "_IMPORTS", ("strop.cli.main",))
    yield tmp_path / "run"
    fork_server._close()


def logged(folder: Path) -> str:
    """Text that the last process has written."""
    return processes.read_end(processes.log_files(folder)[0])


def test_process_is_a_fork_in_a_folder_and_session_of_its_own(folder: Path, tmp_path: Path) -> None:
    started = processes.start_process(["version"], folder, cwd=str(tmp_path))
    child = processes._children[-1]
    assert isinstance(child, ForkedProcess)
    assert (child.wait(TIMEOUT), logged(folder).strip()) == (0, __version__)
    assert not started.is_running
    processes.start_process(["check", "missing.yaml"], folder, cwd=str(tmp_path))
    assert processes._children[-1].wait(TIMEOUT) == 2
    assert "missing.yaml" in logged(folder)


def test_process_goes_on_where_the_fork_server_is_killed(folder: Path, tmp_path: Path) -> None:
    started = processes.start_process(["studio", "--port", "0"], folder, cwd=str(tmp_path))
    server = fork_server._server
    assert server is not None and os.getsid(started.pid) == started.pid
    os.kill(server.pid, signal.SIGKILL)
    while "Strop Studio" not in logged(folder):
        assert started.is_running
        time.sleep(0.05)
    assert started.terminate()
    while started.is_running:
        time.sleep(0.05)
