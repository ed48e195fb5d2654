"""A buffer that is a queue: it waits, for as long as may be, until its stock has what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence

from strop.buffer.stock import Stock
from strop.buffer.wait import Check, Wait, never_stop, require_fits
from strop.errors import BufferEnded, StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup


class Queue:
    """The buffer of one process, or its handle to one that is a process of its own."""

    def __init__(
        self,
        stock: Stock,
        *,
        capacity_groups: int,
        read_timeout_seconds: float,
        write_timeout_seconds: float,
        check: Check = never_stop,
    ) -> None:
        self._stock = stock
        self._capacity_groups = capacity_groups
        self._read_timeout_seconds = read_timeout_seconds
        self._write_timeout_seconds = write_timeout_seconds
        self._check = check

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """See `strop.protocols.Buffer`."""
        wait = Wait(self._write_timeout_seconds, self._check)
        seconds = 0.0
        while groups:
            taken = self._stock.put(groups, seconds)  # perhaps as many as are sent at once
            groups, seconds = groups[taken:], 0.0
            if taken:
                continue
            if wait.left <= 0:
                raise StoreError(
                    f"The buffer has been full ({self._capacity_groups} groups) for {wait.seconds:.0f} s. "
                    "Either nobody reads from it, or the trainer is that slow: then set "
                    "`buffer.write_timeout_seconds` higher."
                )
            seconds = wait.slice(f"room in the buffer, which holds {self._capacity_groups} groups")

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """See `strop.protocols.Buffer`."""
        require_fits(groups, self._capacity_groups)
        wait = Wait(self._read_timeout_seconds if timeout_seconds is None else timeout_seconds, self._check)
        look = self._stock.take(groups, 0.0, patient=wait.left > 0)
        while look.taken is None:
            seconds = wait.slice(f"groups ({look.ready} of {groups} are there)")
            look = self._stock.take(groups, seconds, patient=wait.left > 0)
        if groups and not look.taken and look.ended:
            raise BufferEnded("The buffer is empty, and all that write into it have finished.")
        wait.end(len(look.taken), groups, "the buffer")
        return [group for group, _ in look.taken]

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        self._stock.acknowledge(ids)

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        self._stock.discard(ids)

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        self._stock.finish()

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        return self._stock.counts()

    def close(self) -> None:
        """See `strop.protocols.Buffer`."""
        self._stock.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
