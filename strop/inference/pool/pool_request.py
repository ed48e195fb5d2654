"""Requests of a pool, and the batches in which they are submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from strop.errors import StropError
from strop.inference.pool.messages import SubmitRequests
from strop.protocols import InferenceEngine
from strop.types import Completion, SampleRequest


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


def set_result(pending: PoolRequest, result: Completion | StropError) -> None:
    """Resolve a request's future in its own event loop; any thread may call."""
    future = pending.future

    def resolve() -> None:
        if future.done():
            return
        if isinstance(result, StropError):
            future.set_exception(result)
        else:
            future.set_result(result)

    with suppress(RuntimeError):  # the loop has been closed
        future.get_loop().call_soon_threadsafe(resolve)
