"""What every buffer promises, whatever it is made of."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from strop.errors import BufferEnded, Interrupted, StoreError
from strop.protocols import BufferCounts
from tests.buffer.conftest import KINDS, Place
from tests.buffer.groups import assert_same, ids, make_group, make_groups

LASTING = [kind for kind in KINDS if kind not in ("queue", "priority")]
"""Kinds that outlive the process."""
BOUNDED = [kind for kind in KINDS if not kind.startswith(("file", "priority"))]
"""Kinds in which writers wait."""


@pytest.fixture(params=list(KINDS))
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


@pytest.fixture(params=LASTING)
def lasting(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


@pytest.fixture(params=BOUNDED)
def bounded(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


def test_groups_come_out_whole_and_in_order(place: Place) -> None:
    groups = [*make_groups(4), make_group("empty", experiences=0)]
    buffer = place.open()
    buffer.put(groups[:2])
    buffer.put(groups[2:])
    assert_same(buffer.take(3), groups[:3])
    assert_same(buffer.take(2), groups[3:])
    assert buffer.counts() == BufferCounts(queued=0, claimed=5, done=0)
    buffer.acknowledge(ids(groups))
    assert buffer.counts() == BufferCounts(queued=0, claimed=0, done=5)


def test_a_step_of_any_size_goes_in_at_once(place: Place) -> None:
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


def test_what_was_not_acknowledged_comes_back_and_what_was_does_not(lasting: Place) -> None:
    groups = make_groups(5)
    first = lasting.open()
    first.put(groups)
    first.acknowledge(ids(first.take(3))[:2])
    first.close()
    second = lasting.open()
    assert second.counts() == BufferCounts(queued=3, claimed=0, done=2)
    second.put(groups)
    assert_same(second.take(9, timeout_seconds=0), groups[2:])


def test_a_batch_that_does_not_fill_is_read_as_it_is(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    buffer = place.open(read_timeout_seconds=0.1)
    buffer.put(make_groups(2))
    assert ids(buffer.take(3)) == ["g0", "g1"]
    assert "2 of 3 groups were in" in caplog.text
    assert buffer.take(3, timeout_seconds=0) == []
    assert buffer.take(0) == []


def test_a_reader_waits_until_its_batch_is_whole(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(1))
    later = threading.Timer(0.2, lambda: buffer.put(make_groups(3)))
    later.start()
    assert ids(buffer.take(3)) == ["g0", "g1", "g2"]
    later.join()


def test_the_end_is_said_once_all_is_read(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(3))
    buffer.finish()
    started = time.monotonic()
    assert ids(buffer.take(2)) == ["g0", "g1"]
    assert ids(buffer.take(2)) == ["g2"]
    with pytest.raises(BufferEnded, match="finished"):
        buffer.take(2)
    assert time.monotonic() - started < 5
    assert buffer.take(0) == []


def test_nothing_is_put_after_the_end(place: Place) -> None:
    buffer = place.open()
    buffer.finish()
    with pytest.raises(StoreError, match="after `finish`"):
        buffer.put(make_groups(1))


def test_finishing_ends_a_wait(place: Place) -> None:
    buffer = place.open()
    later = threading.Timer(0.2, buffer.finish)
    later.start()
    with pytest.raises(BufferEnded):
        buffer.take(1)
    later.join()


def test_only_what_was_taken_can_be_acknowledged(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(2))
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["g0"])
    buffer.take(1)
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["g1"])


def test_what_is_discarded_is_done_whether_it_waits_or_was_taken(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(4))
    assert ids(buffer.take(2)) == ["g0", "g1"]
    buffer.discard(["g1", "g3", "never seen"])
    buffer.discard(["g1"])
    assert buffer.counts() == BufferCounts(queued=1, claimed=1, done=2)
    buffer.put(make_groups(4))
    buffer.acknowledge(["g0"])
    assert ids(buffer.take(9, timeout_seconds=0)) == ["g2"]
    with pytest.raises(StoreError, match="acknowledged"):
        buffer.acknowledge(["never seen"])


def test_who_takes_a_readers_place_discards_what_that_one_held(lasting: Place) -> None:
    """As a trainer that was killed after its checkpoint and before the acknowledgement."""
    first = lasting.open(member="trainer")
    first.put(make_groups(3))
    first.take(2)
    first.close()
    second = lasting.open(member="trainer")
    second.discard(["g0", "g1"])
    assert ids(second.take(9, timeout_seconds=0)) == ["g2"]


def test_a_stop_ends_a_wait(place: Place) -> None:
    def stop() -> None:
        raise Interrupted("Stopped by SIGTERM.", 15)

    with place.open(check=stop) as buffer, pytest.raises(Interrupted):
        buffer.take(1)


def test_a_run_that_starts_anew_finds_nothing(lasting: Place) -> None:
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


def test_clearing_where_nothing_is_does_nothing(place: Place) -> None:
    place.clear()


def test_a_full_buffer_makes_writers_wait(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2)
    writer = threading.Thread(target=buffer.put, args=[make_groups(5)])
    writer.start()
    time.sleep(0.3)
    assert buffer.counts().queued == 2
    taken = [ids(buffer.take(2)), ids(buffer.take(2)), ids(buffer.take(1))]
    assert taken == [["g0", "g1"], ["g2", "g3"], ["g4"]]
    writer.join()


def test_waiting_for_room_has_an_end(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2, write_timeout_seconds=0.1)
    with pytest.raises(StoreError, match=r"has been full \(2 groups\) for 0 s"):
        buffer.put(make_groups(3))
    assert ids(buffer.take(2)) == ["g0", "g1"]


def test_a_batch_larger_than_the_buffer_is_refused(bounded: Place) -> None:
    buffer = bounded.open(capacity_groups=2)
    with pytest.raises(StoreError, match="capacity_groups` to 3 or more"):
        buffer.take(3)


def test_a_closed_buffer_says_so(place: Place) -> None:
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
            except BufferEnded:
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
