"""Code that runs one role of a distributed run (explorer, trainer, buffer) in its own process, and that process's main
module."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from typing import assert_never

from strop.buffer.factory import serve_buffer
from strop.config.load.loader import LoadedRun
from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.errors import StropError, message_with_notes
from strop.run.distributed.placement import local_address
from strop.run.distributed.ray_cluster import serve_role
from strop.run.distributed.role import RoleEntry, RoleSpec
from strop.workers.fork_server import without_collections
from strop.workers.signals import StopSignal
from strop.workers.worker import Channel

_POLL_SECONDS = 0.1
_LINGER_SECONDS = 60.0
"""Longest time for which the buffer still serves explorer and trainer after the request to end."""


def run_buffer(loaded: LoadedRun) -> None:
    """Serve the buffer until SIGINT or SIGTERM. Raises errors of its connections, such as a full disk."""
    run = loaded.run
    assert isinstance(run.buffer, QueueBufferConfig | PriorityBufferConfig)
    with StopSignal() as stop, serve_buffer(run.buffer, run.folder_path, local_address(run)) as server:
        while stop.received is None:
            server.raise_errors()
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _LINGER_SECONDS
        while server.open_connections and time.monotonic() < deadline:
            server.raise_errors()
            time.sleep(_POLL_SECONDS)


def run_role(spec: RoleSpec) -> None:
    """Run a role to its end. Each is imported here, so that the buffer's process starts without torch."""
    match spec.name:
        case "buffer":
            run_buffer(spec.loaded)
        case "explorer":
            with without_collections():
                from strop.run.entry.explore import explore

            explore(spec.loaded, spec.reward)
        case "trainer":
            with without_collections():
                from strop.run.entry.train import train

            train(spec.loaded)
        case _:
            assert_never(spec.name)


def serve(channel: Channel) -> None:
    """Run the role of a Ray actor."""
    serve_role(channel, run_role)


ROLE_ENTRY = RoleEntry(
    "strop.run.entry.role_main", ("strop.run.entry.explore", "strop.run.entry.train"), serve
)


def main() -> None:
    """Run the role whose `RoleSpec` arrives on stdin; write a `StropError` to the file descriptor `argv[1]`.

    `argv[2]` is the role's name, for lists of processes.
    """
    spec: RoleSpec = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_exit_with_launcher, args=(sys.stdin.fileno(),), daemon=True).start()
    report = int(sys.argv[1])
    sys.argv = spec.argv
    try:
        run_role(spec)
    except StropError as error:
        with os.fdopen(report, "w") as file:
            file.write(message_with_notes(error))
        sys.exit(error.exit_code)


def _exit_with_launcher(stdin: int) -> None:
    """The launcher writes nothing more to stdin, so this read returns when the launcher has ended."""
    os.read(stdin, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
