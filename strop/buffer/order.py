"""Which group comes next, and what happens when there is no room for one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Protocol

from strop.types import ExperienceGroup

Use = tuple[str, int]
"""A group's id, and which of its uses this is, from 1."""
Taken = tuple[ExperienceGroup, int]
"""A group, and which of its uses this is."""


class Order(Protocol):
    """Groups in an order of their own. Its caller sees to threads."""

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

    def take(self, groups: int) -> list[Taken]:
        """The next of those that are ready, at most so many."""
        ...

    def claim(self, use: Use) -> bool:
        """Take out one that it was given anew, though its reader has it; False where that use is counted
        already."""
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

    def take(self, groups: int) -> list[Taken]:
        """The oldest."""
        return [(self._groups.popleft(), 1) for _ in range(min(groups, len(self._groups)))]

    def claim(self, use: Use) -> bool:
        """From wherever it stands."""
        self.remove(use[:1])
        return True

    def comes_back(self, id: str) -> bool:
        """Never."""
        return False

    def remove(self, ids: Collection[str]) -> None:
        """From wherever they stand."""
        self._groups = deque(group for group in self._groups if group.id not in ids)

    def finish(self) -> list[str]:
        """Nothing would have come back."""
        return []
