"""Output of the command line: a stream that cannot be written ends a command with one line, and a run not at all.

A run goes on when its terminal or the reader of its pipe is gone; what it prints from then on goes into a file of its
folder.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STREAMS = {"stdout": 1, "stderr": 2}
_MAX_PENDING = 1_000_000
"""Bytes of lost output that are kept until the file for it is known."""


class OutputError(OSError):
    """Standard output or standard error cannot be written."""


class _LostOutput:
    """State of the output of this process: whether it may be lost, and the file that it goes to then."""

    def __init__(self) -> None:
        self.is_kept = False
        """Whether a run is in progress, which no lost output ends."""
        self._lock = threading.RLock()
        self._log: Path | None = None
        self._pending = bytearray()
        self._unreported: OSError | None = None

    def continue_in(self, log: Path | None) -> None:
        """Set the file for what is lost from now on, and write what was lost before; None forgets the file."""
        with self._lock:
            self._log = log
            if log is None:
                self._pending.clear()
                self._unreported = None
                return
            if self._pending:
                self._append(log)
            if self._unreported is not None:
                self._report(self._unreported)

    def add(self, data: bytes) -> None:
        """Keep data that no stream takes. Control sequences of a terminal, such as a progress bar, are left out."""
        if b"\x1b" in data:
            return
        with self._lock:
            self._pending += data[: max(0, _MAX_PENDING - len(self._pending))]
            if self._log is not None:
                self._append(self._log)

    def report(self, error: OSError) -> None:
        """Say why the output continues elsewhere: there, and on standard error as soon as the file is known."""
        with self._lock:
            self.add(
                f"The output cannot be written any more ({error.strerror}); it continues here.\n".encode()
            )
            if self._log is None:
                self._unreported = error
            else:
                self._report(error)

    def _report(self, error: OSError) -> None:
        self._unreported = None
        reason = f"The output cannot be written any more ({error.strerror}); the run prints into {self._log}."
        with suppress(OSError):  # standard error may be gone with it
            os.write(2, f"strop: {reason}\n".encode())

    def _append(self, log: Path) -> None:
        with suppress(OSError):  # a full disk: the records of the run say so
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as file:
                file.write(self._pending)
        self._pending.clear()


_output = _LostOutput()


class _Descriptor(io.RawIOBase):
    """A descriptor that is written until that fails."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_lost = False

    def write(self, data: Buffer, /) -> int:
        """Write all of the data, now or never. Raises `OutputError` once, unless a run is in progress."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest and not self._is_lost:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program has set the terminal so
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
            except OSError as error:
                self._is_lost = True
                if not _output.is_kept:
                    raise OutputError(error.errno, error.strerror) from error
                _output.report(error)
        if rest and _output.is_kept:
            _output.add(bytes(rest))
        return size

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal that still shows what is written."""
        return not self._is_lost and os.isatty(self._descriptor)


@contextmanager
def reported_output() -> Iterator[None]:
    """Inside the block, a failed write to standard output or standard error raises `OutputError`.

    The error is raised where the output is printed, and at the end of the block at the latest.
    """
    with _replaced_streams():
        yield


@contextmanager
def lasting_output(log: Path | None = None) -> Iterator[None]:
    """Inside the block, neither a closed terminal, nor a closed pipe, nor a full disk for the output is an error.

    What cannot be printed goes into `log`; without one it waits for an inner block that names one. The end of the
    terminal's session (SIGHUP) is ignored.
    """
    before = _output.is_kept
    hangup = _ignore_hangup() if not before else None
    with _replaced_streams():
        _output.is_kept = True
        if log is not None:
            _output.continue_in(log)
        try:
            yield
        finally:
            if not before:
                for stream in filter(None, (sys.stdout, sys.stderr)):
                    stream.flush()
                _output.is_kept = False
                _output.continue_in(None)
                if hangup is not None:
                    signal.signal(signal.SIGHUP, hangup)


def _ignore_hangup() -> signal.Handlers | None:
    """Ignore SIGHUP where it has its default action; returns that action to restore."""
    is_default = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    if not is_default or threading.current_thread() is not threading.main_thread():
        return None
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return signal.SIG_DFL


@contextmanager
def _replaced_streams() -> Iterator[None]:
    """Replace the streams that write to the descriptors 1 and 2; those of a notebook or a test stay."""
    replaced = {}
    for name, descriptor in _STREAMS.items():
        stream = getattr(sys, name)
        if _writes_to(stream, descriptor):
            with suppress(OSError):
                stream.flush()
            replaced[name] = stream
            setattr(sys, name, _stream_like(stream, descriptor))
    made = {name: getattr(sys, name) for name in replaced}
    try:
        yield
    finally:
        for name, stream in replaced.items():
            if getattr(sys, name) is made[name]:
                setattr(sys, name, stream)
        for stream in made.values():
            stream.flush()


def _writes_to(stream: object, descriptor: int) -> bool:
    if not isinstance(stream, io.TextIOWrapper) or isinstance(
        getattr(stream.buffer, "raw", stream.buffer), _Descriptor
    ):
        return False
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _stream_like(stream: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    raw = _Descriptor(descriptor)
    is_unbuffered = isinstance(stream.buffer, io.RawIOBase)
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type]
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
