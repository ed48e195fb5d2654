"""Sandbox of this machine: one process per program, which confines itself before it runs the program.

The mechanism is bubblewrap, or a plain process that confines itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from strop.config.schema.reward import LocalSandboxConfig
from strop.errors import SandboxError
from strop.printable import printable
from strop.sandbox.control_groups import JOIN_FAILED, ControlGroup, ControlGroups
from strop.sandbox.protocol import IsolationLevel, Program, ProgramResult

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
_FOLDER_FILES = 4
"""Size of the folder, in files of the maximum size, where it is in memory."""
_MAX_THREADS = 64
"""Maximum number of processes and threads of one program, with those of its tests and of the sandbox."""
_OVERHEAD_BYTES = 100_000_000
"""Memory of the sandbox's own processes, in addition to that of the program."""
_INSIDE = "/sandbox/inside"
_FOLDER = "/program"
_COUNTED_BY_NAMESPACE = (5, 14)
"""First version of Linux that counts the threads of a user in each user namespace on its own."""
_CHUNK_BYTES = 1 << 16
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.0005, 0.05


def readable_paths() -> list[str]:
    """Files and folders that a program may read: those of Python, its packages and the system's libraries."""
    python = {sys.prefix, sys.exec_prefix, sys.base_prefix, str(Path(sys.executable).parent)}
    python |= {
        path for path in sys.path if Path(path).name == "site-packages"
    }  # of an environment over another
    python |= {os.path.realpath(path) for path in (*python, sys.executable)}
    return [*(path for path in _SYSTEM_PATHS if Path(path).exists()), *sorted(python)]


def _device_paths() -> list[str]:
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
        memory = config.memory_mb * 1_000_000 + config.file_mb * 1_000_000 * _FOLDER_FILES + _OVERHEAD_BYTES
        self._groups = ControlGroups({"threads": _MAX_THREADS, "memory": memory})
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
            "max_threads": _MAX_THREADS if self._mechanism.limits_threads else None,
            "cpu_seconds": math.ceil(timeout_seconds) + 1,
            "readable": [*readable_paths(), self._mechanism.inside],
            "writable": [*_device_paths(), folder],
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


def open_local(config: LocalSandboxConfig) -> LocalSandbox:
    """Open the sandbox with the configured mechanism. Raises SandboxError if it does not work here, or if its
    isolation level is below the minimum."""
    sandbox = _open_mechanism(config)
    minimum = IsolationLevel[config.minimum.upper()]
    if sandbox.level < minimum:
        raise SandboxError(
            f"This machine isolates programs at the level {sandbox.level.label} (sandbox {sandbox.name!r}), and "
            f"reward.sandbox.minimum is {minimum.label}. Install bubblewrap (`apt-get install bubblewrap`), use a "
            "Linux kernel with Landlock and seccomp (5.13 or newer), name a SandboxFusion server, or write "
            f"reward.sandbox.minimum: {sandbox.level.label}."
        )
    return sandbox


def _open_mechanism(config: LocalSandboxConfig) -> LocalSandbox:
    process = Mechanism("process", lambda python, folder: list(python), str(INSIDE), None)
    path = shutil.which("bwrap")
    if config.mechanism == "process" or (config.mechanism == "auto" and path is None):
        return LocalSandbox(config, process)
    if path is None:
        raise SandboxError(
            "reward.sandbox.mechanism is bubblewrap, and there is no program `bwrap` in PATH. Install it "
            "(`apt-get install bubblewrap`), or write mechanism: auto."
        )
    bubblewrap = Mechanism(
        "bubblewrap",
        partial(_bubblewrap, path, config),
        _INSIDE,
        _FOLDER,
        _counts_threads(),
        IsolationLevel.NAMESPACED,
    )
    try:
        return LocalSandbox(config, bubblewrap)
    except SandboxError:
        if config.mechanism == "bubblewrap":
            raise
        return LocalSandbox(config, process)  # no user namespaces, as in many containers


