"""A command in the background, whose output a test waits for."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


class Command:
    """A process that writes to a file."""

    def __init__(self, output: Path, *arguments: str, **environment: str) -> None:
        self.output = output
        with output.open("w") as file:
            self._process = subprocess.Popen(
                arguments, stdout=file, stderr=subprocess.STDOUT, env=clean_environment(**environment)
            )

    def wait_for(self, text: str, seconds: float = 600) -> str:
        """The output, once it has a text; fails where the process ends before."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None
            if text in (found := self.output.read_text()):
                return found
            assert not ended and time.monotonic() < deadline, found
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._process.wait()


def clean_environment(**more: str) -> dict[str, str]:
    """The environment for a command; ranks in this process have left their network interface in it."""
    kept = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    return kept | {"OMP_NUM_THREADS": "1"} | more
