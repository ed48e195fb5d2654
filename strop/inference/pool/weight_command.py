"""Loads of weights in an engine's process, which a pool repeats after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from strop.errors import EngineLostError
from strop.inference.pool.messages import LoadWeights, ReceiveWeights

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