def _counts_threads() -> bool:
    """Whether the kernel counts the threads in a user namespace; of root it limits none."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    is_new = version is not None and tuple(map(int, version.groups())) >= _COUNTED_BY_NAMESPACE
    return is_new and os.geteuid() != 0


def _bubblewrap(path: str, config: LocalSandboxConfig, python: Sequence[str], folder: str) -> list[str]:
    size = str(config.file_mb * 1_000_000 * _FOLDER_FILES)
    options = [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session"),
    ]
    for source in _outermost(readable_paths()):
        options += ["--ro-bind", source, source]
    for device in _device_paths():
        options += ["--dev-bind", device, device]
    options += ["--ro-bind", str(INSIDE), _INSIDE, "--size", size, "--tmpfs", _FOLDER, "--chdir", _FOLDER]
    return [path, *options, "--remount-ro", "/", "--", *python]


def _outermost(paths: Sequence[str]) -> list[str]:
    """The paths that are not below another one of them."""
    return [p for p in paths if not any(Path(other) in Path(p).parents for other in paths)]


@dataclass(frozen=True, slots=True)
class BoundedOutput:
    """Output of a process, and the limit at which reading stopped."""

    stdout: str
    stderr: str
    stopped: Literal["", "time limit", "output limit"]


def communicate(
    process: subprocess.Popen[bytes], content: bytes, *, timeout_seconds: float, max_bytes: int
) -> BoundedOutput:
    """Write `content` to the process and read its output until it ends, or until one of the limits.

    The process is neither killed nor reaped, so that its group can still be killed by its number. A process that does
    not read its input loses the rest of it.
    """
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + timeout_seconds
    received: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    unsent = memoryview(content)
    stopped: Literal["", "time limit", "output limit"] = ""
    with selectors.DefaultSelector() as selector:
        for pipe in received:
            selector.register(pipe, selectors.EVENT_READ)
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while not stopped and any(key.fileobj in received for key in selector.get_map().values()):
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if key.fileobj is process.stdin:
                    unsent = _write(selector, process.stdin, unsent)
                    continue
                chunk = os.read(key.fd, _CHUNK_BYTES)
                received[key.fileobj] += chunk  # type: ignore[index]
                if not chunk:
                    selector.unregister(key.fileobj)
            if max(map(len, received.values())) > max_bytes:
                stopped = "output limit"
            elif time.monotonic() > deadline:
                stopped = "time limit"
    if not stopped and not _wait_for_end(process, deadline):  # it has closed its output and runs on
        stopped = "time limit"
    out, err = (bytes(content[:max_bytes]).decode(errors="replace") for content in received.values())
    return BoundedOutput(out, err, stopped)


def _wait_for_end(process: subprocess.Popen[bytes], deadline: float) -> bool:
    pause = _FIRST_PAUSE_SECONDS
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
    return True


def _write(selector: selectors.BaseSelector, pipe: IO[bytes], unsent: memoryview) -> memoryview:
    with contextlib.suppress(BlockingIOError):
        try:
            unsent = unsent[os.write(pipe.fileno(), unsent[:_CHUNK_BYTES]) :]
        except BrokenPipeError:
            unsent = unsent[len(unsent) :]
        if not unsent:
            selector.unregister(pipe)
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    return unsent


log = logging.getLogger("strop.sandbox")
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.05
_MAX_SECONDS = 10.0
"""Maximum time of one attempt; the rest of a folder with very many files is removed after the next program."""


def remove_folder(path: str, max_seconds: float = _MAX_SECONDS) -> None:
    """Remove a folder and all below it, however deep it is. Raises OSError, and TimeoutError after `max_seconds`.

    One folder at a time is open, and no path is longer than a name. Nothing else may move the folders meanwhile.
    """
    deadline = time.monotonic() + max_seconds
    current = _open(path)
    names: list[str] = []
    try:
        pending = [_remove_files(current, deadline)]
        while True:
            if pending[-1]:
                names.append(pending[-1].pop())
                os.chmod(names[-1], 0o700, dir_fd=current)
                current = _replaced(current, names[-1])
                pending.append(_remove_files(current, deadline))
            elif names:
                current = _replaced(current, "..")
                os.rmdir(names.pop(), dir_fd=current)
                pending.pop()
            else:
                break
    finally:
        os.close(current)
    Path(path).rmdir()


def _open(name: str, folder: int | None = None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def _replaced(folder: int, name: str) -> int:
    """Open a folder of an open one, which is closed."""
    opened = _open(name, folder)
    os.close(folder)
    return opened


def _remove_files(folder: int, deadline: float) -> list[str]:
    """Remove the files of an open folder; the names of its folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                raise TimeoutError("too many files")
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


class FolderRemover:
    """Removes folders, and tries again after the next program what could not be removed. Any thread may call."""

    def __init__(self) -> None:
        self._left: set[str] = set()
        self._lock = threading.Lock()

    def remove(self, folder: str) -> None:
        """Remove a folder, and an earlier one that remains. A folder that remains is named once in the log."""
        with self._lock:
            earlier = [self._left.pop()] if self._left else []
        for path in (folder, *earlier):
            error = _tried(path)
            if error is None:
                continue
            with self._lock:
                self._left.add(path)
            if path == folder:
                log.warning(
                    "The folder %s of a program is not removed yet (%s); this is tried again after later programs.",
                    path,
                    error,
                )


def _tried(path: str) -> OSError | None:
    """The last error, if the folder remains after some attempts."""
    failure: OSError | None = None
    for attempt in range(_ATTEMPTS):
        try:
            remove_folder(path)
        except TimeoutError as error:
            return error
        except OSError as error:  # a process that was killed may still write
            failure = error
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_SECONDS)
        else:
            return None
    return failure
