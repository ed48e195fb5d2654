"""Fork server: a process that has imported large modules once, from which child processes are forked.

Importing torch and transformers takes seconds in each new interpreter. The fork server is a fresh interpreter without
threads of Python and without a CUDA context, so that a fork of it equals a new interpreter that has these modules. It
starts with the first child that needs it, and ends with this process, however that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

_SERVER_MODULE = "strop.workers.fork_server_main"
_TITLE_PADDING = " " * 512
"""Last argument of the server, whose memory a child overwrites with its own command line."""
_IMPORT_TIME_VARIABLES = re.compile(
    "PYTHON|LD_|LC_|LANG|HOME|TMPDIR|XDG_|MALLOC_|GLIBC_|GOMP_|OMP_|KMP_|MKL_|OPENBLAS_|BLIS_|NUMEXPR_|TORCH|PYTORCH_|"
    "ATEN_|TRITON_|CUDA_HOME|HF_|HUGGINGFACE_|TRANSFORMERS_|ACCELERATE_|DS_|SAFETENSORS_|ARROW_|USE_"
)
"""First letters of environment variables that Python and libraries read when they are started or imported."""
_LATER_VARIABLES = frozenset(
    (
        "PYTHONPATH",
        "PYTHONBREAKPOINT",
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "DS_ACCELERATOR",
    )
)
"""Others than these: a child has its own module path, and those that Ray, torch and Strop set in this process are read
at their use, or by DeepSpeed, which the server does not import."""
_NUMBER = struct.Struct("!q")
_END_SECONDS, _POLL_SECONDS = 5.0, 0.005
_server: ForkServer | None = None
_server_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A child process to fork."""

    module: str
    """Main module, as for `python -m`; empty for the imports alone."""
    arguments: Sequence[str]
    imports: Sequence[str]
    """Modules that the server imports before the fork, if it has not done so before."""
    environment: Mapping[str, str]
    module_path: Sequence[str]
    folder: str
    descriptors: Sequence[int]
    """Numbers, in the child, of the file descriptors that are sent with the request."""
    has_children: bool = False
    """Whether the child gets a fork server of its own, a fork of this one, for children that it starts."""
    outlives_server: bool = False
    """Whether the child goes on where the server is killed; its exit code is unknown then."""


class ForkedProcess:
    """A child of the fork server, with the methods of `subprocess.Popen`. Any thread may call them."""

    def __init__(self, pid: int, status: socket.socket, *, outlives_server: bool = False) -> None:
        """`status` is the connection on which the server reports the exit code."""
        self.pid = pid
        self._outlives_server = outlives_server
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._status = status
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self._exit_code(deadline)) is None:
            if deadline is not None and time.monotonic() >= deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self.poll()
        with self._lock:  # until the exit code is read, the server keeps the process's id
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, deadline: float | None) -> int | None:
        """The exit code; None if it is not known at the deadline, which None says there is none of."""
        if self.returncode is None:
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            waiting = select.poll()  # not `select.select`, which takes no descriptor above 1023
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(None if seconds is None else seconds * 1000):
                return None
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._read_exit_code()
                    self._status.shutdown(socket.SHUT_RDWR)  # the server may give up the process's id
        return self.returncode

    def _read_exit_code(self) -> int:
        code = receive_number(self._status)
        if code is not None:
            return code
        if not self._outlives_server:  # the server was killed, and cannot report a later end
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return -signal.SIGKILL


