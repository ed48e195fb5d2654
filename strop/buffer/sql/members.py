"""Groups and members of a buffer in a database: the processes that write and read, and their heartbeats.

Each method is a part of its caller's transaction, and idempotent, because the reply to a commit may be lost and the
transaction run again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from strop.buffer.sql.database import SCHEMA_VERSION, Database, buffers, groups, members
from strop.errors import StoreError
from strop.protocols import BufferCounts

log = logging.getLogger("strop.buffer")
_CHUNK_SIZE = 500
"""Maximum number of ids or row numbers in one statement."""


@dataclass(frozen=True, slots=True)
class WriterStates:
    """Names of a buffer's writers, by state."""

    alive: tuple[str, ...]
    finished: tuple[str, ...]
    lost: tuple[str, ...]
    """Writers without a heartbeat for longer than their lease, which have not finished."""

    @property
    def ended(self) -> bool:
        """Whether a writer has finished and none is alive, so that no more groups will come."""
        return bool(self.finished) and not self.alive

    def __str__(self) -> str:
        if not (self.alive or self.finished or self.lost):
            return "no writer has joined yet"
        states = (("alive", self.alive), ("finished", self.finished), ("without a heartbeat", self.lost))
        return ", ".join(f"{' and '.join(names)} {state}" for state, names in states if names)


class BufferMember:
    """This process's membership in a buffer. A thread sends a heartbeat every third of a lease.

    A second process that opens the buffer under the same name replaces the first at once, whose calls then
    raise. So a restarted trainer does not wait until its earlier lease expires.
    """

    def __init__(
        self, database: Database, buffer: str, name: str, *, writes: bool, lease_seconds: float
    ) -> None:
        self._database = database
        self._buffer = buffer
        self._lease_seconds = lease_seconds
        self._closing = threading.Event()
        self._replaced = False
        self.name = name
        self.session = uuid.uuid4().hex
        self._connected_since = time.monotonic()
        row: dict[str, str | bool] = {"session": self.session, "writes": writes, "finished": False}
        database.run(partial(self._join, row=row))
        self._heartbeat_thread = threading.Thread(
            target=self._heartbeat_loop, name=f"strop-buffer-{name}", daemon=True
        )
        self._heartbeat_thread.start()

    def require_active(self) -> None:
        """Raise `StoreError` if this member is known to have been replaced by another process."""
        if self._replaced:
            raise StoreError(
                f"Another process has opened the buffer {self._buffer!r} in {self._database.url} as "
                f"{self.name!r}, so this one stops. Run only one process of that name, or write a different "
                "`buffer.name` for each run."
            )

    def heartbeat(self, connection: sa.Connection) -> None:
        """Extend this member's lease. Raises `StoreError` if another process has replaced it."""
        soon = self._database.now() + self._lease_seconds / 2
        is_punctual = (members.c.alive_until > soon).label("is_punctual")
        row = connection.execute(
            sa.select(members.c.session, is_punctual).where(self._named_row)
        ).one_or_none()
        self._replaced = row is None or row.session != self.session
        self.require_active()
        if row is not None and not row.is_punctual:
            self._connected_since = time.monotonic()
        connection.execute(sa.update(members).where(self._own_row).values(alive_until=self._lease_end))

    def live_sessions(self) -> sa.Select[tuple[str]]:
        """The sessions of the members whose lease has not expired.

        A member declares no peer dead until it has been connected for one full lease: during an outage of the
        database, or while the machine sleeps, no member can send heartbeats.
        """
        sessions = sa.select(members.c.session).where(members.c.buffer == self._buffer)
        if time.monotonic() - self._connected_since < self._lease_seconds:
            return sessions
        return sessions.where(members.c.alive_until > self._database.now())

    def writer_states(self, connection: sa.Connection) -> WriterStates:
        """The names of the writers, by state."""
        is_alive = members.c.alive_until > self._database.now()
        rows = connection.execute(
            sa.select(members.c.name, members.c.finished, is_alive)
            .where(members.c.buffer == self._buffer, members.c.writes)
            .order_by(members.c.name)
        ).all()
        return WriterStates(
            alive=tuple(name for name, finished, alive in rows if alive and not finished),
            finished=tuple(name for name, finished, _ in rows if finished),
            lost=tuple(name for name, finished, alive in rows if not alive and not finished),
        )

    def other_active_names(self, connection: sa.Connection) -> list[str]:
        """The names of all other live members."""
        names = sa.select(members.c.name).where(
            members.c.buffer == self._buffer,
            members.c.name != self.name,
            members.c.alive_until > self._database.now(),
        )
        return list(connection.scalars(names))

    def remove_others(self, connection: sa.Connection) -> None:
        """Delete all members except this one."""
        connection.execute(
            sa.delete(members).where(members.c.buffer == self._buffer, members.c.name != self.name)
        )

    def finish(self, connection: sa.Connection) -> None:
        """Record that this writer has finished."""
        connection.execute(sa.update(members).where(self._own_row).values(finished=True))

    def leave(self, connection: sa.Connection) -> None:
        """End the membership; a finished writer stays recorded as finished."""
        connection.execute(sa.delete(members).where(self._own_row, ~members.c.finished))
        connection.execute(sa.update(members).where(self._own_row).values(session="", alive_until=0.0))

    def stop_heartbeat(self) -> None:
        """End the heartbeat thread."""
        self._closing.set()
        self._heartbeat_thread.join()

    @property
    def _named_row(self) -> sa.ColumnElement[bool]:
        return (members.c.buffer == self._buffer) & (members.c.name == self.name)

    @property
    def _own_row(self) -> sa.ColumnElement[bool]:
        return self._named_row & (members.c.session == self.session)

    @property
    def _lease_end(self) -> sa.ColumnElement[float]:
        return self._database.now() + self._lease_seconds

    def _join(self, connection: sa.Connection, row: dict[str, str | bool]) -> None:
        insert = self._database.insert(members).values(
            buffer=self._buffer, name=self.name, alive_until=self._lease_end, **row
        )
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=[members.c.buffer, members.c.name],
                set_={**row, "alive_until": self._lease_end},
            )
        )

    def _heartbeat_loop(self) -> None:
        while not self._closing.wait(self._lease_seconds / 3):
            try:
                self._database.run_once(self.heartbeat)
            except StoreError:
                return  # the next put or take raises it
            except SQLAlchemyError as error:
                log.info("%s could not send a heartbeat to the database: %s", self.name, error)


