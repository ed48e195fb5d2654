"""What happens to the rows of a buffer's groups: each method is a step inside somebody's transaction.

Each may run twice with the same effect, as the answer to a commit may get lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from strop.buffer.sql.database import Database
from strop.buffer.sql.tables import LAYOUT, buffers, groups
from strop.errors import StoreError
from strop.protocols import BufferCounts

_CHUNK = 500
"""Ids or numbers in one statement."""


class Rows:
    """The rows of one buffer."""

    def __init__(self, database: Database, buffer: str) -> None:
        self._database = database
        self._buffer = buffer
        self._here = groups.c.buffer == buffer
        # what is said for each group or at each look is put together once
        self._lock = sa.select(buffers.c.name).where(buffers.c.name == buffer).with_for_update()
        waiting = sa.select(groups.c.number).where(self._here, groups.c.state == "queued")
        self._count = sa.select(sa.func.count()).select_from(waiting.limit(sa.bindparam("most")).subquery())
        self._insert = database.insert(groups).on_conflict_do_nothing(
            index_elements=[groups.c.buffer, groups.c.id]
        )

    def register(self, connection: sa.Connection) -> None:
        """Make the buffer where there is none. Raises `StoreError` for one of another layout."""
        row = {"name": self._buffer, "layout": LAYOUT}
        connection.execute(self._database.insert(buffers).values(row).on_conflict_do_nothing())
        layout = connection.scalar(sa.select(buffers.c.layout).where(buffers.c.name == self._buffer))
        if layout != LAYOUT:
            raise StoreError(
                f"The buffer {self._buffer!r} in {self._database.url} has layout {layout}; this version of "
                f"Strop reads {LAYOUT}. Use the one that made it, or another `buffer.name`."
            )

    def insert(self, connection: sa.Connection, rows: Sequence[dict[str, Any]], capacity: int) -> int:
        """Add what there is room for; returns how many of the rows are in, now or since earlier."""
        connection.execute(self._lock)  # writers come one by one, so that they count right
        fitting = rows[: max(0, capacity - self.queued(connection, limit=capacity))]
        if fitting:
            connection.execute(
                self._insert, [{"buffer": self._buffer, "state": "queued", **row} for row in fitting]
            )
        return len(fitting)

    def queued(self, connection: sa.Connection, *, limit: int) -> int:
        """How many groups can be claimed, counted up to the limit."""
        return connection.scalar(self._count, {"most": limit}) or 0

    def claimed(self, connection: sa.Connection, session: str, claim: int) -> Sequence[Any]:
        """The rows of a claim of which the reader may not have heard."""
        here = self._here & (groups.c.state == "claimed")
        mine = here & (groups.c.session == session) & (groups.c.claim == claim)
        return connection.execute(sa.select(groups).where(mine).order_by(groups.c.number)).all()

    def oldest(self, connection: sa.Connection, wanted: int) -> Sequence[Any]:
        """The oldest queued rows that no other reader is about to claim; nobody else can, until the end."""
        return connection.execute(
            sa.select(groups)
            .where(self._here, groups.c.state == "queued")
            .order_by(groups.c.number)
            .limit(wanted)
            .with_for_update(skip_locked=True)
        ).all()

    def claim(self, connection: sa.Connection, rows: Sequence[Any], session: str, claim: int) -> None:
        """Give the rows to a reader."""
        for chunk in _chunks([row.number for row in rows]):
            connection.execute(
                sa.update(groups)
                .where(groups.c.number.in_(chunk))
                .values(state="claimed", session=session, claim=claim)
            )

    def acknowledge(self, connection: sa.Connection, ids: Sequence[str], session: str) -> int:
        """Mark the reader's groups as done and forget their content; returns how many of the ids are."""
        done = 0
        for chunk in _chunks(ids):
            mine = self._here & groups.c.id.in_(chunk) & (groups.c.session == session)
            connection.execute(
                sa.update(groups).where(mine, groups.c.state == "claimed").values(state="done", content=None)
            )
            count = sa.select(sa.func.count()).select_from(groups).where(mine, groups.c.state == "done")
            done += connection.scalar(count) or 0
        return done

    def discard(self, connection: sa.Connection, ids: Sequence[str], session: str) -> None:
        """Mark those of these groups as done that are queued, or the reader's."""
        free = (groups.c.state == "queued") | (groups.c.session == session)
        for chunk in _chunks(ids):
            unread = self._here & groups.c.id.in_(chunk) & free
            connection.execute(
                sa.update(groups).where(unread).values(state="done", session=session, content=None)
            )

    def give_back(self, connection: sa.Connection, living: sa.Select[tuple[str]]) -> int:
        """Queue again what is claimed by a session that is not among the living; returns how many.

        The sessions are found first, so that a row which another reader claims meanwhile stays its own.
        """
        claimed = self._here & (groups.c.state == "claimed")
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

    def lent(self, connection: sa.Connection, session: str) -> bool:
        """Whether other readers hold groups that they have not acknowledged."""
        theirs = self._here & (groups.c.state == "claimed") & (groups.c.session != session)
        return bool(connection.scalar(sa.select(sa.exists().where(theirs))))

    def counts(self, connection: sa.Connection) -> BufferCounts:
        """How many groups are in which state."""
        counted = sa.select(groups.c.state, sa.func.count()).where(self._here).group_by(groups.c.state)
        found = {state: count for state, count in connection.execute(counted)}  # noqa: C416
        return BufferCounts(found.get("queued", 0), found.get("claimed", 0), found.get("done", 0))

    def clear(self, connection: sa.Connection) -> None:
        """Forget all groups."""
        connection.execute(sa.delete(groups).where(self._here))


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
