"""Sandbox of this machine: one process per program, which confines itself before it runs the program."""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.printable import printable
from strop.sandbox.bounded_output import communicate
from strop.sandbox.control_groups import JOIN_FAILED, ControlGroup, ControlGroups
from strop.sandbox.protocol import IsolationLevel, Program, ProgramResult
from strop.sandbox.removal import FolderRemover

INSIDE = Path(__file__).with_name("inside")
_SYSTEM_PATHS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_PROBE_SECONDS = 60.0
FOLDER_FILES = 4
"""Size of the folder, in files of the maximum size, where it is in memory."""
MAX_THREADS = 64
"""Maximum number of processes and threads of one program, with those of its tests and of the sandbox."""
_OVERHEAD_BYTES = 100_000_000
"""Memory of the sandbox's own processes, in addition to that of the program."""


def readable_paths() -> list[str]:
    """Files and folders that a program may read: those of Python, its packages and the system's libraries."""
    python = {sys.prefix, sys.exec_prefix, sys.base_prefix, str(Path(sys.executable).parent)}
    python |= {
        path for path in sys.path if Path(path).name == "site-packages"
    }  # of an environment over another
    python |= {os.path.realpath(path) for path in (*python, sys.executable)}
    return [*(path for path in _SYSTEM_PATHS if Path(path).exists()), *sorted(python)]


def device_paths() -> list[str]:
    """Device files that a program may use."""
    return [path for path in _DEVICES if Path(path).exists()]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A way to start the process of a program."""

    name: str
    command: Callable[[Sequence[str], str], list[str]]
    """Builds the command from Python's command and the new folder."""
    inside: str
    """Folder that has the package `inside`, as the process sees it."""
    folder: str | None
    """Working folder, as the process sees it; None for the new folder of this machine."""
    limits_threads: bool = False
    """Whether the kernel counts the threads of the process alone, so that it can limit them."""
    raises_to: IsolationLevel | None = None
    """Isolation level of a process that has filtered its system calls itself; None for what it reports."""


