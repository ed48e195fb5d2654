"""Runs that Studio starts: processes of their own, which continue when Studio ends, and their console output."""

from __future__ import annotations

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
from strop.runs.lock import is_running
from strop.workers.atomic_write import atomic_write

_FOLDER = ".studio"
"""Folder in a run folder for what Studio writes there."""
_LOG_BYTES = 200_000
"""Size of the end of a log that is shown."""
_children: list[subprocess.Popen[bytes]] = []
_children_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """The last process that Studio started for a run."""

    pid: int
    arguments: tuple[str, ...]
    """Arguments of `strop`."""
    cwd: str
    """Folder in which it was started; relative paths in the arguments and in the run file refer to it."""
    log: str
    """Name of the file with its console output, in the run's folder `.studio`."""
    birth: str
    """Start of the process, which distinguishes it from a later one with the same id."""

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        with _children_lock:
            _children[:] = [child for child in _children if child.poll() is None]
        return is_running(self.pid) and _birth(self.pid) == self.birth

    def terminate(self) -> bool:
        """Send SIGTERM to the process; returns whether it ran."""
        if self.is_running:
            os.kill(self.pid, signal.SIGTERM)
            return True
        return False


def start_process(
    arguments: Sequence[str], run_folder: Path, mode: int = 0o777, cwd: str = ""
) -> StartedProcess:
    """Start `strop` with these arguments as a process of its own, whose output goes into the run's folder.

    `mode` is the folder's permissions where it does not exist; `cwd` the process's working directory, by default that
    of Studio. Raises `RunFolderError` if the folder is not writable, the working directory does not exist, or a process
    that Studio started for this run still runs.
    """
    cwd = cwd or str(Path.cwd())
    if not Path(cwd).is_dir():
        raise RunFolderError(
            f"The run in {run_folder} was started in {cwd}, which does not exist any more. Repeat its command where "
            f"its files are now: strop {shlex.join(arguments)}"
        )
    before = started_process(run_folder)
    if before is not None and before.is_running:
        raise RunFolderError(f"The run in {run_folder} runs already, as process {before.pid}.")
    name = f"{datetime.now():%Y%m%d-%H%M%S}.log"
    try:
        run_folder.parent.mkdir(parents=True, exist_ok=True)
        run_folder.mkdir(mode=mode, exist_ok=True)
        (run_folder / _FOLDER).mkdir(exist_ok=True)
        with (run_folder / _FOLDER / name).open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "strop", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        started = StartedProcess(child.pid, tuple(arguments), cwd, name, _birth(child.pid))
        atomic_write(run_folder / _FOLDER / "process.json", json.dumps(asdict(started)) + "\n")
    except OSError as error:
        raise RunFolderError(
            f"The run cannot be started in {run_folder}: {error.strerror or error}. Set `output` to a writable folder."
        ) from error
    with _children_lock:
        _children.append(child)
    return started


def started_process(run_folder: Path) -> StartedProcess | None:
    """The last process that Studio started for a run; None if it started none."""
    try:
        values = json.loads((run_folder / _FOLDER / "process.json").read_text(encoding="utf-8"))
        return StartedProcess(**values | {"arguments": tuple(values["arguments"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _birth(pid: int) -> str:
    """Host and start time of a process, in the kernel's clock ticks since the start of the machine."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {stat.rpartition(')')[2].split()[19]}"


def log_files(run_folder: Path) -> list[Path]:
    """Files with console output of a run's processes, the newest first; those of a distributed run are in `log`."""
    found = [*(run_folder / _FOLDER).glob("*.log"), *(run_folder / "log").rglob("*.log")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def read_end(path: Path) -> str:
    """The end of a log; a line that the console rewrites is shown as it is at last."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = text.split("\n")[1 if size > _LOG_BYTES else 0 :]
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
