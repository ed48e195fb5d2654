"""Members of a buffer: the processes that write and read, and their heartbeats."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from strop.buffer.sql.database import Database
from strop.buffer.sql.tables import members
from strop.errors import StoreError

log = logging.getLogger("strop.buffer")


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
