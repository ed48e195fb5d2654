"""Runs that Studio starts: processes of their own, which continue when Studio ends, and their console output.

Studio notes the command and the process of a run in a folder of its user, and not in the run's: what it signals and
repeats is what it has started, whatever a run folder from elsewhere holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from strop.errors import RunFolderError
from strop.workers.child_process import (
    ChildProcess,
    child_environment,
    fork_module,
    module_path,
    prepare_imports,
)
from strop.workers.files import atomic_write, is_regular, open_regular
from strop.workers.fork_server import ForkRequest, fork_server
from strop.workers.json_text import parse_json
from strop.workers.process_birth import is_running, process_birth, signal_process

_LOGS = ".studio"
"""Folder in a run folder for the console output."""
_LOG_BYTES = 200_000
"""Size of the end of a log that is shown."""
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}
"""Variables of every process that Studio starts, so that all are forks of one server."""
_IMPORTS = ("strop.cli.main", "strop.run.entry.explore", "strop.run.entry.train")
"""With torch and transformers."""
_children: list[ChildProcess] = []
_children_lock = threading.Lock()
"""Held during a start, so that two requests do not start one run twice."""


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """The last process that Studio started for a run."""

    host: str
    pid: int
    birth: str
    """Start of the process, which distinguishes it from a later one with the same id."""
    arguments: tuple[str, ...]
    """Arguments of `strop`."""
    cwd: str
    """Folder in which it was started; relative paths in the arguments and in the run file refer to it."""
    log: str
    """Name of the file with its console output, in the run's folder `.studio`."""

    @property
    def is_running(self) -> bool:
        """Whether the process runs, on this machine."""
        for child in tuple(_children):  # a child that has ended is no process of its id any more
            child.poll()
        return self.host == socket.gethostname() and is_running(self.pid, self.birth)

    def terminate(self) -> bool:
        """Send SIGTERM to the process; returns whether it ran."""
        return self.is_running and signal_process(self.pid, self.birth, signal.SIGTERM)


def start_process(
    arguments: Sequence[str], run_folder: Path, mode: int = 0o777, cwd: str = "", job: str = ""
) -> StartedProcess:
    """Start `strop` with these arguments as a process of its own, whose output goes into the run's folder.

    `mode` is the folder's permissions where it does not exist; `cwd` the process's working directory, by default that
    of Studio; `job` what the process does besides training: it is neither stopped nor resumed with the run. Raises
    `RunFolderError` if the folder is not writable, the working directory does not exist, or a process that Studio
    started for this run still runs.
    """
    cwd = cwd or str(Path.cwd())
    if not Path(cwd).is_dir():
        raise RunFolderError(
            f"The run in {run_folder} was started in {cwd}, which does not exist any more. Repeat its command where "
            f"its files are now: strop {shlex.join(arguments)}"
        )
    record = _record_of(run_folder, job)
    name = f"{datetime.now():%Y%m%d-%H%M%S}{job and '-'}{job}.log"
    with _children_lock:
        before = started_process(run_folder, job)
        if before is not None and before.is_running:
            what = f"`strop {job}` for" if job else "The run in"
            raise RunFolderError(f"{what} {run_folder} runs already, as process {before.pid}.")
        try:
            run_folder.parent.mkdir(parents=True, exist_ok=True)
            run_folder.mkdir(mode=mode, exist_ok=True)
            (run_folder / _LOGS).mkdir(exist_ok=True)
            with (run_folder / _LOGS / name).open("ab") as log:
                child = start_strop(arguments, cwd=cwd, stdout=log.fileno(), stderr=subprocess.STDOUT)
        except OSError as error:
            raise RunFolderError(
                f"The run cannot be started in {run_folder}: {error.strerror or error}. Set `output` to a writable "
                "folder."
            ) from error
        _children[:] = [each for each in _children if each.poll() is None] + [child]
        started = StartedProcess(
            socket.gethostname(), child.pid, process_birth(child.pid), tuple(arguments), cwd, name
        )
        try:
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            atomic_write(record, json.dumps(asdict(started)) + "\n", mode=0o600)
        except OSError as error:
            child.terminate()  # Studio could not stop it later
            raise RunFolderError(
                f"Studio cannot note the runs that it starts in {record.parent}: {error.strerror or error}. Set "
                "XDG_STATE_HOME to a writable folder of yours, and start Studio again."
            ) from error
    return started


def prepare_processes() -> None:
    """Let the fork server begin with the imports of processes that will start soon."""
    prepare_imports(_IMPORTS, **_ENVIRONMENT)


def start_strop(
    arguments: Sequence[str],
    *,
    cwd: str,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
) -> ChildProcess:
    """Start `python -m strop arguments...` in a folder and a session of its own, as a fork of the fork server, which
    has torch loaded, or as a new interpreter on platforms without one."""
    server = fork_server(child_environment(**_ENVIRONMENT))
    if server is not None:
        request = ForkRequest(
            "strop",
            arguments,
            _IMPORTS,
            os.environ | _ENVIRONMENT,
            [cwd, *module_path()],
            cwd,
            [0, 1, 2],
            has_children=True,
            outlives_server=True,
        )
        forked = fork_module(server, request, (), stdin, stdout, stderr)
        if forked is not None:
            return forked
    return subprocess.Popen(
        [sys.executable, "-m", "strop", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        start_new_session=True,
        env=os.environ | _ENVIRONMENT,
    )


def started_process(run_folder: Path, job: str = "") -> StartedProcess | None:
    """The last process that a Studio of this user started for a run; None if it started none."""
    try:
        values = parse_json(_record_of(run_folder, job).read_text(encoding="utf-8"))
        return StartedProcess(**values | {"arguments": tuple(values["arguments"])})
    except (OSError, ValueError, TypeError, KeyError, RunFolderError):
        return None


def _record_of(run_folder: Path, job: str) -> Path:
    """File with the last start of a run. Raises `RunFolderError` for a user without a home."""
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise RunFolderError(
            "Studio cannot note the runs that it starts, because this user has no home: set XDG_STATE_HOME to a "
            "writable folder of yours."
        ) from error
    name = hashlib.sha256(os.fsencode(run_folder.resolve())).hexdigest()[:32] + (job and f"-{job}")
    return folder / "strop" / "studio" / f"{name}.json"


def log_files(run_folder: Path) -> list[Path]:
    """Files with console output of a run's processes, the newest first; those of a distributed run are in `log`."""
    found = [*(run_folder / _LOGS).glob("*.log"), *(run_folder / "log").rglob("*.log")]
    return sorted(filter(is_regular, found), key=lambda path: path.stat().st_mtime, reverse=True)


def read_end(path: Path) -> str:
    """The end of a log; a line that the console rewrites is shown as it is at last."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}.") from error
    lines = text.split("\n")[1 if size > _LOG_BYTES else 0 :]
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
