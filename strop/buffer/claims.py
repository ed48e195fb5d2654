"""What was taken from a buffer and not yet acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from strop.buffer.order import Use
from strop.errors import StoreError


class Claims:
    """Uses of groups. A group that is used again may be claimed several times. Its caller sees to threads."""

    def __init__(self) -> None:
        self._uses: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return sum(len(uses) for uses in self._uses.values())

    def __contains__(self, id: object) -> bool:
        return id in self._uses

    def all(self) -> list[Use]:
        """Every one, a group's oldest first."""
        return [(id, use) for id, uses in self._uses.items() for use in uses]

    def add(self, uses: Iterable[Use]) -> None:
        """These were taken."""
        for id, use in uses:
            self._uses.setdefault(id, []).append(use)

    def oldest(self, ids: Sequence[str]) -> list[Use]:
        """Of each group the oldest. Raises `StoreError` for one of which there is none (so often)."""
        found: list[Use] = []
        for id, wanted in Counter(ids).items():
            uses = self._uses.get(id, [])[:wanted]
            if len(uses) < wanted:
                raise StoreError(
                    f"The group {id} is acknowledged, but it was not taken from this buffer, or was "
                    "acknowledged already."
                )
            found += [(id, use) for use in uses]
        return found

    def newest(self, ids: Iterable[str]) -> list[Use]:
        """The last one of each group that has any."""
        return [(id, self._uses[id][-1]) for id in ids if id in self._uses]

    def remove(self, uses: Iterable[Use]) -> list[Use]:
        """These are acknowledged; returns those that were not before."""
        found = [(id, use) for id, use in uses if use in self._uses.get(id, ())]
        for id, use in found:
            self._uses[id].remove(use)
            if not self._uses[id]:
                del self._uses[id]
        return found
