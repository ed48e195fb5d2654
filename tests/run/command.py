"""A command in the background, whose output a test waits for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from strop.workers.child_process import ChildProcess
from strop.workers.waiting import wait_until
from tests.command import TIMEOUT_SECONDS, start_strop


class Command:
    """A process that writes to a file."""

    def __init__(self, output: Path, *arguments: str, folder: Path | None = None, **environment: str) -> None:
        self.output = output
        with output.open("wb") as file:
            self._process = self._start(arguments, folder, clean_environment(**environment), file)
        self.pid = self._process.pid

    def _start(
        self, arguments: Sequence[str], folder: Path | None, environment: dict[str, str], file: IO[bytes]
    ) -> ChildProcess:
        return subprocess.Popen(arguments, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def communicate(self) -> tuple[str, None]:
        """The output, after the end of the process."""
        self._process.wait(TIMEOUT_SECONDS)
        return self.output.read_text(), None

    def finish(self) -> str:
        """The output, after a successful end."""
        found, _ = self.communicate()
        assert self.returncode == 0, found
        return found

    def wait_for(self, text: str, seconds: float = TIMEOUT_SECONDS) -> str:
        """The output, once it has a text; fails where the process ends before."""

        def is_there() -> bool:
            has_ended = self.poll() is not None
            found = text in self.output.read_text()
            assert found or not has_ended, self.output.read_text()
            return found

        is_in_time = wait_until(is_there, text, timeout_seconds=seconds, interval_seconds=0.1)
        assert is_in_time, self.output.read_text()
        return self.output.read_text()


class StropCommand(Command):
    """`strop arguments...`, in a process that has imported its modules when it starts."""

    def _start(
        self, arguments: Sequence[str], folder: Path | None, environment: dict[str, str], file: IO[bytes]
    ) -> ChildProcess:
        return start_strop(*arguments, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)


def clean_environment(**more: str) -> dict[str, str]:
    """The environment for a command; ranks in this process have left their network interface in it."""
    kept = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    return kept | {"OMP_NUM_THREADS": "1"} | more
