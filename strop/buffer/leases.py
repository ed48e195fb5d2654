"""Leases: groups that were taken from a buffer and are not yet acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from strop.buffer.queue_policy import GroupUse
from strop.errors import StoreError


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
