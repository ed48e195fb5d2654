"""Queue policies: which group is taken next, and what happens when the buffer is full.

The priority policy is Trinity-RFT's: the newest and least used groups first.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from strop.types import ExperienceGroup

GroupUse = tuple[str, int]
"""A group's id, and the number of one of its uses, from 1."""
TakenGroup = tuple[ExperienceGroup, int]
"""A taken group, and the number of this use."""


class QueuePolicy(Protocol):
    """The queued groups, in the order of the policy. The caller does the locking."""

    capacity_groups: int

    def __len__(self) -> int:
        """Number of groups, including those that cool down."""
        ...

    def ready_count(self) -> int:
        """Number of groups that can be taken now."""
        ...

    def seconds_until_ready(self) -> float:
        """Seconds until the next group has cooled down; infinite if none cools down."""
        ...

    def is_full(self) -> bool:
        """Whether a writer has to wait."""
        ...

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """Add a group that was used `uses` times before; returns the ids of groups evicted for it."""
        ...

    def take(self, groups: int) -> list[TakenGroup]:
        """Take the next groups that are ready, at most this many."""
        ...

    def restore_lease(self, use: GroupUse) -> bool:
        """Take a restored group that its reader already has; False if that use is recorded already."""
        ...

    def is_reusable(self, id: str) -> bool:
        """Whether a taken group can be taken again."""
        ...

    def remove(self, ids: Collection[str]) -> None:
        """Remove those of these groups that are queued or cool down."""
        ...

    def finish(self) -> list[str]:
        """End the reuse of groups; returns the ids of those that would have been reused."""
        ...


class FifoPolicy:
    """First in, first out, each group once. Writers wait while the buffer is full."""

    def __init__(self, capacity_groups: int) -> None:
        self.capacity_groups = capacity_groups
        self._groups: deque[ExperienceGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def ready_count(self) -> int:
        """Every queued group is ready."""
        return len(self._groups)

    def seconds_until_ready(self) -> float:
        """No group cools down."""
        return float("inf")

    def is_full(self) -> bool:
        return len(self._groups) >= self.capacity_groups

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """No group is evicted."""
        self._groups.append(group)
        return []

    def take(self, groups: int) -> list[TakenGroup]:
        """The oldest groups are taken."""
        return [(self._groups.popleft(), 1) for _ in range(min(groups, len(self._groups)))]

    def restore_lease(self, use: GroupUse) -> bool:
        self.remove(use[:1])
        return True

    def is_reusable(self, id: str) -> bool:
        """Each group is taken once."""
        return False

    def remove(self, ids: Collection[str]) -> None:
        self._groups = deque(group for group in self._groups if group.id not in ids)

    def finish(self) -> list[str]:
        """No group would have been reused."""
        return []


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """The priority of a group, and the number of its uses."""

    use_penalty: float = 2.0
    """Reduction of the priority per use, in versions of age."""
    noise: float = 0.0
    """Standard deviation of the Gaussian noise that is added to the priority of each use."""
    max_uses: int | None = None
    """Maximum number of uses of a group; None for no maximum."""


@dataclass(slots=True)
class _Entry:
    group: ExperienceGroup
    version: int
    arrival: int
    """Number of this group in the order of arrival."""
    uses: int
    ready_at: float
    priority: float

    @property
    def rank(self) -> tuple[float, int]:
        """The highest is taken first, and the lowest evicted first; of equals the older is taken first."""
        return (self.priority, -self.arrival)


class PriorityPolicy:
    """Highest `version - use_penalty * uses` first. A full queue evicts its lowest group, perhaps the new one.

    Taken groups are queued again after the cooldown, if one is configured; they count towards the capacity.
    """

    def __init__(
        self,
        capacity_groups: int,
        reuse_cooldown_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        rule: PriorityRule = PriorityRule(),
    ) -> None:
        self.capacity_groups = capacity_groups
        self._rule = rule
        self._random = random.Random(0)
        self._cooldown_seconds = reuse_cooldown_seconds
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def ready_count(self) -> int:
        """Groups that cool down are not ready."""
        return len(self._ready_entries())

    def seconds_until_ready(self) -> float:
        now = self._clock()
        cooling = (entry.ready_at - now for entry in self._entries.values() if entry.ready_at > now)
        return min(cooling, default=float("inf"))

    def is_full(self) -> bool:
        """Never: a group is evicted instead."""
        return False

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """A group that was used before cools down first."""
        self._added += 1
        cooldown = (self._cooldown_seconds or 0.0) if uses else 0.0
        ready_at = self._clock() + cooldown
        version = oldest_version(group)
        priority = self._priority(version, uses)
        self._entries[group.id] = _Entry(group, version, self._added, uses, ready_at, priority)
        if len(self._entries) <= self.capacity_groups:
            return []
        lowest = min(self._entries.values(), key=lambda entry: entry.rank)
        del self._entries[lowest.group.id]
        return [lowest.group.id]

    def take(self, groups: int) -> list[TakenGroup]:
        """The groups of highest priority are taken, and counted as used once more."""
        taken = heapq.nlargest(groups, self._ready_entries(), key=lambda entry: entry.rank)
        return [(entry.group, self._record_use(entry, entry.uses + 1)) for entry in taken]

    def restore_lease(self, use: GroupUse) -> bool:
        """The group cools down as if it had been taken now."""
        entry = self._entries[use[0]]
        if self._cooldown_seconds is not None and entry.uses >= use[1]:
            return False
        self._record_use(entry, use[1])
        return True

    def is_reusable(self, id: str) -> bool:
        return id in self._entries

    def remove(self, ids: Collection[str]) -> None:
        for id in ids:
            self._entries.pop(id, None)

    def finish(self) -> list[str]:
        """Groups that are ready stay queued."""
        self._cooldown_seconds = None
        ready = {entry.group.id for entry in self._ready_entries()}
        cooling = [id for id in self._entries if id not in ready]
        for id in cooling:
            del self._entries[id]
        return cooling

    def _record_use(self, entry: _Entry, use: int) -> int:
        most = self._rule.max_uses
        if self._cooldown_seconds is None or (most is not None and use >= most):
            del self._entries[entry.group.id]
        else:
            entry.uses = use
            entry.priority = self._priority(entry.version, use)
            entry.ready_at = self._clock() + self._cooldown_seconds
        return use

    def _priority(self, version: int, uses: int) -> float:
        noise = self._random.gauss(0.0, self._rule.noise) if self._rule.noise else 0.0
        return version - self._rule.use_penalty * uses + noise

    def _ready_entries(self) -> list[_Entry]:
        now = self._clock()
        return [entry for entry in self._entries.values() if entry.ready_at <= now]


def oldest_version(group: ExperienceGroup) -> int:
    """The oldest version of the weights that sampled a part of a group; 0 for a group without experiences."""
    return min((v for experience in group.experiences for v in experience.versions), default=0)
