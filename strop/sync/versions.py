"""Where versions of the weights stand between trainer and explorer, seen from either of the two.

Beside the versions each side leaves the other a number under a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from strop.protocols import Snapshot

Word = Literal["asked", "answered", "taken", "ended", "shift"]
ASKED: Word = "asked"
"""The explorer's: the number of its last wish for new weights."""
ANSWERED: Word = "answered"
"""The trainer's: the number of the last wish that was met."""
TAKEN: Word = "taken"
"""The explorer's: it wants no version before this one any more, even if it has to do its step again."""
ENDED: Word = "ended"
"""The trainer's: the version with which it ended; 0 while it is at work."""
SHIFT: Word = "shift"
"""The trainer's, where it takes groups as they come: by how many its steps have been given fewer groups than
they are for, less those that no step was given."""
WORDS: tuple[Word, ...] = (ASKED, ANSWERED, TAKEN, ENDED, SHIFT)
TRAINERS: tuple[Word, ...] = (ANSWERED, SHIFT)
"""What the trainer says while it is at work."""


class VersionGone(Exception):
    """A version was there when the explorer chose it, and is not now, or not all of it: choose again."""


class Outbox(Protocol):
    """The trainer's end."""

    def all(self) -> list[int]:
        """Those that are there, oldest first."""
        ...

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Put a version there, whole or not at all. Raises `CheckpointError` where that cannot be."""
        ...

    def delete(self, versions: Collection[int]) -> None:
        """Make room: nobody wants these any more."""
        ...

    def say(self, word: Word, number: int) -> None:
        """Leave a number for the explorer."""
        ...

    def said(self, word: Word) -> int:
        """What the explorer has left under this word; 0 where that is nothing."""
        ...

    def snapshot(self, step: int) -> Snapshot | None:
        """What a checkpoint of `step` must hold so that no version is lost with this process; None where
        versions outlive it."""
        ...

    def begin(self) -> None:
        """The trainer is at work, whatever an earlier one said of its end."""
        ...

    def finish(self, version: int) -> None:
        """The run is through, and this is its last version: what is there stays there when this process is
        gone."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Inbox(Protocol):
    """The explorer's end."""

    where: str
    """Where versions stand, in words."""

    def all(self) -> list[int]:
        """Those that are there, oldest first; none while the trainer is not there."""
        ...

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Its weights, one after the other. Raises `VersionGone`, and `CheckpointError` for damaged ones."""
        ...

    def say(self, word: Word, number: int) -> None:
        """Leave a number for the trainer."""
        ...

    def ended(self) -> int:
        """The version with which the trainer ended; 0 while it is at work, or may come back."""
        ...

    def said(self, word: Word) -> int:
        """What the trainer has left under this word last; 0 where that is nothing."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