class ForkServer:
    """The fork server of this process. Any thread may call it."""

    def __init__(self, control: socket.socket, pid: int, environment: Mapping[str, str]) -> None:
        """`control` is the connection to the server, a child of this process that has started with `environment`."""
        self.pid = pid
        self._control = control
        self._import_time = import_time_variables(environment)
        self._lock = threading.Lock()
        self._has_ended = False

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> ForkServer:
        """A server that is a new interpreter."""
        control, inherited = socket.socketpair()
        with inherited:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _SERVER_MODULE, str(inherited.fileno()), _TITLE_PADDING],
                pass_fds=[inherited.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a failed import fails again, and is reported, in the child
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )
        process.returncode = 0  # this object waits for it
        return cls(control, process.pid, environment)

    @property
    def has_ended(self) -> bool:
        """Whether the server has been killed or closed."""
        with self._lock:
            if not self._has_ended:
                try:
                    self._has_ended = os.waitpid(self.pid, os.WNOHANG) != (0, 0)
                except ChildProcessError:
                    self._has_ended = True
            return self._has_ended

    def fork(self, request: ForkRequest, sent: Sequence[int]) -> ForkedProcess | None:
        """Fork a child, which gets the descriptors `sent` under the numbers of the request.

        Returns None where a new interpreter is needed: for environment variables that libraries have read already,
        after imports that leave the server with threads, or without a server.
        """
        if import_time_variables(request.environment) != self._import_time:
            return None
        status, server_end = socket.socketpair()
        try:
            self._send(request, sent, status, server_end)
            pid = receive_number(status)
        except OSError:  # the server has ended, or a descriptor is closed
            pid = None
        if not pid:
            status.close()
            return None
        return ForkedProcess(pid, status, outlives_server=request.outlives_server)

    def prepare(self, request: ForkRequest) -> None:
        """Begin with the imports of a request without a main module."""
        status, server_end = socket.socketpair()
        with status, contextlib.suppress(OSError):  # a server that has ended
            self._send(request, (), status, server_end)

    def _send(
        self, request: ForkRequest, sent: Sequence[int], status: socket.socket, server_end: socket.socket
    ) -> None:
        with server_end, self._lock:
            socket.send_fds(self._control, [b"f"], [server_end.fileno(), *sent])
        content = json.dumps(asdict(request)).encode()
        status.sendall(_NUMBER.pack(len(content)) + content)

    def close(self) -> None:
        """End the server; its children end when they notice the end of this process, or go on."""
        self._control.close()
        deadline = time.monotonic() + _END_SECONDS
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def abandon(self) -> None:
        """In a fork of the server's owner: close the connection, which is the owner's."""
        self._control.close()


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """This process's fork server, which the first call starts with these variables; None on a platform without one."""
    global _server
    if sys.platform != "linux":  # macOS: its libraries do not survive a fork
        return None
    with _server_lock:
        if _server is None or _server.has_ended:
            _server = ForkServer.start(environment)
        return _server


def adopt_server(server: ForkServer) -> None:
    """Use a server that exists as this process's."""
    global _server
    _server = server


def _close() -> None:
    if _server is not None:
        _server.close()


def _forget() -> None:
    global _server, _server_lock
    _server_lock = threading.Lock()
    if _server is not None:
        _server.abandon()
        _server = None


atexit.register(_close)
os.register_at_fork(after_in_child=_forget)


def import_time_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that are read when modules are imported, so that a child cannot change them."""
    return {
        name: value
        for name, value in environment.items()
        if _IMPORT_TIME_VARIABLES.match(name) and name not in _LATER_VARIABLES
    }


def receive_number(connection: socket.socket) -> int | None:
    """The next number that was sent; None at the end."""
    data = receive_exactly(connection, _NUMBER.size)
    return None if data is None else int(_NUMBER.unpack(data)[0])


def send_number(connection: socket.socket, number: int) -> None:
    """Send a number; nothing if nobody listens."""
    with contextlib.suppress(OSError):
        connection.sendall(_NUMBER.pack(number))


def receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    """The next bytes; None at the end."""
    data = b""
    while len(data) < size:
        try:
            received = connection.recv(size - len(data))
        except ConnectionError:
            return None
        if not received:
            return None
        data += received
    return data


@contextmanager
def without_collections() -> Iterator[None]:
    """Around an import of torch and transformers: collections would take a second of six, and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
