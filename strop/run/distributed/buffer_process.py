"""The buffer role: the experience buffer as a process of its own, until the launcher ends it."""

from __future__ import annotations

import time

from strop.buffer.factory import serve_buffer
from strop.config.load.loader import LoadedRun
from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.run.distributed.placement import local_address
from strop.workers.signals import StopSignal

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
