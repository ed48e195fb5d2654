"""Communication with a process up to a time limit and a size of its output."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from dataclasses import dataclass
from typing import IO, Literal

_CHUNK_BYTES = 1 << 16
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.0005, 0.05


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
