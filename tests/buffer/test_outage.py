"""A database server that stops, or crashes, and comes back."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from strop.errors import StoreError
from strop.protocols import BufferCounts
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group, make_groups
from tests.buffer.postgres import Server


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_processes_wait_for_the_server_and_continue(
    how: signal.Signals, server: Server, place_of: Callable[[str], Place], caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of("postgresql")
    writer = place.open(role="writer", lease_seconds=1)
    reader = place.open(role="reader", lease_seconds=1)
    other = place.open(role="reader", lease_seconds=1)
    writer.put(make_groups(4))
    held = ids(other.take(2))
    read: list[str] = []
    waiting = threading.Thread(target=lambda: read.extend(ids(reader.take(4))))
    waiting.start()
    server.stop(how)
    writing = threading.Thread(target=writer.put, args=[[make_group("g4"), make_group("g5")]])
    writing.start()
    time.sleep(1.5)  # longer than the lease: no heartbeat was possible
    server.start()
    for thread in (waiting, writing):
        thread.join(30)
    assert read == ["g2", "g3", "g4", "g5"]
    other.acknowledge(held)
    reader.acknowledge(read)
    assert reader.counts() == BufferCounts(queued=0, leased=0, done=6)
    assert "does not respond" in caplog.text
    assert "responds again, after" in caplog.text


def test_the_wait_for_a_server_times_out(server: Server, place_of: Callable[[str], Place]) -> None:
    buffer = place_of("postgresql").open(reconnect_timeout_seconds=0.3)
    server.stop()
    try:
        with pytest.raises(
            StoreError, match=r"has not responded for \d s: .* `buffer.reconnect_timeout_seconds`"
        ):
            buffer.put(make_groups(1))
        buffer.close()
    finally:
        server.start()
