"""The contents of a queue: groups in the order of a policy, leases, and a backup to restart from.

A lease is a group that was taken and is not yet acknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from strop.buffer.backup import Backup
from strop.buffer.queue_policy import GroupUse, QueuePolicy, TakenGroup
from strop.errors import StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup

log = logging.getLogger("strop.buffer")


class Leases:
    """Leased uses of groups; a reusable group may be leased several times. The caller does the locking."""

    def __init__(self) -> None:
        self._uses: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return sum(len(uses) for uses in self._uses.values())

    def __contains__(self, id: object) -> bool:
        return id in self._uses

    def all(self) -> list[GroupUse]:
        """Every leased use, the oldest of each group first."""
        return [(id, use) for id, uses in self._uses.items() for use in uses]

    def add(self, uses: Iterable[GroupUse]) -> None:
        """Add uses that were taken."""
        for id, use in uses:
            self._uses.setdefault(id, []).append(use)

    def oldest(self, ids: Sequence[str]) -> list[GroupUse]:
        """The oldest leased use for each occurrence of an id. Raises `StoreError` if there are fewer."""
        found: list[GroupUse] = []
        for id, wanted in Counter(ids).items():
            uses = self._uses.get(id, [])[:wanted]
            if len(uses) < wanted:
                raise StoreError(
                    f"The group {id} is acknowledged, but it was not taken from this buffer, or was "
                    "acknowledged already."
                )
            found += [(id, use) for use in uses]
        return found

    def newest(self, ids: Iterable[str]) -> list[GroupUse]:
        """The newest leased use of each of these groups that has one."""
        return [(id, self._uses[id][-1]) for id in ids if id in self._uses]

    def remove(self, uses: Iterable[GroupUse]) -> list[GroupUse]:
        """Remove uses; returns those that were leased."""
        found = [(id, use) for id, use in uses if use in self._uses.get(id, ())]
        for id, use in found:
            self._uses[id].remove(use)
            if not self._uses[id]:
                del self._uses[id]
        return found


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of one attempt to take groups."""

    taken: Sequence[TakenGroup] | None
    """The groups, which are now leased; None if the reader should wait for more."""
    ready: int
    """Number of groups that could have been taken."""
    ended: bool
    """Whether all writers have finished."""


class GroupStore(Protocol):
    """A queue's contents, in this process or another. No call waits longer than the seconds it is given.

    Methods without a docstring are those of `Buffer`.
    """

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        """Store the groups for which there is capacity; returns how many of the first ones are stored, now or
        by an earlier call."""
        ...

    def take(self, groups: int, seconds: float, *, require_all: bool) -> PollResult:
        """Lease this many groups. If fewer are ready, lease none with `require_all`, else those."""
        ...

    def acknowledge(self, ids: Sequence[str]) -> None: ...

    def discard(self, ids: Sequence[str]) -> None: ...

    def finish(self) -> None: ...

    def counts(self) -> BufferCounts: ...

    def close(self) -> None: ...


class InMemoryStore:
    """A `GroupStore` in the memory of this process, for all of its threads."""

    def __init__(self, new_policy: Callable[[], QueuePolicy], backup: Backup) -> None:
        """`new_policy` makes an empty policy."""
        self._new_policy = new_policy
        self._backup = backup
        self._changed = threading.Condition()
        self._evicted = 0
        self._finished = False
        self._closed = False
        self.restore(())

    def restore(self, held: Sequence[GroupUse]) -> None:
        """Start again from the backup. The uses that a reader holds are leased, unless acknowledged."""
        with self._changed:
            kept = self._backup.restore()
            self.writers: Mapping[str, bool] = kept.writers
            self._policy = self._new_policy()
            self._leases = Leases()
            self._done = set(kept.done)
            self._held: set[str] = set()
            for group, uses in kept.groups:
                self._add(group, uses)
            self._leases.add(use for use in held if use[0] in self._held and self._policy.restore_lease(use))
            if self._finished:
                self.finish()
            self._changed.notify_all()

    def put(self, groups: Sequence[ExperienceGroup], seconds: float) -> int:
        with self._changed:
            self._require_writing()
            if self._policy.is_full() and not self._is_known(groups[0].id):
                self._changed.wait(seconds)
            for number, group in enumerate(groups):
                self._require_writing()
                if self._is_known(group.id):
                    continue
                if self._policy.is_full():
                    return number
                self._backup.put(group)
                self._add(group, uses=0)
                self._changed.notify_all()
        return len(groups)

    def wait_until_ready(self, groups: int, seconds: float) -> None:
        """Wait until this many groups are ready, all writers have finished, or the store is closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._policy.ready_count() >= groups or self._finished or self._closed,
                min(seconds, self._policy.seconds_until_ready()),
            )

    def take(self, groups: int, seconds: float, *, require_all: bool) -> PollResult:
        with self._changed:
            self.wait_until_ready(groups, seconds)
            self._require_open()
            ready = self._policy.ready_count()
            if ready < groups and require_all and not self._finished:
                return PollResult(None, ready, ended=False)
            taken = self._policy.take(groups)
            self._leases.add((group.id, use) for group, use in taken)
            self._changed.notify_all()
            return PollResult(taken, ready, self._finished)

    def acknowledge(self, ids: Sequence[str]) -> None:
        with self._changed:
            self._require_open()
            self.acknowledge_uses(self._leases.oldest(ids))

    def acknowledge_uses(self, uses: Sequence[GroupUse]) -> None:
        """Acknowledge uses, some of which may be acknowledged already."""
        with self._changed:
            self._require_open()
            fresh = self._leases.remove(uses)
            reusable = [use for use in fresh if self._policy.is_reusable(use[0])]
            if reusable:
                self._backup.record_uses(reusable)
            self._drop([id for id, _ in fresh if not self._policy.is_reusable(id)])

    def discard(self, ids: Sequence[str]) -> None:
        with self._changed:
            self._require_open()
            held = self._held.intersection(ids)
            self._leases.remove(self._leases.newest(held))  # an older lease may still be acknowledged
            self._policy.remove(held)
            self._drop([id for id in ids if id in held])
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._drop([id for id in self._policy.finish() if id not in self._leases])
            self._changed.notify_all()

    def set_writers(self, writers: Mapping[str, bool]) -> None:
        """Record the writers, and whether each has finished. Writing has ended when there are writers and all
        have finished; a writer that joins later continues it."""
        with self._changed:
            self._backup.record_writers(writers)
            self.writers = writers
            if writers and all(writers.values()):
                self.finish()
            else:
                self._finished = False

    def counts(self) -> BufferCounts:
        with self._changed:
            done = len(self._done) - self._evicted
            return BufferCounts(len(self._policy), len(self._leases), done, self._evicted)

    def close(self) -> None:
        with self._changed:
            if not self._closed:
                self._closed = True
                self._backup.close()
            self._changed.notify_all()

    def _add(self, group: ExperienceGroup, uses: int) -> None:
        self._held.add(group.id)
        evicted = self._policy.add(group, uses)
        if evicted and not self._evicted:
            log.warning("The buffer is full: from now on each new group evicts the group of lowest priority.")
        self._evicted += len(evicted)
        self._drop(evicted)

    def _drop(self, ids: Sequence[str]) -> None:
        if ids:
            self._backup.record_done(ids)
            self._held.difference_update(ids)
            self._done.update(ids)

    def _is_known(self, id: str) -> bool:
        return id in self._held or id in self._done

    def _require_writing(self) -> None:
        self._require_open()
        if self._finished:
            raise StoreError("Groups cannot be put into a buffer after `finish` was called on it.")

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("The buffer is closed.")
