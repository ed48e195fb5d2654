"""Groups in the memory of one process, for all of its threads."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Protocol

from strop.buffer.backup import Backup
from strop.buffer.wait import Check, Wait, log, never_stop, require_fits
from strop.errors import BufferEnded, StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup


class Order(Protocol):
    """Which group comes next, and what happens when there is no room for one. Its caller sees to threads."""

    capacity_groups: int

    def __len__(self) -> int:
        """Groups that it holds, those that cool down included."""
        ...

    def ready(self) -> int:
        """Groups that can be taken now."""
        ...

    def seconds_to_next(self) -> float:
        """When a group has cooled down next; infinite where none will."""
        ...

    def is_full(self) -> bool:
        """Whether a writer has to wait."""
        ...

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """Take in a group that was used so often already; returns the ids of those dropped for it."""
        ...

    def take(self, groups: int) -> list[ExperienceGroup]:
        """The next of those that are ready, at most so many."""
        ...

    def comes_back(self, id: str) -> bool:
        """Whether a group that was taken can be taken again."""
        ...

    def remove(self, ids: Collection[str]) -> None:
        """Take out those of these that it holds."""
        ...

    def finish(self) -> list[str]:
        """From now on nothing comes back; returns the ids of those that would have."""
        ...


class Fifo:
    """First in, first out, each group once; when it is full, writers wait."""

    def __init__(self, capacity_groups: int) -> None:
        self.capacity_groups = capacity_groups
        self._groups: deque[ExperienceGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def ready(self) -> int:
        """All that it holds."""
        return len(self._groups)

    def seconds_to_next(self) -> float:
        """Nothing cools down here."""
        return float("inf")

    def is_full(self) -> bool:
        """Whether as many are held as may be."""
        return len(self._groups) >= self.capacity_groups

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """At the end; none is ever dropped."""
        self._groups.append(group)
        return []

    def take(self, groups: int) -> list[ExperienceGroup]:
        """The oldest."""
        return [self._groups.popleft() for _ in range(min(groups, len(self._groups)))]

    def comes_back(self, id: str) -> bool:
        """Never."""
        return False

    def remove(self, ids: Collection[str]) -> None:
        """From wherever they stand."""
        self._groups = deque(group for group in self._groups if group.id not in ids)

    def finish(self) -> list[str]:
        """Nothing would have come back."""
        return []


class Queue:
    """A buffer in memory: an order, a lock, and a backup from which it starts.

    Writers end together: `finish`, said once, is for all of them.
    """

    def __init__(
        self,
        order: Order,
        backup: Backup,
        *,
        read_timeout_seconds: float,
        write_timeout_seconds: float,
        check: Check = never_stop,
    ) -> None:
        self._order = order
        self._backup = backup
        self._read_timeout_seconds = read_timeout_seconds
        self._write_timeout_seconds = write_timeout_seconds
        self._check = check
        self._changed = threading.Condition()
        self._claimed: Counter[str] = Counter()
        self._evicted = 0
        self._finished = False
        self._closed = False
        kept = backup.restore()
        self._done = set(kept.done)
        self._held: set[str] = set()
        for group, uses in kept.groups:
            self._add(group, uses)

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """See `strop.protocols.Buffer`."""
        wait = Wait(self._write_timeout_seconds, self._check)
        with self._changed:
            for group in groups:
                while self._order.is_full() and not self._knows(group.id):
                    self._require_writing()
                    self._wait_for_room(wait)
                self._require_writing()
                if not self._knows(group.id):
                    self._backup.put(group)
                    self._add(group, uses=0)
                    self._changed.notify_all()

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """See `strop.protocols.Buffer`."""
        require_fits(groups, self._order.capacity_groups)
        wait = Wait(self._read_timeout_seconds if timeout_seconds is None else timeout_seconds, self._check)
        with self._changed:
            while self._order.ready() < groups and not self._finished and wait.left > 0:
                self._require_open()
                pause = wait.slice(
                    f"groups ({self._order.ready()} of {groups} are there)",
                    self._order.seconds_to_next(),
                )
                self._changed.wait(pause)
            self._require_open()
            taken = self._order.take(groups)
            self._claimed.update(group.id for group in taken)
            self._changed.notify_all()
        if groups and not taken and self._finished:
            raise BufferEnded("The buffer is empty, and all that write into it have finished.")
        wait.end(len(taken), groups, "the buffer")
        return taken

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._require_open()
            unknown = [id for id in ids if not self._claimed[id]]
            if unknown:
                raise StoreError(
                    f"The group {unknown[0]} is acknowledged, but it was not taken from this buffer, "
                    "or was acknowledged already."
                )
            self._claimed -= Counter(ids)
            used = [id for id in ids if self._order.comes_back(id)]
            if used:
                self._backup.used(used)
            self._drop([id for id in ids if not self._order.comes_back(id)])

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._require_open()
            held = self._held.intersection(ids)
            self._claimed -= Counter(held)  # this reading of them; one before may be acknowledged yet
            self._order.remove(held)
            self._drop([id for id in ids if id in held])
            self._changed.notify_all()

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._finished = True
            self._drop([id for id in self._order.finish() if not self._claimed[id]])
            self._changed.notify_all()

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            done = len(self._done) - self._evicted
            return BufferCounts(len(self._order), self._claimed.total(), done, self._evicted)

    def close(self) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._backup.close()
            self._changed.notify_all()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, group: ExperienceGroup, uses: int) -> None:
        self._held.add(group.id)
        evicted = self._order.add(group, uses)
        if evicted and not self._evicted:
            log.warning(
                "The buffer is full: from now on the group of lowest priority gives way to a new one."
            )
        self._evicted += len(evicted)
        self._drop(evicted)

    def _drop(self, ids: Sequence[str]) -> None:
        if ids:
            self._backup.done(ids)
            self._held.difference_update(ids)
            self._done.update(ids)

    def _knows(self, id: str) -> bool:
        return id in self._held or id in self._done

    def _wait_for_room(self, wait: Wait) -> None:
        if wait.left <= 0:
            raise StoreError(
                f"The buffer has been full ({self._order.capacity_groups} groups) for {wait.seconds:.0f} s. "
                "Either nobody reads from it, or the trainer is that slow: then set "
                "`buffer.write_timeout_seconds` higher."
            )
        self._changed.wait(wait.slice(f"room in the buffer, which holds {len(self._order)} groups"))

    def _require_writing(self) -> None:
        self._require_open()
        if self._finished:
            raise StoreError("Groups are put into a buffer after `finish` was said of it.")

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("The buffer is closed.")
