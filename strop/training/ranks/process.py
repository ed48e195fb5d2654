"""The process of a rank: joins the others, and runs the operations that the controller sends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

# Imported here, so that a fork server has them before it starts ranks.
from strop.training.parallel import fsdp2, shared_memory, zero  # noqa: F401
from strop.training.ranks import sharded_save  # noqa: F401
from strop.training.ranks.rank import Rank
from strop.training.ranks.rendezvous import RankSpec, init_process_group
from strop.workers.worker import Channel, RemoteFailure

_COLLECTIVE_ERRORS = (RuntimeError, DistBackendError, DistNetworkError, DistStoreError)
"""Exactly these types are raised by torch in a collective operation that another rank has left."""


def join_ranks(spec: RankSpec, listening: socket.socket | None = None) -> Rank:
    """The rank of this process, once all the others are there; see `init_process_group`."""
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    device, store = init_process_group(spec, listening)
    return Rank(
        device,
        spec.rank,
        spec.ranks,
        store=store,
        collective_timeout_seconds=spec.collective_timeout_seconds,
    )


@dataclass(frozen=True, slots=True)
class RankCall:
    """An operation for a rank, by name, with its arguments, as the controller sends it."""

    operation: Callable[..., Any]
    """A method of `Rank` or of its model, or another function of a module."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    model: str | None = None
    """Name of the model whose operation it is; None for one of the rank."""

    def __call__(self, rank: Rank) -> Any:
        target = rank if self.model is None else rank.model(self.model)
        return self.operation(target, *self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class RankResult:
    """Result of an operation."""

    result: Any


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The error that ended a rank."""

    failure: RemoteFailure
    is_consequence: bool
    """Whether it may be the consequence of another rank's end, as torch reports it in a collective operation."""


def run_rank(channel: Channel) -> None:
    """Process of a rank other than the first: run operations until the controller ends or this rank fails."""
    spec: RankSpec = channel.receive()
    try:
        rank = join_ranks(spec)
    except Exception as error:  # noqa: BLE001  (the controller raises it)
        channel.send(_failure(error))
        return
    reply: RankResult | RankFailure = RankResult(rank.node)
    while isinstance(reply, RankResult):
        channel.send(reply)
        reply = _run(channel.receive(), rank)
    channel.send(reply)


def _run(call: RankCall, rank: Rank) -> RankResult | RankFailure:
    try:
        return RankResult(call(rank))
    except Exception as error:  # noqa: BLE001  (the controller raises it)
        return _failure(error)


def _failure(error: Exception) -> RankFailure:
    return RankFailure(RemoteFailure.from_exception(error), type(error) in _COLLECTIVE_ERRORS)
