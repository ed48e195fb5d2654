"""A buffer in a database, for writers and readers in any process on any machine."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from strop.buffer.codec import decode, encode
from strop.buffer.queue import require_capacity, warn_if_incomplete
from strop.buffer.sql.database import DAMAGED_HINT, Database, make_engine
from strop.buffer.sql.members import BufferMember, GroupRows, WriterStates
from strop.config.schema import buffer as schema
from strop.errors import BufferExhausted, StoreError, WritersLostError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup
from strop.workers.waiting import StopCheck, TimedWait, never_stop

log = logging.getLogger("strop.buffer")


@dataclass(frozen=True, slots=True)
class _SqlPollResult:
    """The result of one attempt to take groups."""

    rows: Sequence[Any] | None
    """The rows, which are now leased; None if the reader should wait for more."""
    queued: int
    writers: WriterStates


class SqlBuffer:
    """A `Buffer` whose groups are rows with the state queued, leased (`claimed` in the table) or done.

    A lease belongs to the session of a live reader. When the reader leaves, is replaced by another process
    of its name, or sends no heartbeat for `lease_seconds`, the group is queued again in its old position.
    Any thread may call; each process opens its own.
    """

    def __init__(
        self,
        section: schema.SqlBufferConfig,
        folder: Path,
        *,
        writes: bool,
        member_name: str,
        check: StopCheck = never_stop,
    ) -> None:
        self._section = section
        self._name = section.name or "/".join(folder.absolute().parts[-2:])
        self._check = check
        self._lease_numbers = itertools.count()
        self._finished = False
        self._closed = False
        is_own = section.url is None or section.relative_to == "run"
        engine = make_engine(section.url, folder if is_own else Path.cwd())
        self._database = Database(
            engine, reconnect_timeout_seconds=section.reconnect_timeout_seconds, check=check
        )
        self._rows = GroupRows(self._database, self._name)
        try:
            self._database.run(self._rows.register)
            self._member = BufferMember(
                self._database, self._name, member_name, writes=writes, lease_seconds=section.lease_seconds
            )
        except BaseException:
            self._database.close()
            raise

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        if self._finished:
            raise StoreError(f"Groups cannot be put into the {self} after `finish` was called on it.")
        self._member.require_active()
        rows = [{"id": group.id, "content": encode(group)} for group in groups]
        capacity = self._section.capacity_groups
        wait, pauses = TimedWait(self._section.write_timeout_seconds, self._check), _backoff_seconds()
        while rows:
            rows = rows[self._database.run(partial(self._rows.insert, rows=rows, capacity=capacity)) :]
            if rows and wait.remaining_seconds <= 0:
                raise StoreError(
                    f"The {self} has been full ({capacity} groups) for {wait.timeout_seconds:g} s. Check "
                    "that the trainer runs. If its steps take that long, set `buffer.write_timeout_seconds` "
                    "higher."
                )
            if rows:
                wait.sleep(f"free capacity in the {self}", next(pauses))

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        require_capacity(groups, self._section.capacity_groups)
        limit = self._section.read_timeout_seconds if timeout_seconds is None else timeout_seconds
        wait = TimedWait(limit, self._check)
        polled = self._poll(groups, wait)
        rows, writers = polled.rows or (), polled.writers
        if groups and not rows and (writers.ended or (writers.lost and not writers.alive)):
            error = BufferExhausted if writers.ended else WritersLostError
            raise error(
                f"The {self} is empty, and no writer is left: {writers}. Waited {wait.elapsed_seconds:.0f} s."
            )
        warn_if_incomplete(wait, len(rows), groups, f"the {self} ({writers})")
        try:
            return [decode(row.content) for row in rows]
        except StoreError as error:
            raise StoreError(f"A group of the {self} is damaged: {error} {DAMAGED_HINT}") from error

    def acknowledge(self, ids: Sequence[str]) -> None:
        session = self._member.session
        done = self._database.run(lambda connection: self._rows.acknowledge(connection, ids, session))
        if done < len(set(ids)):
            raise StoreError(
                f"{len(set(ids)) - done} of {len(ids)} acknowledged groups are no longer leased to "
                f"{self._member.name} in the {self}: it sent no heartbeat during its lease of "
                f"{self._section.lease_seconds:.0f} s, and they were queued again, so they may be trained on "
                "twice. If the process can pause for that long, set `buffer.lease_seconds` higher."
            )

    def discard(self, ids: Sequence[str]) -> None:
        self._database.run(partial(self._discard, ids=ids))

    def finish(self) -> None:
        self._finished = True
        self._database.run(self._member.finish)

    def counts(self) -> BufferCounts:
        return self._database.run(self._rows.counts)

    def clear(self) -> None:
        """Delete all groups, before a new run. Raises `StoreError` while other processes use the buffer."""
        self._database.run(self._clear)

    def close(self) -> None:
        """If the database cannot be reached, the leases expire."""
        if self._closed:
            return
        self._closed = True
        self._member.stop_heartbeat()
        try:
            self._database.run_once(self._leave)
        except DBAPIError as error:
            log.warning(
                "%s could not leave the %s (%s); its lease expires in %.0f s.",
                self._member.name, self, error.orig, self._section.lease_seconds,
            )  # fmt: skip
        self._database.close()

    def __enter__(self) -> SqlBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"buffer {self._name!r} in {self._database.url}"

    def _poll(self, groups: int, wait: TimedWait) -> _SqlPollResult:
        """Poll until all groups are there, the timeout has passed, or no more groups will come."""
        lease, pauses = next(self._lease_numbers), _backoff_seconds()
        while True:
            require_all = wait.remaining_seconds > 0
            work = partial(self._try_lease, groups=groups, lease=lease, require_all=require_all)
            polled = self._database.run(work)
            if polled.rows is not None:
                return polled
            wait.sleep(f"groups ({polled.queued} of {groups}; {polled.writers})", next(pauses))

    def _try_lease(
        self, connection: sa.Connection, groups: int, lease: int, require_all: bool
    ) -> _SqlPollResult:
        self._member.heartbeat(connection)
        writers = self._member.writer_states(connection)
        session = self._member.session
        rows = self._rows.leased(connection, session, lease)
        if rows:
            return _SqlPollResult(rows, len(rows), writers)
        freed = self._rows.requeue_abandoned(connection, self._member.live_sessions())
        if freed:
            log.warning(
                "%d groups of the %s are queued again: the lease of their reader has ended.", freed, self
            )
        queued = self._rows.queued(connection, limit=groups)
        others = self._rows.has_other_leases(connection, session)  # queued again if their reader dies
        require_all = require_all and not (writers.ended and not others)
        if queued < groups and require_all:
            return _SqlPollResult(None, queued, writers)
        rows = self._rows.lock_oldest(connection, groups)
        if len(rows) < groups and require_all:  # another reader was faster
            return _SqlPollResult(None, len(rows), writers)
        self._rows.lease(connection, rows, session, lease)
        return _SqlPollResult(rows, queued, writers)

    def _discard(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        self._member.heartbeat(connection)
        self._rows.requeue_abandoned(connection, self._member.live_sessions())
        self._rows.discard(connection, ids, self._member.session)

    def _clear(self, connection: sa.Connection) -> None:
        others = self._member.other_active_names(connection)
        if others:
            raise StoreError(
                f"The {self} is in use ({', '.join(others)}), so a new run cannot start with it. End the "
                "other run first, or write another `buffer.name`."
            )
        self._rows.clear(connection)
        self._member.remove_others(connection)

    def _leave(self, connection: sa.Connection) -> None:
        self._member.leave(connection)
        self._rows.requeue_abandoned(connection, self._member.live_sessions())


def _backoff_seconds() -> Iterator[float]:
    """Seconds between two polls, growing from 0.02 to 0.5."""
    pause = 0.02
    while True:
        yield pause
        pause = min(2 * pause, 0.5)