class LocalSandbox:
    """A `Sandbox` on this machine. The constructor runs a trivial program to find the isolation level: it
    raises SandboxError if that program fails."""

    def __init__(self, config: LocalSandboxConfig, mechanism: Mechanism) -> None:
        self.name = mechanism.name
        self._config = config
        self._mechanism = mechanism
        self._folders = FolderRemover()
        memory = config.memory_mb * 1_000_000 + config.file_mb * 1_000_000 * FOLDER_FILES + _OVERHEAD_BYTES
        self._groups = ControlGroups({"threads": MAX_THREADS, "memory": memory})
        self.level, result = self._run(Program("print('ready')"), _PROBE_SECONDS)
        if result.stdout != "ready\n" or not result.completed:
            raise SandboxError(_start_failure(mechanism.name, result))
        limited = self._groups.limited | ({"threads"} if mechanism.limits_threads else set())
        self.unlimited = tuple(
            what
            for what, is_limited in (
                ("threads", "threads" in limited),
                ("kernel memory", "memory" in limited),
                ("number of files", self.level >= IsolationLevel.NAMESPACED),
            )
            if not is_limited
        )

    def run(self, program: Program, timeout_seconds: float) -> ProgramResult:
        """See `Sandbox`."""
        level, result = self._run(program, min(timeout_seconds, self._config.timeout_seconds))
        if level < self.level:
            raise SandboxError(
                f"A program ran in the sandbox {self.name!r} at the isolation level {level.label}, although the "
                f"sandbox had reached {self.level.label} at its start."
            )
        return result

    def _run(self, program: Program, timeout_seconds: float) -> tuple[IsolationLevel, ProgramResult]:
        marker = secrets.token_hex(16)
        with self._folder_and_group() as (new_folder, group):
            command = self._mechanism.command(_python_command(self._mechanism.inside, program), new_folder)
            process = subprocess.Popen(
                command if group is None else group.joined(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=new_folder,
                env={**_ENVIRONMENT, "HOME": self._folder(new_folder), "TMPDIR": self._folder(new_folder)},
                start_new_session=True,
            )
            try:
                output = communicate(
                    process,
                    self._input(program, marker, self._folder(new_folder), timeout_seconds),
                    timeout_seconds=timeout_seconds,
                    max_bytes=self._config.output_kb * 1000,
                )
            finally:
                _kill_group(process)
        first, _, rest = output.stdout.partition("\n")
        shown, completed, late = rest.rpartition(marker)
        result = ProgramResult(
            stdout=shown + late,
            stderr=output.stderr,
            exit_code=None if output.stopped else process.returncode,
            completed=bool(completed) and not output.stopped,
            stopped=output.stopped,
        )
        return self._level(first, marker, result), result

    @contextmanager
    def _folder_and_group(self) -> Iterator[tuple[str, ControlGroup | None]]:
        """A new folder and, where there is one, a control group; both end with the program."""
        try:
            group = self._groups.take()
        except OSError as error:
            raise SandboxError(
                f"The sandbox {self.name!r} cannot make a control group: {error}. Restart the run; without control "
                "groups it continues, and says that threads are not limited."
            ) from error
        new_folder = tempfile.mkdtemp(prefix="strop-program-")
        try:
            yield new_folder, group
        finally:
            if group is not None:
                self._groups.give_back(group)
            self._folders.remove(new_folder)

    def _folder(self, new_folder: str) -> str:
        return self._mechanism.folder or new_folder

    def _input(self, program: Program, marker: str, folder: str, timeout_seconds: float) -> bytes:
        source, following = program.source.encode(errors="replace"), program.stdin.encode(errors="replace")
        settings: dict[str, Any] = {
            "marker": marker,
            "source_bytes": len(source),
            "memory_bytes": self._config.memory_mb * 1_000_000,
            "file_bytes": self._config.file_mb * 1_000_000,
            "max_threads": MAX_THREADS if self._mechanism.limits_threads else None,
            "cpu_seconds": math.ceil(timeout_seconds) + 1,
            "readable": [*readable_paths(), self._mechanism.inside],
            "writable": [*device_paths(), folder],
        }
        if program.tests is not None:
            following = json.dumps(asdict(program.tests)).encode()
            settings["tests_bytes"] = len(following)
        header = json.dumps(settings).encode()
        return b"%08d%b%b%b" % (len(header), header, source, following)

    def _level(self, first_line: str, marker: str, result: ProgramResult) -> IsolationLevel:
        """Level that the process reports; `self.level` for one that was killed before it could report."""
        found, _, label = first_line.partition(" ")
        if found != marker:
            if (
                hasattr(self, "level")
                and result.exit_code != JOIN_FAILED
                and (result.stopped or result.exit_code)
            ):
                return self.level
            raise SandboxError(_start_failure(self.name, result, first_line))
        level = IsolationLevel[label.upper()]
        raised = self._mechanism.raises_to
        return raised if raised and level >= IsolationLevel.FILTERED else level


def _python_command(inside: str, program: Program) -> list[str]:
    parent = os.path.dirname(inside)  # noqa: PTH120  (a path in the sandbox)
    module = "main" if program.tests is None else "tests_process"
    start = f"import sys; sys.path.insert(0, {parent!r}); from inside.{module} import main; del sys.path[0]; main()"
    return [sys.executable, "-P", "-s", "-B", "-X", "utf8", "-c", start]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started, and close its pipes, which another process may still hold."""
    os.killpg(process.pid, signal.SIGKILL)  # also after its end: until `wait`, the number is not given away
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _start_failure(name: str, result: ProgramResult, first_line: str = "") -> str:
    reason = (result.stderr or first_line or result.stopped or f"exit code {result.exit_code}").strip()
    return f"The sandbox {name!r} cannot run a program on this machine: {printable(reason[-500:])}"
