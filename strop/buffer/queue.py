"""A first-in, first-out queue of groups, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from strop.types import ExperienceGroup


class Queue:
    """Holds groups between explorer and trainer when both live in one process."""

    def __init__(self) -> None:
        self._groups: deque[ExperienceGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """Add whole groups at the end."""
        self._groups.extend(groups)

    def take(self, groups: int) -> list[ExperienceGroup]:
        """The oldest groups, at most so many; fewer when no more are there."""
        return [self._groups.popleft() for _ in range(min(groups, len(self._groups)))]
