"""The newest and least used groups first, as Trinity-RFT's priority queue has it."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from strop.buffer.order import Taken, Use
from strop.types import ExperienceGroup

USE_PENALTY = 2
"""What one use takes off a group's priority: as much as two versions of age."""


@dataclass(slots=True)
class _Entry:
    group: ExperienceGroup
    version: int
    number: int
    """How many came before it."""
    uses: int
    ready_at: float

    @property
    def rank(self) -> tuple[int, int]:
        """The highest is read first, the lowest dropped first; among equals the older is read first."""
        return (self.version - USE_PENALTY * self.uses, -self.number)


class Priority:
    """Highest `version - 2 * uses` first. When it is full the lowest is dropped, perhaps the newcomer itself.

    Read groups come back after the cooldown, where one is set; until then they take up room.
    """

    def __init__(
        self,
        capacity_groups: int,
        reuse_cooldown_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity_groups = capacity_groups
        self._cooldown_seconds = reuse_cooldown_seconds
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def ready(self) -> int:
        """Those that do not cool down."""
        return len(self._ready())

    def seconds_to_next(self) -> float:
        """When a group has cooled down next; infinite where none will."""
        now = self._clock()
        cooling = (entry.ready_at - now for entry in self._entries.values() if entry.ready_at > now)
        return min(cooling, default=float("inf"))

    def is_full(self) -> bool:
        """Never: what is over is dropped, and no writer waits."""
        return False

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """Take in a group, which cools down if it was used; returns what was dropped for want of room."""
        self._added += 1
        cooldown = (self._cooldown_seconds or 0.0) if uses else 0.0
        ready_at = self._clock() + cooldown
        self._entries[group.id] = _Entry(group, version_of(group), self._added, uses, ready_at)
        if len(self._entries) <= self.capacity_groups:
            return []
        lowest = min(self._entries.values(), key=lambda entry: entry.rank)
        del self._entries[lowest.group.id]
        return [lowest.group.id]

    def take(self, groups: int) -> list[Taken]:
        """Those of highest priority; they come back after the cooldown, with one use more."""
        taken = heapq.nlargest(groups, self._ready(), key=lambda entry: entry.rank)
        return [(entry.group, self._use(entry, entry.uses + 1)) for entry in taken]

    def claim(self, use: Use) -> bool:
        """As if it had been taken now; False where it was used as often already, and is to come back."""
        entry = self._entries[use[0]]
        if self._cooldown_seconds is not None and entry.uses >= use[1]:
            return False
        self._use(entry, use[1])
        return True

    def comes_back(self, id: str) -> bool:
        """Whether a taken group is still held."""
        return id in self._entries

    def remove(self, ids: Collection[str]) -> None:
        """Those that cool down, too."""
        for id in ids:
            self._entries.pop(id, None)

    def finish(self) -> list[str]:
        """Only what waits is read yet; returns what would have come back."""
        self._cooldown_seconds = None
        ready = {entry.group.id for entry in self._ready()}
        cooling = [id for id in self._entries if id not in ready]
        for id in cooling:
            del self._entries[id]
        return cooling

    def _use(self, entry: _Entry, use: int) -> int:
        if self._cooldown_seconds is None:
            del self._entries[entry.group.id]
        else:
            entry.uses = use
            entry.ready_at = self._clock() + self._cooldown_seconds
        return use

    def _ready(self) -> list[_Entry]:
        now = self._clock()
        return [entry for entry in self._entries.values() if entry.ready_at <= now]


def version_of(group: ExperienceGroup) -> int:
    """The oldest weights that had a part in a group; 0 for one without experiences."""
    return min((v for experience in group.experiences for v in experience.versions), default=0)
