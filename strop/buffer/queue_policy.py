"""Queue policies: which group is taken next, and what happens when the buffer is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
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
        """See `QueuePolicy`. Every queued group is ready."""
        return len(self._groups)

    def seconds_until_ready(self) -> float:
        """See `QueuePolicy`. No group cools down."""
        return float("inf")

    def is_full(self) -> bool:
        """See `QueuePolicy`."""
        return len(self._groups) >= self.capacity_groups

    def add(self, group: ExperienceGroup, uses: int) -> list[str]:
        """See `QueuePolicy`. No group is evicted."""
        self._groups.append(group)
        return []

    def take(self, groups: int) -> list[TakenGroup]:
        """See `QueuePolicy`. The oldest groups are taken."""
        return [(self._groups.popleft(), 1) for _ in range(min(groups, len(self._groups)))]

    def restore_lease(self, use: GroupUse) -> bool:
        """See `QueuePolicy`."""
        self.remove(use[:1])
        return True

    def is_reusable(self, id: str) -> bool:
        """See `QueuePolicy`. Each group is taken once."""
        return False

    def remove(self, ids: Collection[str]) -> None:
        """See `QueuePolicy`."""
        self._groups = deque(group for group in self._groups if group.id not in ids)

    def finish(self) -> list[str]:
        """See `QueuePolicy`. No group would have been reused."""
        return []
