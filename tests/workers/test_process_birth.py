"""Signals reach the process that is meant, and no later process of the same id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strop.workers.process_birth import is_running, process_birth, signal_process


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits, and has the file `held` open."""
    command = [sys.executable, "-c", "open('held', 'w'); file = open('held'); print(flush=True); input()"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_birth_belongs_to_one_process(sleeper: subprocess.Popen[bytes]) -> None:
    own, other = process_birth(os.getpid()), process_birth(sleeper.pid)
    assert own and other and own != other and own == process_birth(os.getpid())
    assert is_running(sleeper.pid) and is_running(sleeper.pid, other) and not is_running(sleeper.pid, own)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(sleeper.pid, other), "a process that was not awaited has ended"
    sleeper.wait()
    assert process_birth(sleeper.pid) == "" and not is_running(sleeper.pid)


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_only_the_process_that_is_meant_gets_the_signal(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    if not has_descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    birth = process_birth(sleeper.pid)
    (tmp_path / "other").touch()
    assert not signal_process(sleeper.pid, process_birth(os.getpid()), signal.SIGTERM)
    assert not signal_process(sleeper.pid, birth, signal.SIGTERM, holding=tmp_path / "other")
    assert not signal_process(sleeper.pid, birth, signal.SIGTERM, holding=tmp_path / "missing")
    assert not any(signal_process(pid, "", signal.SIGTERM) for pid in (0, -1, -sleeper.pid, 2**22 + 1, 2**70))
    assert sleeper.poll() is None
    assert signal_process(sleeper.pid, birth, signal.SIGTERM, holding=tmp_path / "held")
    assert sleeper.wait() == -signal.SIGTERM
    assert not signal_process(sleeper.pid, birth, signal.SIGTERM)
