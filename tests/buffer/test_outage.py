"""A database server that stops, or crashes, and comes back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from strop.errors import StoreError
from strop.protocols import BufferCounts
from strop.workers.waiting import wait_until
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group, make_groups
from tests.buffer.postgres import Server


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_processes_wait_for_the_server_and_continue(
    how: signal.Signals, server: Server, place_of: Callable[[str], Place], caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of("postgresql")
    writer, reader, other = (
        place.open(role=role, lease_seconds=600) for role in ("writer", "reader", "reader")
    )
    writer.put(make_groups(4))
    held = ids(other.take(2))
    with reader._database._engine.begin() as connection:  # no heartbeat will be possible during the outage
        connection.execute(sa.text("UPDATE strop_members SET alive_until = alive_until - 601"))
    reader._member._connected_since -= 600
    read: list[str] = []
    waiting = threading.Thread(target=lambda: read.extend(ids(reader.take(4))))
    server.stop(how)
    waiting.start()
    writing = threading.Thread(target=writer.put, args=[[make_group("g4"), make_group("g5")]])
    writing.start()
    assert wait_until(
        lambda: caplog.text.count("does not respond") >= 2,
        "both threads",
        timeout_seconds=600,
        interval_seconds=0.01,
    )
    server.start()
    for thread in (waiting, writing):
        thread.join()
    assert read == ["g2", "g3", "g4", "g5"]
    other.acknowledge(held)
    reader.acknowledge(read)
    assert reader.counts() == BufferCounts(queued=0, leased=0, done=6)
    assert "responds again, after" in caplog.text


def test_the_wait_for_a_server_times_out(server: Server, place_of: Callable[[str], Place]) -> None:
    buffer = place_of("postgresql").open(reconnect_timeout_seconds=0.3)
    server.stop()
    try:
        with pytest.raises(
            StoreError, match=r"has not responded for \d+ s: .* `buffer.reconnect_timeout_seconds`"
        ):
            buffer.put(make_groups(1))
        buffer.close()
    finally:
        server.start()