class GroupRows:
    """The rows of one buffer."""

    def __init__(self, database: Database, buffer: str) -> None:
        self._database = database
        self._buffer = buffer
        self._own_rows = groups.c.buffer == buffer
        # Statements that run for each group or at each poll are built once.
        self._lock = sa.select(buffers.c.name).where(buffers.c.name == buffer).with_for_update()
        waiting = sa.select(groups.c.number).where(self._own_rows, groups.c.state == "queued")
        self._count = sa.select(sa.func.count()).select_from(waiting.limit(sa.bindparam("most")).subquery())
        self._insert = database.insert(groups).on_conflict_do_nothing(
            index_elements=[groups.c.buffer, groups.c.id]
        )

    def register(self, connection: sa.Connection) -> None:
        """Create the buffer if it does not exist. Raises `StoreError` for a buffer of another layout."""
        row = {"name": self._buffer, "layout": SCHEMA_VERSION}
        connection.execute(self._database.insert(buffers).values(row).on_conflict_do_nothing())
        layout = connection.scalar(sa.select(buffers.c.layout).where(buffers.c.name == self._buffer))
        if layout != SCHEMA_VERSION:
            raise StoreError(
                f"The buffer {self._buffer!r} in {self._database.url} has layout {layout}; this version of "
                f"Strop reads {SCHEMA_VERSION}. Use the version that created it, or write another "
                "`buffer.name`."
            )

    def insert(self, connection: sa.Connection, rows: Sequence[dict[str, Any]], capacity: int) -> int:
        """Insert the rows for which there is capacity; returns how many of the first rows are stored, now or
        by an earlier call."""
        connection.execute(self._lock)  # one writer at a time, so that the count below is right
        fitting = rows[: max(0, capacity - self.queued(connection, limit=capacity))]
        if fitting:
            connection.execute(
                self._insert, [{"buffer": self._buffer, "state": "queued", **row} for row in fitting]
            )
        return len(fitting)

    def queued(self, connection: sa.Connection, *, limit: int) -> int:
        """Number of queued groups, counted up to the limit."""
        return connection.scalar(self._count, {"most": limit}) or 0

    def leased(self, connection: sa.Connection, session: str, lease: int) -> Sequence[Any]:
        """The rows of a lease whose commit may have got no reply."""
        leased = self._own_rows & (groups.c.state == "claimed")
        own = leased & (groups.c.session == session) & (groups.c.claim == lease)
        return connection.execute(sa.select(groups).where(own).order_by(groups.c.number)).all()

    def lock_oldest(self, connection: sa.Connection, wanted: int) -> Sequence[Any]:
        """Lock the oldest queued rows that no other reader has locked, until the end of the transaction."""
        return connection.execute(
            sa.select(groups)
            .where(self._own_rows, groups.c.state == "queued")
            .order_by(groups.c.number)
            .limit(wanted)
            .with_for_update(skip_locked=True)
        ).all()

    def lease(self, connection: sa.Connection, rows: Sequence[Any], session: str, lease: int) -> None:
        """Lease rows to a reader's session, under the number of this lease."""
        for chunk in _chunks([row.number for row in rows]):
            connection.execute(
                sa.update(groups)
                .where(groups.c.number.in_(chunk))
                .values(state="claimed", session=session, claim=lease)
            )

    def acknowledge(self, connection: sa.Connection, ids: Sequence[str], session: str) -> int:
        """Mark the reader's groups as done and delete their content; returns how many of the ids are done."""
        done = 0
        for chunk in _chunks(ids):
            mine = self._own_rows & groups.c.id.in_(chunk) & (groups.c.session == session)
            connection.execute(
                sa.update(groups).where(mine, groups.c.state == "claimed").values(state="done", content=None)
            )
            count = sa.select(sa.func.count()).select_from(groups).where(mine, groups.c.state == "done")
            done += connection.scalar(count) or 0
        return done

    def discard(self, connection: sa.Connection, ids: Sequence[str], session: str) -> None:
        """Mark those of these groups as done that are queued or leased to the reader."""
        free = (groups.c.state == "queued") | (groups.c.session == session)
        for chunk in _chunks(ids):
            unread = self._own_rows & groups.c.id.in_(chunk) & free
            connection.execute(
                sa.update(groups).where(unread).values(state="done", session=session, content=None)
            )

    def requeue_abandoned(self, connection: sa.Connection, living: sa.Select[tuple[str]]) -> int:
        """Queue again the rows that are leased to sessions other than the live ones; returns their number.

        The sessions are read first, so that a row which another reader leases meanwhile is not affected.
        """
        claimed = self._own_rows & (groups.c.state == "claimed")
        gone = sa.select(groups.c.session).where(claimed, groups.c.session.not_in(living)).distinct()
        sessions = connection.scalars(gone).all()
        if not sessions:
            return 0
        freed = connection.execute(
            sa.update(groups)
            .where(claimed, groups.c.session.in_(sessions))
            .values(state="queued", session=None, claim=None)
        )
        return freed.rowcount

    def has_other_leases(self, connection: sa.Connection, session: str) -> bool:
        """Whether other readers have groups that they have not acknowledged."""
        others = self._own_rows & (groups.c.state == "claimed") & (groups.c.session != session)
        return bool(connection.scalar(sa.select(sa.exists().where(others))))

    def counts(self, connection: sa.Connection) -> BufferCounts:
        """Number of groups by state."""
        counted = sa.select(groups.c.state, sa.func.count()).where(self._own_rows).group_by(groups.c.state)
        found = {state: count for state, count in connection.execute(counted)}  # noqa: C416
        return BufferCounts(found.get("queued", 0), found.get("claimed", 0), found.get("done", 0))

    def clear(self, connection: sa.Connection) -> None:
        """Delete all groups."""
        connection.execute(sa.delete(groups).where(self._own_rows))


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _CHUNK_SIZE):
        yield values[start : start + _CHUNK_SIZE]
