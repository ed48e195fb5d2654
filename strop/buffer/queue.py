"""A buffer that is a queue, and the limits of waits that all buffers share."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from strop.buffer.store import GroupStore
from strop.errors import BufferExhausted, StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup
from strop.workers.waiting import StopCheck, TimedWait, never_stop

log = logging.getLogger("strop.buffer")


def require_capacity(groups: int, capacity_groups: int) -> None:
    """Raise `StoreError` for a batch that is larger than the buffer, and so could never be complete."""
    if groups > capacity_groups:
        raise StoreError(
            f"A batch has {groups} groups, and the buffer holds at most {capacity_groups}, so the batch "
            f"could never be complete. Set `buffer.capacity_groups` to {groups} or more."
        )


def warn_if_incomplete(wait: TimedWait, found: int, wanted: int, where: str) -> None:
    """Log a warning if a wait for groups has found fewer than wanted."""
    if found < wanted and wait.timeout_seconds > 0:
        log.warning("%d of %d groups were in %s after %.0f s.", found, wanted, where, wait.elapsed_seconds)


class QueueBuffer:
    """A `Buffer` over a store in this process or in the buffer's own process: it waits for the store."""

    def __init__(
        self,
        store: GroupStore,
        *,
        capacity_groups: int,
        read_timeout_seconds: float,
        write_timeout_seconds: float,
        check: StopCheck = never_stop,
    ) -> None:
        self._store = store
        self._capacity_groups = capacity_groups
        self._read_timeout_seconds = read_timeout_seconds
        self._write_timeout_seconds = write_timeout_seconds
        self._check = check

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        wait = TimedWait(self._write_timeout_seconds, self._check)
        seconds = 0.0
        while groups:
            stored = self._store.put(groups, seconds)  # at most as many as one request holds
            groups, seconds = groups[stored:], 0.0
            if stored:
                continue
            if wait.remaining_seconds <= 0:
                raise StoreError(
                    f"The buffer has been full ({self._capacity_groups} groups) for "
                    f"{wait.timeout_seconds:g} s. Check that the trainer runs. If its steps take that "
                    "long, set `buffer.write_timeout_seconds` higher."
                )
            seconds = wait.next_sleep_seconds(
                f"free capacity in the buffer, which holds {self._capacity_groups} groups"
            )

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        require_capacity(groups, self._capacity_groups)
        wait = TimedWait(
            self._read_timeout_seconds if timeout_seconds is None else timeout_seconds, self._check
        )
        polled = self._store.take(groups, 0.0, require_all=wait.remaining_seconds > 0)
        while polled.taken is None:
            seconds = wait.next_sleep_seconds(f"groups ({polled.ready} of {groups} are there)")
            polled = self._store.take(groups, seconds, require_all=wait.remaining_seconds > 0)
        if groups and not polled.taken and polled.ended:
            raise BufferExhausted("The buffer is empty, and all writers have finished.")
        warn_if_incomplete(wait, len(polled.taken), groups, "the buffer")
        return [group for group, _ in polled.taken]

    def acknowledge(self, ids: Sequence[str]) -> None:
        self._store.acknowledge(ids)

    def discard(self, ids: Sequence[str]) -> None:
        self._store.discard(ids)

    def finish(self) -> None:
        self._store.finish()

    def counts(self) -> BufferCounts:
        return self._store.counts()

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> QueueBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
