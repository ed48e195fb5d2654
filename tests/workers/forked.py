"""Children of the fork server: `python -m tests.workers.forked TASK`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from strop.workers.child_process import start_module


def describe() -> None:
    """Print what a process inherits."""
    import colorsys  # the server has imported it
    import random

    import numpy

    print(
        json.dumps(
            {
                "argv": sys.argv[1:],
                "module": sys.modules["__main__"].__spec__.name,  # type: ignore[union-attr]
                "folder": str(Path.cwd()),
                "variable": os.environ.get("FORKED_TEST"),
                "gpus_asked_of_nvml": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"),
                "path": sys.path,
                "leads_session": os.getsid(0) == os.getpid(),
                "ignores": [number for number in (2, 15, 17) if signal.getsignal(number) == signal.SIG_IGN],
                "descriptors": [number for number in range(100) if is_open(number)],
                "stdin": sys.stdin.read(),
                "streams": [
                    (
                        stream.seekable(),
                        stream.isatty(),
                        stream.line_buffering,
                        stream.encoding,
                        stream.errors,
                    )
                    for stream in (sys.stdin, sys.stdout, sys.stderr)
                ],
                "threads": threading.active_count(),
                "draws": [random.random(), float(numpy.random.random())],
                "modules": [colorsys.__name__],
            }
        )
    )


def is_open(descriptor: int) -> bool:
    """Whether this process has a file descriptor."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def end(how: str) -> None:
    """End with an exit code, by an exception, or by a signal."""
    if how.startswith("signal "):
        os.kill(os.getpid(), int(how.split()[1]))
    if how == "exception":
        raise LookupError("nothing")
    sys.exit(int(how))


def own_children() -> None:
    """Start a child from a fork server of this process, print both ids, and wait to be killed."""
    child = start_module(
        "tests.workers.forked", "wait", imports=["colorsys"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    server = psutil.Process(child.pid).ppid()
    print(server, child.pid, flush=True)
    signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["describe", *_]:
            describe()
        case ["end", how]:
            end(how)
        case ["own-children"]:
            own_children()
        case ["wait"]:
            sys.stdin.read()
        case ["write", descriptor, text]:
            os.write(int(descriptor), text.encode())
