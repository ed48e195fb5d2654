"""A buffer in a database, for writers and readers in any process on any machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from strop.buffer.codec import decode, encode
from strop.buffer.sql.database import Database
from strop.buffer.sql.engine import make_engine
from strop.buffer.sql.members import Member, Writers
from strop.buffer.sql.rows import Rows
from strop.buffer.wait import Check, Wait, log, never_stop, require_fits
from strop.config.schema import buffer as schema
from strop.errors import BufferEnded, StoreError, WritersGone
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup


@dataclass(frozen=True, slots=True)
class _Look:
    """What a reader saw: the rows that it claimed, or None where it goes on waiting."""

    rows: Sequence[Any] | None
    queued: int
    writers: Writers


class SqlBuffer:
    """Each group is a row, whose state goes from queued to claimed to done.

    A claim belongs to the session of a living reader. When the reader leaves, is replaced by
    another of its name, or is not heard of for its lease, the group is queued again in its old place.
    A handle may be used by many threads, and is opened anew in each process.
    """

    def __init__(
        self, section: schema.SqlBuffer, folder: Path, *, writes: bool, member: str, check: Check = never_stop
    ) -> None:
        self._section = section
        self._name = section.name or "/".join(folder.absolute().parts[-2:])
        self._check = check
        self._claims = itertools.count()
        self._finished = False
        self._closed = False
        engine = make_engine(section.url, folder)
        self._database = Database(engine, outage_seconds=section.outage_seconds, check=check)
        self._rows = Rows(self._database, self._name)
        self._database.run(self._rows.register)
        self._member = Member(
            self._database, self._name, member, writes=writes, lease_seconds=section.lease_seconds
        )

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """See `strop.protocols.Buffer`."""
        if self._finished:
            raise StoreError(f"Groups are put into the {self} after `finish` was said of it.")
        self._member.require()
        rows = [{"id": group.id, "content": encode(group)} for group in groups]
        capacity = self._section.capacity_groups
        wait, pauses = Wait(self._section.write_timeout_seconds, self._check), _pauses()
        while rows:
            rows = rows[self._database.run(partial(self._rows.insert, rows=rows, capacity=capacity)) :]
            if rows and wait.left <= 0:
                raise StoreError(
                    f"The {self} has been full ({capacity} groups) for {wait.seconds:.0f} s. Either "
                    "nobody reads from it, or the trainer is that slow: then set "
                    "`buffer.write_timeout_seconds` higher."
                )
            if rows:
                time.sleep(wait.slice(f"room in the {self}", next(pauses)))

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """See `strop.protocols.Buffer`."""
        require_fits(groups, self._section.capacity_groups)
        limit = self._section.read_timeout_seconds if timeout_seconds is None else timeout_seconds
        wait = Wait(limit, self._check)
        look = self._look(groups, wait)
        rows, writers = look.rows or (), look.writers
        if groups and not rows and (writers.ended or (writers.lost and not writers.alive)):
            how = BufferEnded if writers.ended else WritersGone
            raise how(
                f"The {self} is empty, and nobody is left to write into it: {writers}. "
                f"Waited {wait.seconds:.0f} s."
            )
        wait.end(len(rows), groups, f"the {self} ({writers})")
        return [decode(row.content) for row in rows]

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        session = self._member.session
        done = self._database.run(lambda connection: self._rows.acknowledge(connection, ids, session))
        if done < len(set(ids)):
            raise StoreError(
                f"{len(set(ids)) - done} of {len(ids)} acknowledged groups no longer belong to "
                f"{self._member.name} in the {self}: it was not heard of for its lease of "
                f"{self._section.lease_seconds:.0f} s, and they were queued again, so they may be trained on "
                "twice. If it can stand still for so long, set `buffer.lease_seconds` higher."
            )

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        self._database.run(partial(self._discard, ids=ids))

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        self._finished = True
        self._database.run(self._member.finish)

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        return self._database.run(self._rows.counts)

    def clear(self) -> None:
        """Forget all groups, for a run that starts anew. Raises `StoreError` while others are at work."""
        self._database.run(self._clear)

    def close(self) -> None:
        """See `strop.protocols.Buffer`. Where the database is away, the lease does the rest."""
        if self._closed:
            return
        self._closed = True
        self._member.stop()
        try:
            self._database.run_once(self._leave)
        except DBAPIError as error:
            log.warning(
                "%s could not say that it leaves the %s (%s); it counts as dead in %.0f s.",
                self._member.name, self, error.orig, self._section.lease_seconds,
            )  # fmt: skip
        self._database.close()

    def __enter__(self) -> SqlBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"buffer {self._name!r} in {self._database.url}"

    def _look(self, groups: int, wait: Wait) -> _Look:
        """Look again and again until all are there, time is up, or no more will come."""
        claim, pauses = next(self._claims), _pauses()
        while True:
            patient = wait.left > 0
            look = self._database.run(partial(self._claim, groups=groups, claim=claim, patient=patient))
            if look.rows is not None:
                return look
            time.sleep(wait.slice(f"groups ({look.queued} of {groups}; {look.writers})", next(pauses)))

    def _claim(self, connection: sa.Connection, groups: int, claim: int, patient: bool) -> _Look:
        self._member.touch(connection)
        writers = self._member.writers(connection)
        session = self._member.session
        rows = self._rows.claimed(connection, session, claim)
        if rows:
            return _Look(rows, len(rows), writers)
        freed = self._rows.give_back(connection, self._member.living())
        if freed:
            log.warning("%d groups come back to the %s from a reader that is gone.", freed, self)
        queued = self._rows.queued(connection, limit=groups)
        lent = self._rows.lent(connection, session)  # they come back if their reader dies
        patient = patient and not (writers.ended and not lent)
        if queued < groups and patient:
            return _Look(None, queued, writers)
        rows = self._rows.oldest(connection, groups)
        if len(rows) < groups and patient:  # another reader was quicker
            return _Look(None, len(rows), writers)
        self._rows.claim(connection, rows, session, claim)
        return _Look(rows, queued, writers)

    def _discard(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        self._member.touch(connection)
        self._rows.give_back(connection, self._member.living())
        self._rows.discard(connection, ids, self._member.session)

    def _clear(self, connection: sa.Connection) -> None:
        others = self._member.others(connection)
        if others:
            raise StoreError(
                f"The {self} is in use ({', '.join(others)}), so a new run cannot begin in it. End the other "
                "run first, or give this one another `buffer.name`."
            )
        self._rows.clear(connection)
        self._member.forget(connection)

    def _leave(self, connection: sa.Connection) -> None:
        self._member.leave(connection)
        self._rows.give_back(connection, self._member.living())


def _pauses() -> Iterator[float]:
    """Seconds between one look and the next."""
    pause = 0.02
    while True:
        yield pause
        pause = min(2 * pause, 0.5)
