"""Messages between a pool and its engine processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strop.protocols import EngineCapabilities, InferenceEngine
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.address import Address
from strop.workers.messages import RemoteFailure
from strop.workers.shared_file import SharedFileHandle


@dataclass(frozen=True, slots=True)
class CreateEngine:
    """Create and start the engine; the reply is `EngineCreated`."""

    create: Callable[[], InferenceEngine]
    """Builds the engine in its process."""
    progress_seconds: float
    """Interval of the reports of progress while requests are running."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Load these weights; the reply is `CommandCompleted`."""

    weights: SharedFileHandle | Path
    """A safetensors file that the pool shares, or a path for the engine's `load_path`."""
    version: int
    """Version of the weights."""
    command_id: int
    """Id in the pool, in ascending order."""


@dataclass(frozen=True, slots=True)
class ReceiveWeights:
    """Receive a version from the trainer; the reply is `CommandCompleted` or `TransferFailed`."""

    trainer: Address | None
    """Address of the trainer's server; None while there is none."""
    version: int
    """Version of the weights."""
    command_id: int
    """Id in the pool, in ascending order."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Load this LoRA adapter; the reply is `CommandCompleted`."""

    folder: Path
    """Folder in PEFT's format."""
    version: int
    """Version of the adapter."""
    command_id: int
    """Id in the pool, in ascending order."""


@dataclass(frozen=True, slots=True)
class SetMemory:
    """Release or restore memory; the reply is `CommandCompleted`."""

    released: bool
    """True to release, False to restore."""
    command_id: int
    """Id in the pool, in ascending order."""


@dataclass(frozen=True, slots=True)
class TakeStatistics:
    """Report the load since the last report; the reply is `StatisticsTaken`."""

    command_id: int
    """Id in the pool, in ascending order."""


@dataclass(frozen=True, slots=True)
class SubmitRequests:
    """Complete these requests, admitted together.

    Each is answered by `RequestCompleted` or `EngineFailure` as soon as it is done.
    """

    requests: dict[int, SampleRequest]
    """Requests by id."""


@dataclass(frozen=True, slots=True)
class CancelRequests:
    """Cancel these requests if they are pending."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AbortRequests:
    """End all pending requests; each is answered with the tokens that it has."""


@dataclass(frozen=True, slots=True)
class SetRunning:
    """Pause or resume decoding."""

    running: bool
    """True to resume, False to pause."""


EngineCommand = (
    CreateEngine
    | LoadWeights
    | ReceiveWeights
    | LoadAdapter
    | SetMemory
    | TakeStatistics
    | SubmitRequests
    | CancelRequests
    | AbortRequests
    | SetRunning
)
"""A message from the pool to an engine."""


@dataclass(frozen=True, slots=True)
class EngineCreated:
    """The engine has been created and started."""

    description: str
    """Text of the engine's `describe`."""
    capabilities: EngineCapabilities
    """Features of the engine."""


@dataclass(frozen=True, slots=True)
class CommandCompleted:
    """A `LoadWeights`, `ReceiveWeights`, `LoadAdapter` or `SetMemory` has completed."""

    command_id: int


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """The weights of a `ReceiveWeights` have not arrived; requests wait until the next load."""

    command_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class StatisticsTaken:
    """Load of the engine since the last report."""

    command_id: int
    statistics: EngineStatistics | None


@dataclass(frozen=True, slots=True)
class RequestCompleted:
    """One request's completion."""

    request_id: int
    completion: Completion


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """An exception in the engine's process."""

    request_id: int | None
    """Id of the request that raised it; None if another command did, after which the engine is unusable."""
    failure: RemoteFailure


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Progress of the engine, sent while requests are running."""

    processed_tokens: int | None
    """Prompt and sampled tokens that the engine has computed so far; None if it does not count them."""


EngineReply = (
    EngineCreated
    | CommandCompleted
    | TransferFailed
    | StatisticsTaken
    | RequestCompleted
    | ProgressReport
    | EngineFailure
)
"""A message from an engine to the pool."""
