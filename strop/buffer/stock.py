"""What a queue holds: an order, what was taken from it, and a backup from which it starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strop.buffer.backup import Backup
from strop.buffer.claims import Claims
from strop.buffer.order import Order, Taken, Use
from strop.buffer.wait import log
from strop.errors import StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup


@dataclass(frozen=True, slots=True)
class Look:
    """What a reader saw."""

    taken: Sequence[Taken] | None
    """The groups that it claimed, or None where it goes on waiting."""
    ready: int
    """How many could have been taken."""
    ended: bool
    """Nobody will write any more."""


class Stock(Protocol):
    """A queue's contents, here or in another process. No call waits longer than the seconds it is given."""

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        """Take in what there is room for; returns how many of the first ones are in, now or since earlier."""
        ...

    def take(self, groups: int, seconds: float, *, patient: bool) -> Look:
        """Claim so many; where they are not all there, none if patient, and else what there is."""
        ...

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        ...

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        ...

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        ...

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        ...

    def close(self) -> None:
        """See `strop.protocols.Buffer`."""
        ...


class OwnStock:
    """In the memory of this process, for all of its threads."""

    def __init__(self, order: Callable[[], Order], backup: Backup) -> None:
        """`order` makes an empty one."""
        self._new_order = order
        self._backup = backup
        self._changed = threading.Condition()
        self._evicted = 0
        self._finished = False
        self._closed = False
        self.restore(())

    def restore(self, held: Sequence[Use]) -> None:
        """Begin anew with what the backup holds; of that, these uses are claimed, unless acknowledged."""
        with self._changed:
            kept = self._backup.restore()
            self.writers: Mapping[str, bool] = kept.writers
            self._order = self._new_order()
            self._claims = Claims()
            self._done = set(kept.done)
            self._held: set[str] = set()
            for group, uses in kept.groups:
                self._add(group, uses)
            self._claims.add(use for use in held if use[0] in self._held and self._order.claim(use))
            if self._finished:
                self.finish()
            self._changed.notify_all()

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        """See `Stock`."""
        with self._changed:
            self._require_writing()
            if self._order.is_full() and not self._knows(groups[0].id):
                self._changed.wait(seconds)
            for number, group in enumerate(groups):
                self._require_writing()
                if self._knows(group.id):
                    continue
                if self._order.is_full():
                    return number
                self._backup.put(group)
                self._add(group, uses=0)
                self._changed.notify_all()
        return len(groups)

    def wait_for(self, groups: int, seconds: float) -> None:
        """Until so many can be taken, or nobody writes any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._order.ready() >= groups or self._finished or self._closed,
                min(seconds, self._order.seconds_to_next()),
            )

    def take(self, groups: int, seconds: float, *, patient: bool) -> Look:
        """See `Stock`."""
        with self._changed:
            self.wait_for(groups, seconds)
            self._require_open()
            ready = self._order.ready()
            if ready < groups and patient and not self._finished:
                return Look(None, ready, ended=False)
            taken = self._order.take(groups)
            self._claims.add((group.id, use) for group, use in taken)
            self._changed.notify_all()
            return Look(taken, ready, self._finished)

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._require_open()
            self.settle(self._claims.oldest(ids))

    def settle(self, uses: Sequence[Use]) -> None:
        """The same for uses, of which some may be acknowledged already."""
        with self._changed:
            self._require_open()
            fresh = self._claims.remove(uses)
            again = [use for use in fresh if self._order.comes_back(use[0])]
            if again:
                self._backup.used(again)
            self._drop([id for id, _ in fresh if not self._order.comes_back(id)])

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._require_open()
            held = self._held.intersection(ids)
            self._claims.remove(self._claims.newest(held))  # one before it may be acknowledged yet
            self._order.remove(held)
            self._drop([id for id in ids if id in held])
            self._changed.notify_all()

    def finish(self) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            self._finished = True
            self._drop([id for id in self._order.finish() if id not in self._claims])
            self._changed.notify_all()

    def note(self, writers: Mapping[str, bool]) -> None:
        """Keep who writes, and whether each has finished: the end is there when one has and nobody else is
        at work. So a writer that comes later takes it back."""
        with self._changed:
            self._backup.writers(writers)
            self.writers = writers
            if writers and all(writers.values()):
                self.finish()
            else:
                self._finished = False

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            done = len(self._done) - self._evicted
            return BufferCounts(len(self._order), len(self._claims), done, self._evicted)

    def close(self) -> None:
        """See `strop.protocols.Buffer`."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._backup.close()
            self._changed.notify_all()

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

    def _require_writing(self) -> None:
        self._require_open()
        if self._finished:
            raise StoreError("Groups are put into a buffer after `finish` was said of it.")

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("The buffer is closed.")
