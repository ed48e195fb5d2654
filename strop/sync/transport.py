"""Protocols of the weight transfer between processes, and the signals that trainer and explorer exchange.

A signal is a number under a name; each is set by one of the two and read by the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from strop.protocols import EngineSnapshot, TrainerAddress

SignalName = Literal["asked", "answered", "taken", "ended", "shift"]
"""The names are file names in a run's folder, and stay what they are."""
REQUESTED: SignalName = "asked"
"""Set by the explorer: the step of its last request for new weights."""
SERVED: SignalName = "answered"
"""Set by the trainer: the step of the last request that it has served."""
OLDEST_NEEDED: SignalName = "taken"
"""Set by the explorer: the oldest version that it still needs, even if it has to sample its step again."""
FINAL_VERSION: SignalName = "ended"
"""Set by the trainer: its final version after its end; 0 while it runs."""
GROUP_SHORTFALL: SignalName = "shift"
"""Set by the trainer if it takes groups in order of arrival: by how many groups its steps have fallen short
of their size, minus the groups that no step has received."""
SIGNALS: tuple[SignalName, ...] = (REQUESTED, SERVED, OLDEST_NEEDED, FINAL_VERSION, GROUP_SHORTFALL)
TRAINER_SIGNALS: tuple[SignalName, ...] = (SERVED, GROUP_SHORTFALL)
"""The signals that the trainer sets while it runs."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that engines can receive from the trainer's server themselves."""

    trainer: TrainerAddress
    """Current address of the server."""
    annotations: Mapping[str, Tensor]
    """Tensors that accompany the weights and that no engine loads."""


class VersionGone(Exception):
    """The version that the explorer selected is no longer complete or no longer there: it selects again."""


class WeightSender(Protocol):
    """The trainer's end of the transfer."""

    def versions(self) -> list[int]:
        """The published versions, oldest first."""
        ...

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Publish a version atomically. Raises `CheckpointError` if it cannot be stored."""
        ...

    def delete(self, versions: Collection[int]) -> None:
        """Delete versions that the explorer needs no more."""
        ...

    def set_signal(self, signal: SignalName, number: int) -> None:
        """Set a signal for the explorer."""
        ...

    def get_signal(self, signal: SignalName) -> int:
        """The number of an explorer's signal; 0 if it was never set."""
        ...

    def snapshot(self, step: int) -> EngineSnapshot | None:
        """The versions that a checkpoint of `step` must hold so that none is lost with this process; None if
        versions outlive it."""
        ...

    def announce_start(self) -> None:
        """Announce that the trainer runs, whatever an earlier trainer announced about its end."""
        ...

    def finish(self, version: int) -> None:
        """Announce the final version, and store the published versions so that they outlive this process."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class WeightReceiver(Protocol):
    """The explorer's end of the transfer."""

    location: str
    """The location of the versions, as a phrase for messages."""

    def versions(self) -> list[int]:
        """The published versions, oldest first; none while the trainer cannot be reached."""
        ...

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version. Raises `VersionGone`, or `CheckpointError` for a damaged version."""
        ...

    def published(self, version: int) -> PublishedVersion | None:
        """A version for engines that receive it themselves; None for one that has to be `read`.

        Raises `VersionGone`.
        """
        ...

    def set_signal(self, signal: SignalName, number: int) -> None:
        """Set a signal for the trainer."""
        ...

    def final_version(self) -> int:
        """The trainer's final version; 0 while the trainer runs or may be restarted."""
        ...

    def get_signal(self, signal: SignalName) -> int:
        """The last known number of a trainer's signal; 0 if it was never set."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...
