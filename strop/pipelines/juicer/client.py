"""Client of a Data-Juicer service, with a service of its own where no address is given."""

from __future__ import annotations

import http.client
import json
import logging
import os
import secrets
import select
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from strop.config.paths import existing_path, expand_user
from strop.config.schema.task_pipeline import DataJuicerSection
from strop.errors import ConfigError, StropError
from strop.pipelines.juicer.service import TOKEN
from strop.workers.child_process import ErrorReport, RestartBudget, describe_exit
from strop.workers.json_text import parse_json
from strop.workers.waiting import TimedWait

log = logging.getLogger("strop.pipelines")
_RETRY_SECONDS = 1.0
_MAX_REPLY_BYTES = 1_000_000
_NO_SESSION = (404, 409)
PYTHON = "STROP_DATA_JUICER_PYTHON"
"""Environment variable with the interpreter of an environment that has py-data-juicer."""
_START_SECONDS = 60.0
_TAIL_CHARACTERS = 1000
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


class ServiceError(StropError):
    """A request that the service refuses, or a service that stays away."""


class JuicerClient:
    """A session with the operators of a section. It survives the end of the service: it waits, or starts it again."""

    def __init__(self, section: DataJuicerSection, kind: str) -> None:
        """Raises ConfigError if the service cannot be started, is another, or does not accept the operators."""
        self._section = section
        self._kind = kind
        self._budget = RestartBudget(section.max_restarts)
        self._process: ServiceProcess | None = None
        self._session = ""
        try:
            self._create()
        except (ServiceError, OSError, http.client.HTTPException) as error:
            self.close()
            hint = "" if section.url is None else " Start the service, and write its address as url."
            raise ConfigError(f"{self._failed(str(error))}{hint}") from error

    @property
    def address(self) -> str:
        """Address of the service."""
        return (self._section.url or "").rstrip("/") if self._process is None else self._process.url

    @property
    def session(self) -> str:
        """Id of the session, which changes with a restart of the service."""
        return self._session

    def close(self) -> None:
        """End the service that this client has started."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def process(self, path: str, body: Any, content_type: str, answer: IO[bytes]) -> None:
        """Send rows, and write the answer to a file.

        `body(session)` gives the content: it is called again where the service has been restarted. Raises
        ServiceError for an operator that fails, and for a service that stays away.
        """
        wait = TimedWait(self._section.wait_seconds)
        while True:
            try:
                if not self._session:
                    self._create()
                answer.seek(0)
                answer.truncate()
                self._post(path.format(session=self._session), body(self._session), content_type, answer)
                return
            except (OSError, http.client.HTTPException) as error:
                self._session = ""
                self._lost(error, wait)

    def _lost(self, error: Exception, wait: TimedWait) -> None:
        """Wait for the service, or end the one that has failed. Raises ServiceError when nothing is left to try."""
        if self._process is not None:
            how, tail = self._process.ended() or str(error), self._process.log_tail()
            self.close()
            if not self._budget.spend():
                raise ServiceError(
                    self._failed(f"{how}, after {self._budget}. Its last lines: {tail}")
                ) from error
            log.warning("The Data-Juicer service is started again: %s; %s.", how, self._budget)
            return
        seconds = wait.next_sleep_seconds(f"the Data-Juicer service at {self.address}", _RETRY_SECONDS)
        if not wait.remaining_seconds:
            raise ServiceError(
                self._failed(f"{error}; it did not come back in {wait.timeout_seconds:.0f} s")
            ) from error
        time.sleep(seconds)

    def _create(self) -> None:
        section = self._section
        if section.url is None and self._process is None:
            self._process = ServiceProcess(interpreter(section.python), section.port)
        config = section.config
        if config is not None and (found := existing_path(config)) is not None:
            config = str(found.resolve())
        request = {
            "operators": None if section.operators is None else list(section.operators),
            "config_path": config,
            "np": section.processes,
            "pipeline_type": self._kind,
        }
        answer = self._request("create", json.dumps(request).encode(), "application/json")
        try:
            self._session = str(parse_json(answer)["session_id"])
        except (ValueError, KeyError, TypeError):
            raise ServiceError(f"it answers {answer[:200]!r}") from None

    def _request(self, path: str, body: bytes, content_type: str) -> bytes:
        connection, response = self._open(path, body, content_type)
        with connection:
            return response.read(_MAX_REPLY_BYTES)

    def _post(self, path: str, body: Any, content_type: str, answer: IO[bytes]) -> None:
        connection, response = self._open(path, body, content_type)
        with connection:
            while block := response.read(2**20):
                answer.write(block)

    def _open(self, path: str, body: Any, content_type: str) -> tuple[Any, http.client.HTTPResponse]:
        """Raises ServiceError for a refusal, ConnectionResetError where the session is lost."""
        address = urlsplit(self.address)
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=self._section.timeout_seconds)
        headers = {"Content-Type": content_type, **self._authorization()}
        if not isinstance(body, bytes):
            headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        try:
            connection.request("POST", f"{address.path.rstrip('/')}/{path}", body, headers)
            response = connection.getresponse()
            if response.status == 200:
                return _Closing(connection), response
            content = response.read(2000)
        except BaseException:
            connection.close()
            raise
        connection.close()
        reason = f"{response.status} {_reason(content)}"
        if response.status in _NO_SESSION and self._session and "session" in reason:
            raise ConnectionResetError(reason)
        raise ServiceError(reason)

    def _authorization(self) -> Mapping[str, str]:
        token = os.environ.get(TOKEN) if self._process is None else self._process.token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _failed(self, reason: str) -> str:
        where = self.address or "(not started)"
        return f"the Data-Juicer service at {where} failed: {reason.rstrip('.')}."


class _Closing:
    """Closes a connection at the end of a block."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _reason(content: bytes) -> str:
    try:
        return str(parse_json(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content[:500].decode(errors="replace")


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
