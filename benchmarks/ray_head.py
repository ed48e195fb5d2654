"""A Ray cluster of one node on this machine, for benchmarks whose runs may have another interpreter."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from free_port import find_free_port

from strop.workers.network import LOOPBACK

ROOT = Path(__file__).parents[1]
START_SECONDS = 120
"""Maximum time until the head's port is open; an interpreter on a busy machine starts slowly."""


@contextmanager
def ray_head(python: str, *, cpus: int, gpus: int = 0) -> Iterator[Mapping[str, str]]:
    """Start a head node; yields the environment variables with which a run connects to it, `RAY_ADDRESS` among them.

    Ray starts its workers with `python`. CPUs and GPUs are logical.
    """
    port = find_free_port(LOOPBACK)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [
        *(python, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"),
        *(f"--num-cpus={cpus}", f"--num-gpus={gpus}"),
        *("--include-dashboard=false", "--disable-usage-stats"),
    ]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | token | own
    ) as head:
        try:
            _wait_for_port(head, port)
            yield token | {"RAY_ADDRESS": f"{LOOPBACK}:{port}"}
        finally:
            head.terminate()
            with suppress(ValueError):  # closed by `_wait_for_port`
                head.communicate()


def _wait_for_port(head: subprocess.Popen[str], port: int) -> None:
    """Wait until the head accepts connections. Exits with its output if it ends before, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while head.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.2)
    head.terminate()
    sys.exit(f"Ray's head node did not start within {START_SECONDS} s:\n{head.communicate()[0]}")
