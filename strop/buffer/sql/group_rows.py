"""The rows of a buffer's groups; each method is a part of its caller's transaction.

Each is idempotent, because the reply to a commit may be lost and the transaction run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from strop.buffer.sql.database import Database
from strop.buffer.sql.tables import SCHEMA_VERSION, buffers, groups
from strop.errors import StoreError
from strop.protocols import BufferCounts

_CHUNK_SIZE = 500
"""Maximum number of ids or row numbers in one statement."""


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
