"""The contract of `strop.protocols.Buffer`, tested on every implementation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from strop.errors import BufferExhausted, Interrupted, StoreError
from strop.protocols import BufferCounts
from strop.workers.waiting import wait_until
from tests.buffer.conftest import KINDS, Place
from tests.buffer.groups import assert_same, ids, make_group, make_groups

LASTING = [kind for kind in KINDS if kind not in ("queue", "priority")]
"""Kinds whose contents outlive the process."""
BOUNDED = [kind for kind in KINDS if not kind.startswith(("file", "priority"))]
"""Kinds whose writers wait while the buffer is full."""


@pytest.fixture(params=list(KINDS))
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


@pytest.fixture(params=BOUNDED)
def bounded(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


def test_groups_are_taken_complete_and_in_order(place: Place) -> None:
    groups = [*make_groups(4), make_group("empty", experiences=0)]
    buffer = place.open()
    buffer.put(groups[:2])
    buffer.put(groups[2:])
    assert_same(buffer.take(3), groups[:3])
    assert_same(buffer.take(2), groups[3:])
    assert buffer.counts() == BufferCounts(queued=0, leased=5, done=0)
    buffer.acknowledge(ids(groups))
    assert buffer.counts() == BufferCounts(queued=0, leased=0, done=5)


def test_a_put_of_any_size_is_stored_at_once(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(50))
    assert buffer.counts().queued == 50
    assert ids(buffer.take(50)) == [f"g{number}" for number in range(50)]


def test_no_group_is_put_twice(place: Place) -> None:
    buffer = place.open()
    buffer.put([*make_groups(2), *make_groups(1)])
    buffer.put(make_groups(3))
    buffer.acknowledge(ids(buffer.take(2)))
    buffer.put(make_groups(4))
    assert ids(buffer.take(9, timeout_seconds=0)) == ["g2", "g3"]


def test_only_unacknowledged_groups_are_queued_again(lasting: Place) -> None:
    groups = make_groups(5)
    first = lasting.open()
    first.put(groups)
    first.acknowledge(ids(first.take(3))[:2])
    first.close()
    second = lasting.open()
    assert second.counts() == BufferCounts(queued=3, leased=0, done=2)
    second.put(groups)
    assert_same(second.take(9, timeout_seconds=0), groups[2:])


def test_an_incomplete_batch_is_returned_after_the_timeout(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = place.open(read_timeout_seconds=0.1)
    buffer.put(make_groups(2))
    assert ids(buffer.take(3)) == ["g0", "g1"]
    assert "2 of 3 groups were in" in caplog.text
    assert buffer.take(3, timeout_seconds=0) == []
    assert buffer.take(0) == []


def test_a_reader_waits_for_a_complete_batch(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(1))
    later = threading.Timer(0.1, lambda: buffer.put(make_groups(3)))
    later.start()
    assert ids(buffer.take(3)) == ["g0", "g1", "g2"]
    later.join()


def test_the_end_is_raised_after_the_last_group(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(3))
    buffer.finish()
    assert ids(buffer.take(2)) == ["g0", "g1"]
    assert ids(buffer.take(2)) == ["g2"]
    with pytest.raises(BufferExhausted, match="finished"):
        buffer.take(2)
    assert buffer.take(0) == []


def test_nothing_is_put_after_the_end(place: Place) -> None:
    buffer = place.open()
    buffer.finish()
    with pytest.raises(StoreError, match="after `finish`"):
        buffer.put(make_groups(1))


def test_finish_ends_a_wait(place: Place) -> None:
    buffer = place.open()
    later = threading.Timer(0.1, buffer.finish)
    later.start()
    with pytest.raises(BufferExhausted):
        buffer.take(1)
    later.join()


def test_only_leased_groups_can_be_acknowledged(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(2))
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["g0"])
    buffer.take(1)
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["g1"])


def test_discarded_groups_are_done_whether_queued_or_leased(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(4))
    assert ids(buffer.take(2)) == ["g0", "g1"]
    buffer.discard(["g1", "g3", "unknown"])
    buffer.discard(["g1"])
    assert buffer.counts() == BufferCounts(queued=1, leased=1, done=2)
    buffer.put(make_groups(4))
    buffer.acknowledge(["g0"])
    assert ids(buffer.take(9, timeout_seconds=0)) == ["g2"]
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["unknown"])


def test_a_restarted_reader_can_discard_the_leases_of_the_first(lasting: Place) -> None:
    """As after a kill of the trainer between its checkpoint and the acknowledgement."""
    first = lasting.open(member_name="trainer")
    first.put(make_groups(3))
    first.take(2)
    first.close()
    second = lasting.open(member_name="trainer")
    second.discard(["g0", "g1"])
    assert ids(second.take(9, timeout_seconds=0)) == ["g2"]


def test_a_stop_check_ends_a_wait(place: Place) -> None:
    def stop() -> None:
        raise Interrupted("Stopped by SIGTERM.", 15)

    with place.open(check=stop) as buffer, pytest.raises(Interrupted):
        buffer.take(1)


def test_a_cleared_buffer_is_empty(lasting: Place) -> None:
    first = lasting.open()
    first.put(make_groups(3))
    first.acknowledge(ids(first.take(1)))
    first.finish()
    first.close()
    lasting.clear()
    second = lasting.open()
    assert second.counts() == BufferCounts(0, 0, 0)
    second.put(make_groups(2))
    assert ids(second.take(2)) == ["g0", "g1"]


def test_clearing_an_empty_buffer_does_nothing(place: Place) -> None:
    place.clear()


def test_a_full_buffer_makes_writers_wait(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2)
    writer = threading.Thread(target=buffer.put, args=[make_groups(5)])
    writer.start()
    assert wait_until(
        lambda: buffer.counts().queued == 2, "the first two", timeout_seconds=600, interval_seconds=0.01
    )
    time.sleep(0.05)
    assert buffer.counts().queued == 2
    taken = [ids(buffer.take(2)), ids(buffer.take(2)), ids(buffer.take(1))]
    assert taken == [["g0", "g1"], ["g2", "g3"], ["g4"]]
    writer.join()


def test_a_writer_times_out_on_a_full_buffer(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2, write_timeout_seconds=0.1)
    with pytest.raises(StoreError, match=r"has been full \(2 groups\) for 0\.1 s"):
        buffer.put(make_groups(3))
    assert ids(buffer.take(2)) == ["g0", "g1"]


def test_a_batch_larger_than_the_buffer_is_refused(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2)
    with pytest.raises(StoreError, match="capacity_groups` to 3 or more"):
        buffer.take(3)


def test_a_closed_buffer_raises(place: Place) -> None:
    buffer = place.open()
    buffer.close()
    buffer.close()
    if place.values["type"] != "file":
        with pytest.raises(StoreError, match="closed"):
            buffer.put(make_groups(1))


def test_many_threads_read_each_group_once(place: Place) -> None:
    buffer = place.open(**({} if place.values["type"] in ("file", "priority") else {"capacity_groups": 8}))
    read: Counter[str] = Counter()
    lock = threading.Lock()

    def write(number: int) -> None:
        for group in make_groups(12, prefix=f"w{number}-"):
            buffer.put([group])

    def read_all() -> None:
        while True:
            try:
                names = ids(buffer.take(3))
            except BufferExhausted:
                return
            buffer.acknowledge(names)
            with lock:
                read.update(names)

    readers = _start([read_all] * 3)
    writers = _start([lambda n=n: write(n) for n in range(4)])
    for thread in writers:
        thread.join()
    buffer.finish()
    for thread in readers:
        thread.join()
    assert read == Counter(f"w{number}-{i}" for number in range(4) for i in range(12))
    assert buffer.counts() == BufferCounts(0, 0, done=48)


def _start(targets: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    return threads
