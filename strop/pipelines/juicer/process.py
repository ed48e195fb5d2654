"""The Data-Juicer service as a child process, run by the interpreter of its own environment."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import weakref
from contextlib import suppress
from pathlib import Path

from strop.config.paths import expand_user
from strop.errors import ConfigError
from strop.pipelines.juicer.service import TOKEN
from strop.workers.child_process import ErrorReport, describe_exit

PYTHON = "STROP_DATA_JUICER_PYTHON"
"""Environment variable with the interpreter of an environment that has py-data-juicer."""
_START_SECONDS = 60.0
_TAIL_CHARACTERS = 1000
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class ServiceProcess:
    """A running service. It ends with this process, and with `close`."""

    def __init__(self, python: str, port: int) -> None:
        """Raises ConfigError for an interpreter that cannot run the service."""
        self.token = secrets.token_hex(16)
        self._log = ErrorReport()
        kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(Path(__file__).with_name("service.py")), "--owned", "--port", str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log.fileno(),
                env={**kept, TOKEN: self.token},
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"data_juicer: {python} cannot be started: {error.strerror}.") from None
        self._end = weakref.finalize(self, _end, self._process)
        self.url = f"http://127.0.0.1:{self._read_port(python)}"

    def _read_port(self, python: str) -> int:
        assert self._process.stdout is not None
        waiting = select.poll()  # not `select.select`, which takes no descriptor above 1023
        waiting.register(self._process.stdout, select.POLLIN)
        line = self._process.stdout.readline() if waiting.poll(_START_SECONDS * 1000) else b""
        try:
            return int(json.loads(line)["port"])
        except (ValueError, KeyError, TypeError):
            self.close()
            raise ConfigError(
                f"data_juicer: the service that {python} runs did not start: {self.log_tail() or 'no output'}"
            ) from None

    def ended(self) -> str | None:
        """The end of the process; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self.close()  # with its operators, at once: later another process may have its number
        return f"it ended {describe_exit(code)}"

    def log_tail(self) -> str:
        """The last lines that the service has written."""
        return self._log.read()[-_TAIL_CHARACTERS:].strip()

    def close(self) -> None:
        """End the process."""
        self._end()


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # with the processes of the operators
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def interpreter(python: str | None) -> str:
    """The interpreter that a section or the environment names. Raises ConfigError if none does."""
    named = python or os.environ.get(PYTHON)
    if not named:
        raise ConfigError(
            "data_juicer: write python, the interpreter of an environment with py-data-juicer, or set "
            f"{PYTHON}; or url, the address of a service that runs. `make .venv-datajuicer/ready` makes such an "
            "environment."
        )
    found = shutil.which(expand_user(named))
    if found is None:
        raise ConfigError(f"data_juicer: there is no interpreter {named}; write the path of a Python.")
    return found
