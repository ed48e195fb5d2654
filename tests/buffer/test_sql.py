"""Leases and members of a buffer in a database, when processes die, are restarted or are slow."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from strop.buffer.factory import open_buffer
from strop.buffer.sql import database
from strop.buffer.sql import members as members_module
from strop.buffer.sql.database import Database, groups, make_engine, members
from strop.config.schema.buffer import SqlBufferConfig
from strop.errors import BufferExhausted, ConfigError, Interrupted, StoreError
from strop.protocols import BufferCounts
from tests.buffer.conftest import Place
from tests.buffer.groups import ids, make_group, make_groups

LEASE = 600.0
"""Seconds, which do not pass during a test: `expire` ends a lease."""


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


def die(buffer: Any) -> None:
    """The state after a kill of the process: no heartbeats, and no goodbye."""
    buffer._member.stop_heartbeat()
    buffer._database.close()


def expire(buffer: Any, by: Any) -> None:
    """The state one lease after the last heartbeat of a member, as another one sees it, who is connected for longer."""
    with by._database._engine.begin() as connection:
        own = members.c.session == buffer._member.session
        connection.execute(
            sa.update(members).where(own).values(alive_until=members.c.alive_until - LEASE - 1)
        )
    by._member._connected_since -= LEASE


def test_groups_of_a_dead_reader_are_queued_in_their_old_position(place: Place) -> None:
    dead = place.open(role="reader", lease_seconds=LEASE)
    writer = place.open(role="writer", lease_seconds=LEASE)
    reader = place.open(role="reader", lease_seconds=LEASE)
    writer.put(make_groups(4))
    assert ids(dead.take(2)) == ["g0", "g1"]
    die(dead)
    assert ids(reader.take(1)) == ["g2"], "its lease has not ended"
    expire(dead, reader)
    assert ids(reader.take(3)) == ["g0", "g1", "g3"]


def test_a_live_reader_keeps_its_leases(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread sends a heartbeat every third of a lease."""
    intervals: queue.SimpleQueue[float | None] = queue.SimpleQueue()

    class Hurried(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            intervals.put(timeout)
            return super().wait(0.01)

    threads = SimpleNamespace(Event=Hurried, Thread=threading.Thread)
    monkeypatch.setattr(members_module, "threading", threads)
    slow = place.open(role="reader", lease_seconds=LEASE)
    monkeypatch.undo()
    other = place.open(lease_seconds=LEASE)
    other.put(make_groups(2))
    assert ids(slow.take(1)) == ["g0"]
    assert intervals.get(timeout=600) == LEASE / 3
    expire(slow, other)
    for _ in range(intervals.qsize() + 2):  # until a heartbeat that begins now has ended
        intervals.get(timeout=600)
    assert ids(other.take(2, timeout_seconds=0)) == ["g1"]
    slow.acknowledge(["g0"])


def test_a_reader_that_leaves_returns_unacknowledged_groups(place: Place) -> None:
    leaving = place.open(role="reader")
    other = place.open()
    other.put(make_groups(2))
    leaving.take(2)
    leaving.acknowledge(["g0"])
    leaving.close()
    assert ids(other.take(2, timeout_seconds=0)) == ["g1"]


def test_a_restarted_reader_gets_its_groups_at_once(place: Place) -> None:
    before = place.open(member_name="trainer")
    before.put(make_groups(3))
    before.take(2)
    after = place.open(member_name="trainer")
    assert ids(after.take(3, timeout_seconds=0)) == ["g0", "g1", "g2"]
    for call in (lambda: before.take(1), lambda: before.put([make_group("late")])):
        with pytest.raises(StoreError, match=r"Another process has opened .* as 'trainer'"):
            call()
    with pytest.raises(StoreError, match="no longer leased to trainer"):
        before.acknowledge(["g0"])
    after.acknowledge(["g0", "g1", "g2"])


def test_a_paused_reader_cannot_acknowledge_groups_leased_to_another(place: Place) -> None:
    paused = place.open(role="reader", lease_seconds=LEASE)
    other = place.open(lease_seconds=LEASE)
    other.put(make_groups(2))
    paused.take(2)
    paused.acknowledge(["g1"])
    paused._member.stop_heartbeat()
    expire(paused, other)
    assert ids(other.take(1)) == ["g0"]
    with pytest.raises(
        StoreError, match=r"1 of 2 acknowledged groups .* no heartbeat during its lease of 600 s"
    ):
        paused.acknowledge(["g0", "g1"])


def test_after_an_outage_no_member_is_declared_dead_for_one_lease(place: Place) -> None:
    one = place.open(role="reader", lease_seconds=LEASE)
    two = place.open(lease_seconds=LEASE)
    two.put(make_groups(2))
    one.take(1)
    expire(one, two)
    expire(two, one)  # the state after an outage of the database
    assert ids(two.take(2, timeout_seconds=0)) == ["g1"]
    one.acknowledge(["g0"])


def test_the_end_waits_for_the_leases_of_other_readers(place: Place) -> None:
    one = place.open(role="reader")
    two = place.open(role="reader")
    writer = place.open(role="writer")
    writer.put(make_groups(2))
    writer.finish()
    writer.close()
    one.take(2)
    later = threading.Timer(0.1, one.close)
    later.start()
    assert ids(two.take(2)) == ["g0", "g1"]
    later.join()
    two.acknowledge(["g0", "g1"])
    with pytest.raises(BufferExhausted, match=r"writer-\S+ finished"):
        two.take(1)


def test_a_finished_member_returns_unacknowledged_groups(place: Place) -> None:
    one = place.open(member_name="one")
    one.put(make_groups(2))
    one.finish()
    one.take(1)
    one.close()
    assert ids(place.open(role="reader").take(2)) == ["g0", "g1"]


def test_a_replaced_writer_cannot_finish_for_its_successor(place: Place) -> None:
    before = place.open(role="writer", member_name="explorer")
    after = place.open(role="writer", member_name="explorer")
    before.finish()
    reader = place.open(role="reader")
    assert reader.take(1, timeout_seconds=0.1) == []
    after.put(make_groups(1))
    assert ids(reader.take(1)) == ["g0"]


def test_writing_ends_with_the_last_writer(place: Place) -> None:
    reader = place.open(role="reader")
    one, two = (place.open(role="writer", member_name=name) for name in ("one", "two"))
    one.finish()
    one.close()
    assert reader.take(1, timeout_seconds=0.1) == []
    two.put(make_groups(1))
    two.finish()
    assert ids(reader.take(2)) == ["g0"]
    with pytest.raises(BufferExhausted, match="one and two finished"):
        reader.take(1)


def test_rows_of_done_groups_keep_only_their_id(place: Place) -> None:
    buffer = place.open()
    buffer.put(make_groups(2))
    buffer.acknowledge(ids(buffer.take(1)))
    with buffer._database._engine.begin() as connection:
        rows = sa.select(groups.c.id, groups.c.content.is_(None)).where(groups.c.buffer == buffer._name)
        assert dict(connection.execute(rows).all()) == {"g0": True, "g1": False}


def test_a_reader_waits_for_the_restart_of_a_dead_writer(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    reader = place.open(role="reader", lease_seconds=LEASE)
    writer = place.open(role="writer", member_name="explorer", lease_seconds=LEASE)
    writer.put(make_groups(1))
    die(writer)
    expire(writer, reader)
    assert ids(reader.take(2, timeout_seconds=0.1)) == ["g0"]
    assert "explorer without a heartbeat" in caplog.text
    with pytest.raises(BufferExhausted, match="no writer is left: explorer without a heartbeat"):
        reader.take(1, timeout_seconds=0.1)
    restarted = place.open(role="writer", member_name="explorer", lease_seconds=LEASE)
    restarted.put(make_groups(2))
    assert ids(reader.take(1)) == ["g1"]


def test_a_reader_may_open_the_buffer_before_the_writers(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    assert place.open(role="reader").take(1, timeout_seconds=0.1) == []
    assert "no writer has joined yet" in caplog.text


def test_runs_that_share_a_database_have_separate_buffers(place: Place) -> None:
    mine, theirs = place.open(name="mine"), place.open(name="theirs")
    mine.put(make_groups(3))
    theirs.put(make_groups(1))
    assert ids(theirs.take(3, timeout_seconds=0)) == ["g0"]
    theirs.acknowledge(["g0"])
    assert mine.counts() == BufferCounts(queued=3, leased=0, done=0)


def test_a_buffer_in_use_is_not_cleared(place: Place) -> None:
    other = place.open(member_name="trainer of another run")
    other.put(make_groups(1))
    with pytest.raises(StoreError, match=r"is in use \(trainer of another run\)"):
        place.clear()
    assert other.counts().queued == 1


def test_a_killed_run_can_be_started_again_at_once(place: Place) -> None:
    killed = place.open()
    killed.put(make_groups(3))
    killed.acknowledge(ids(killed.take(2))[:1])
    die(killed)
    place.clear()
    again = place.open()
    again.put(make_groups(3))
    assert ids(again.take(3, timeout_seconds=0)) == ["g0", "g1", "g2"]


def test_another_layout_is_refused(place: Place) -> None:
    first = place.open()
    with first._database._engine.begin() as connection:
        connection.execute(sa.text("UPDATE strop_buffers SET layout = 7"))
    try:
        with pytest.raises(StoreError, match="has layout 7"):
            place.open()
    finally:
        with first._database._engine.begin() as connection:
            connection.execute(sa.text("UPDATE strop_buffers SET layout = 1"))


def test_a_commit_without_a_reply_has_no_effect_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = place.open()
    run_once = Database.run_once
    lose = iter([True, False] * 9)

    def lossy(self: Database, work: Callable[[sa.Connection], Any]) -> Any:
        result = run_once(self, work)
        if next(lose):
            raise OperationalError("COMMIT", {}, Exception("server closed the connection"))
        return result

    monkeypatch.setattr(Database, "run_once", lossy)
    monkeypatch.setattr(database, "_RETRY_SECONDS", 0.0)
    buffer.put(make_groups(4))
    assert ids(buffer.take(2)) == ["g0", "g1"]
    buffer.acknowledge(["g0"])
    assert ids(buffer.take(2)) == ["g2", "g3"]
    assert buffer.counts() == BufferCounts(queued=0, leased=3, done=1)


def test_a_stop_ends_the_wait_for_a_database(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise Interrupted("Stopped by SIGTERM.", 15)

    buffer = open_buffer(place.section(), place.folder, check=check)
    run_once = Database.run_once

    def away(*_: object) -> None:
        stopped.set()
        raise OperationalError("", {}, Exception("gone"))

    monkeypatch.setattr(Database, "run_once", away)
    with pytest.raises(Interrupted):
        buffer.put(make_groups(1))
    monkeypatch.setattr(Database, "run_once", run_once)
    buffer.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is not a database URL. Write `sqlite:///"),
        ("mysql://host/database", "names a 'mysql' database"),
        ("sqlite://", "in memory, which other processes cannot use"),
    ],
)
def test_an_invalid_url_is_refused(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_buffer(SqlBufferConfig(url=url), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@127.0.0.1:1/db",
        "postgres://user:hunter2@nowhere.invalid/db",
        "sqlite:////no/where.db",
    ],
)
def test_an_unreachable_url_is_reported_without_the_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be opened: .* Check `buffer.url`") as caught:
        open_buffer(SqlBufferConfig(url=url), tmp_path)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_sqlite_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "buffer.db").write_text("not a database, but long enough to be read as one " * 20)
    with pytest.raises(StoreError, match=r"buffer\.db cannot be opened: file is not a database"):
        open_buffer(SqlBufferConfig(), tmp_path)


def test_a_relative_file_may_be_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trinity's `experience_buffer.path: sqlite:///sub/x.db`."""
    monkeypatch.chdir(tmp_path)
    section = SqlBufferConfig(url="sqlite:///sub/x.db", relative_to="working_directory")
    open_buffer(section, tmp_path / "runs" / "one").close()
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.db")] == ["sub/x.db"]


def test_a_relative_file_is_in_the_runs_folder(tmp_path: Path) -> None:
    for url in ("sqlite:///mine.db", "sqlite:///made/mine.db", None):
        open_buffer(SqlBufferConfig(url=url), tmp_path).close()
    assert {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.db")} == {
        "mine.db",
        "made/mine.db",
        "buffer.db",
    }
    with make_engine(None, tmp_path).connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
