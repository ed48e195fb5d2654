"""Who writes into a buffer and reads from it, and whether they are still alive."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from strop.buffer.sql.database import Database
from strop.buffer.sql.tables import members
from strop.buffer.wait import log
from strop.errors import StoreError


@dataclass(frozen=True, slots=True)
class Writers:
    """The members of a buffer that may write, by how they are."""

    alive: tuple[str, ...]
    finished: tuple[str, ...]
    lost: tuple[str, ...]
    """Not heard of for longer than their lease, and not finished."""

    @property
    def ended(self) -> bool:
        """One has finished and no other is at work: no more groups will come."""
        return bool(self.finished) and not self.alive

    def __str__(self) -> str:
        if not (self.alive or self.finished or self.lost):
            return "no writer has come yet"
        kinds = (("at work", self.alive), ("finished", self.finished), ("not heard of any more", self.lost))
        return ", ".join(f"{' and '.join(names)} {how}" for how, names in kinds if names)


class Member:
    """One process's place in a buffer. While it is open, a thread says every third of a lease that it lives.

    A second process that opens the buffer under the same name takes the place over, at once; the
    first one then gets nothing any more. So a restarted trainer need not wait for its own lease.
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
        self._in_touch_since = time.monotonic()
        row: dict[str, str | bool] = {"session": self.session, "writes": writes, "finished": False}
        database.run(partial(self._join, row=row))
        self._pulse = threading.Thread(target=self._beat, name=f"strop-buffer-{name}", daemon=True)
        self._pulse.start()

    def require(self) -> None:
        """Raises `StoreError` once the place is known to belong to another process."""
        if self._replaced:
            raise StoreError(
                f"Another process has opened the buffer {self._buffer!r} in {self._database.url} as "
                f"{self.name!r}, so this one stops. Let only one process of that name run, or give the "
                "runs different `buffer.name`s."
            )

    def touch(self, connection: sa.Connection) -> None:
        """Say that this one lives. Raises `StoreError` once its place belongs to another process."""
        soon = self._database.now() + self._lease_seconds / 2
        punctual = (members.c.alive_until > soon).label("punctual")
        here = connection.execute(sa.select(members.c.session, punctual).where(self._named)).one_or_none()
        self._replaced = here is None or here.session != self.session
        self.require()
        if here is not None and not here.punctual:
            self._in_touch_since = time.monotonic()
        connection.execute(sa.update(members).where(self._mine).values(alive_until=self._until))

    def living(self) -> sa.Select[tuple[str]]:
        """The sessions of the members that were heard of in time.

        Only who has itself been punctual for a whole lease calls another one dead: during an outage
        of the database, or a sleep of the machine, nobody could be heard of.
        """
        here = sa.select(members.c.session).where(members.c.buffer == self._buffer)
        if time.monotonic() - self._in_touch_since < self._lease_seconds:
            return here
        return here.where(members.c.alive_until > self._database.now())

    def writers(self, connection: sa.Connection) -> Writers:
        """How the writers are."""
        alive = members.c.alive_until > self._database.now()
        rows = connection.execute(
            sa.select(members.c.name, members.c.finished, alive)
            .where(members.c.buffer == self._buffer, members.c.writes)
            .order_by(members.c.name)
        ).all()
        return Writers(
            alive=tuple(name for name, finished, lives in rows if lives and not finished),
            finished=tuple(name for name, finished, _ in rows if finished),
            lost=tuple(name for name, finished, lives in rows if not lives and not finished),
        )

    def others(self, connection: sa.Connection) -> list[str]:
        """The names of all others that are at work in the buffer."""
        names = sa.select(members.c.name).where(
            members.c.buffer == self._buffer,
            members.c.name != self.name,
            members.c.alive_until > self._database.now(),
        )
        return list(connection.scalars(names))

    def forget(self, connection: sa.Connection) -> None:
        """Take out all members but this one."""
        connection.execute(
            sa.delete(members).where(members.c.buffer == self._buffer, members.c.name != self.name)
        )

    def finish(self, connection: sa.Connection) -> None:
        """Note that no more groups will come from here."""
        connection.execute(sa.update(members).where(self._mine).values(finished=True))

    def leave(self, connection: sa.Connection) -> None:
        """Give up the place; that a writer has finished stays noted."""
        connection.execute(sa.delete(members).where(self._mine, ~members.c.finished))
        connection.execute(sa.update(members).where(self._mine).values(session="", alive_until=0.0))

    def stop(self) -> None:
        """End the thread."""
        self._closing.set()
        self._pulse.join()

    @property
    def _named(self) -> sa.ColumnElement[bool]:
        return (members.c.buffer == self._buffer) & (members.c.name == self.name)

    @property
    def _mine(self) -> sa.ColumnElement[bool]:
        return self._named & (members.c.session == self.session)

    @property
    def _until(self) -> sa.ColumnElement[float]:
        return self._database.now() + self._lease_seconds

    def _join(self, connection: sa.Connection, row: dict[str, str | bool]) -> None:
        insert = self._database.insert(members).values(
            buffer=self._buffer, name=self.name, alive_until=self._until, **row
        )
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=[members.c.buffer, members.c.name], set_={**row, "alive_until": self._until}
            )
        )

    def _beat(self) -> None:
        while not self._closing.wait(self._lease_seconds / 3):
            try:
                self._database.run_once(self.touch)
            except StoreError:
                return  # whoever puts or takes next is told why
            except SQLAlchemyError as error:
                log.info("%s could not tell the database that it lives: %s", self.name, error)
