"""The buffer as a process of its own, from its start until nobody needs it any more."""

from __future__ import annotations

import time

from strop.buffer.table import serve_buffer
from strop.config.load import Loaded
from strop.config.schema.buffer import PriorityBuffer, QueueBuffer
from strop.run.apart.host import own_host
from strop.run.stopping import StopSignal

_POLL_SECONDS = 0.1
_LINGER_SECONDS = 60.0
"""So long it stays after it was told to end, while explorer or trainer still put right what they leave."""


def keep(loaded: Loaded) -> None:
    """Keep the groups until SIGINT or SIGTERM. Raises what cannot be helped: a disk that is full, say."""
    run = loaded.run
    assert isinstance(run.buffer, QueueBuffer | PriorityBuffer)
    with StopSignal() as stop, serve_buffer(run.buffer, run.folder_path, own_host(run)) as server:
        while stop.received is None:
            server.look()
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _LINGER_SECONDS
        while server.lines and time.monotonic() < deadline:
            server.look()
            time.sleep(_POLL_SECONDS)
