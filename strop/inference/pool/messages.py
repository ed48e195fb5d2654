"""Messages between a pool and its engine processes: requests and their batches, loads of weights, and progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from strop.errors import EngineLostError
from strop.protocols import EngineCapabilities, InferenceEngine
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.connection import Address
from strop.workers.shared_file import SharedFileHandle
from strop.workers.worker import RemoteFailure


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

    Each is answered by `RequestsCompleted` or `EngineFailure` as soon as it is done.
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
class RequestsCompleted:
    """Completions of requests that ended together."""

    completions: dict[int, Completion]
    """Completions by the id of their request."""


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
    | RequestsCompleted
    | ProgressReport
    | EngineFailure
)
"""A message from an engine to the pool."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Specification of one engine in a pool."""

    name: str
    """Name of the process in logs; unique in the pool."""
    create: Callable[[], InferenceEngine]
    """Builds the engine; called in the engine's own process, to which it is pickled."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolRequest:
    """A pending request of a pool."""

    request_id: int
    """Unique id in the pool."""
    request: SampleRequest
    future: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True, eq=False)
class RequestBatch:
    """Requests that were submitted together.

    After a restart they are submitted together again, the completed ones too: the same requests then share
    a batch, and the roundings are the same.
    """

    requests: dict[int, PoolRequest]
    """Requests by id, without cancelled ones."""


def submit_message(batch: RequestBatch) -> SubmitRequests:
    """The message that submits a batch."""
    return SubmitRequests({request_id: pending.request for request_id, pending in batch.requests.items()})


_MAX_REPORT_SECONDS = 5.0


class ProgressWatch:
    """Time since an engine's last progress, while it has work."""

    def __init__(self, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """The engine hangs after `timeout_seconds` without progress; `clock` gives the time in seconds."""
        self.timeout_seconds = timeout_seconds
        self.report_seconds = min(timeout_seconds / 4, _MAX_REPORT_SECONDS)
        """Interval at which the engine's process reports."""
        self.processed_tokens = 0
        """Tokens of the last report."""
        self._clock = clock
        self._since = clock()

    def restart(self) -> None:
        """Count from now: the engine has begun or completed something."""
        self._since = self._clock()

    def observe(self, processed_tokens: int | None) -> None:
        """Take a report; it is progress if the number has changed, or if the engine does not count."""
        if processed_tokens is None or processed_tokens != self.processed_tokens:
            self.processed_tokens = processed_tokens or 0
            self.restart()

    def is_hanging(self, *, is_busy: bool) -> bool:
        """Whether the engine has made no progress for the timeout; an idle engine has nothing to do."""
        if not is_busy:
            self.restart()
        return self._clock() - self._since > self.timeout_seconds


REPEAT_SECONDS = 1.0
"""Interval at which a restarted engine requests weights again that have not arrived."""


@dataclass(frozen=True, slots=True)
class WeightCommand:
    """A load of weights."""

    command_id: int
    """Id in the pool, in ascending order."""
    message: Callable[[], LoadWeights | ReceiveWeights]
    """Builds the message each time that it is sent: a restarted trainer has another address."""


@dataclass(frozen=True, slots=True)
class FailedTransfer:
    """A load whose weights have not arrived."""

    command_id: int
    """Id of the load."""
    reason: str
    """Reason, as text."""
    is_due: bool
    """Whether the weights are to be requested again, since no caller waits for them: the load had succeeded before a
    restart of the engine."""
    since: float
    """Time of the first failure, of `time.monotonic`."""

    def repeated(self, engine: str, timeout_seconds: float) -> FailedTransfer:
        """The same load, which is requested again. Raises `EngineLostError` after the timeout."""
        if time.monotonic() - self.since > timeout_seconds:
            raise EngineLostError(
                f"In {timeout_seconds:g} s {engine} has not received the weights again that it had before its "
                f"restart: {self.reason}"
            )
        return replace(self, is_due=False)
