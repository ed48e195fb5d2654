"""Main module of the fork server's process, and of the children that it forks. See `fork_server`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from strop.workers.fork_server import (
    ForkRequest,
    ForkServer,
    adopt_server,
    receive_exactly,
    receive_number,
    send_number,
    without_collections,
)

_MAX_DESCRIPTORS = 253
"""Maximum number of file descriptors in one message (`SCM_MAX_FD` of Linux)."""
_REFUSED = 0


def main() -> None:
    """Fork children for the process at the other end of the socket `argv[1]`, until it ends.

    In a child: run the module of the request, and end as it ends.
    """
    # The number of GPUs, which a library may ask for when it is imported, is asked of NVML: the CUDA driver does not
    # survive a fork. A child has its own environment.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    control = socket.socket(fileno=int(sys.argv[1]))
    while (request := _Server(control).run()) is not None:
        own = _fork_own_server(request) if request.has_children else None
        if own is None:
            sys.argv[1:] = request.arguments  # `run_module` sets the first one
            runpy.run_module(request.module, run_name="__main__", alter_sys=True)
            return
        control = own
    os._exit(0)


def _fork_own_server(request: ForkRequest) -> socket.socket | None:
    """Fork a server for a new child: its connection to the child, in the server; None in the child."""
    own_end, server_end = socket.socketpair()
    pid = os.fork()
    if pid:
        server_end.close()
        adopt_server(ForkServer(own_end, pid, request.environment))
        return None
    os.setsid()
    own_end.close()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    _close({null, *request.descriptors} - {0, 1, 2})
    _show_command([sys.executable, "-P", "-m", "strop.workers.fork_server_main"])
    return server_end


class _Server:
    """The loop of the server. Children that have ended keep their ids until their owner has read the exit code."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """Id and status connection of each running child, by the descriptor that tells its end."""
        self._ended: dict[int, tuple[int, socket.socket]] = {}
        """The same of each child that has ended, by the descriptor of its status connection."""

    def run(self) -> ForkRequest | None:
        """Serve until the owner ends: None. In a child: its request."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._running:
                    self._report_end(descriptor)
                elif descriptor in self._ended:
                    self._reap(descriptor)
                else:
                    message, received, *_ = socket.recv_fds(self._control, 1, _MAX_DESCRIPTORS)
                    if not message:
                        return None
                    request = self._fork(socket.socket(fileno=received[0]), received[1:])
                    if request is not None:
                        return request

    def _fork(self, status: socket.socket, received: Sequence[int]) -> ForkRequest | None:
        """Fork a child, and return its request there; None in the server."""
        request = _receive_request(status)
        if request is not None:
            _import(request.imports)
        if request is None or not request.module or not self._can_fork(request, status, received):
            send_number(status, _REFUSED)
            status.close()
            _close(received)
            return None
        ready, announce = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(ready)
            self._release(status)
            _become(request, received, announce)
            return request
        os.close(announce)
        os.read(ready, 1)  # the child has a session of its own, or has ended
        os.close(ready)
        _close(received)
        watched = os.pidfd_open(pid)
        self._running[watched] = pid, status
        self._poll.register(watched, select.POLLIN)
        send_number(status, pid)
        return None

    def _connections(self) -> list[socket.socket]:
        return [self._control, *(each for _, each in (*self._running.values(), *self._ended.values()))]

    def _release(self, status: socket.socket) -> None:
        """In a child: close the server's descriptors."""
        for connection in (status, *self._connections()):
            connection.close()
        _close(self._running)

    def _can_fork(self, request: ForkRequest, status: socket.socket, received: Sequence[int]) -> bool:
        """Whether no import has started a thread of Python, or opened a descriptor whose number the child needs."""
        own = {0, 1, 2, status.fileno(), *received, *self._running}
        own.update(connection.fileno() for connection in self._connections())
        return threading.active_count() == 1 and not any(map(_is_open, set(request.descriptors) - own))

    def _report_end(self, watched: int) -> None:
        pid, status = self._running.pop(watched)
        self._poll.unregister(watched)
        os.close(watched)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        send_number(status, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)
        self._ended[status.fileno()] = pid, status
        self._poll.register(status, select.POLLIN)

    def _reap(self, descriptor: int) -> None:
        pid, status = self._ended.pop(descriptor)
        self._poll.unregister(descriptor)
        status.close()
        os.waitpid(pid, 0)


def _receive_request(status: socket.socket) -> ForkRequest | None:
    size = receive_number(status)
    content = None if size is None else receive_exactly(status, size)
    return None if content is None else ForkRequest(**json.loads(content))


def _import(modules: Sequence[str]) -> None:
    """Import modules for this child and all later ones."""
    missing = [name for name in modules if name not in sys.modules]
    with without_collections():
        for name in missing:
            with contextlib.suppress(Exception):  # the child imports it, too, and reports the error
                importlib.import_module(name)
        if missing:
            gc.freeze()  # no collection in a child copies the shared pages of these objects


def _become(request: ForkRequest, received: Sequence[int], announce: int) -> None:
    """Make a fork equal to a new interpreter: its descriptors, environment, module path and random numbers.

    `announce` is closed at the end.
    """
    above = max(request.descriptors) + 1
    opened = [announce, *received]
    announce, *copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in opened]
    _close(opened)
    for copy, number in zip(copies, request.descriptors, strict=True):
        os.dup2(copy, number)
    _close(copies)
    with contextlib.suppress(OSError):  # a folder that was deleted
        os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:] = request.module_path
    importlib.invalidate_caches()
    for name in ("stdin", "stdout", "stderr"):
        stream = _opened_again(getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # of the global generator; Python seeds its own after a fork
    _show_command([sys.executable, "-P", "-m", request.module, *request.arguments])
    os.close(announce)


def _opened_again(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream as Python opens it for its present file, which may be a terminal, or one that cannot seek."""
    descriptor, is_unbuffered = stream.fileno(), isinstance(stream.buffer, io.RawIOBase)
    mode = "rb" if stream.readable() else "wb"
    binary = open(descriptor, mode, 0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115  (it stays open)
    return io.TextIOWrapper(
        binary,
        stream.encoding,
        stream.errors,
        newline="\n",
        line_buffering=not is_unbuffered and (descriptor == 2 or os.isatty(descriptor)),
        write_through=is_unbuffered,
    )


def _show_command(words: Sequence[str]) -> None:
    """Show this command line in lists of processes: write it into the memory of the server's arguments."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    if end - start < 2:
        return
    text = os.fsencode(" ".join(words))[: end - start - 2]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))
    ctypes.memset(end - 1, 1, 1)  # no zero here says that the text is one string that ends at its first zero


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    main()
