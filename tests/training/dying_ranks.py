"""Ranks that are killed, or hang, at a given moment, as the main functions of their processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from strop.training.ranks import rank_worker
from strop.training.ranks import rendezvous as rendezvous_module
from strop.training.ranks.messages import Rank, RankSpec
from strop.training.ranks.rank_worker import run_rank_worker
from strop.workers.worker import Channel


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_it_connects(channel: Channel) -> None:
    spec: RankSpec = channel.receive()
    if spec.rank == spec.ranks - 1:
        die()
    _run(spec, channel)


def between_store_and_process_group(channel: Channel) -> None:
    spec: RankSpec = channel.receive()
    if spec.rank == spec.ranks - 1:
        next(rendezvous(spec.init_method, spec.rank, spec.ranks))
        die()
    _run(spec, channel)


def in_the_first_collective(channel: Channel) -> None:
    """The one in which the ranks make their mesh."""
    spec: RankSpec = channel.receive()
    if spec.rank == spec.ranks - 1:
        original = rendezvous_module.init_process_group

        def init_and_die(spec: RankSpec, listening: None) -> None:
            original(spec, listening)
            die()

        setattr(rank_worker, "init_process_group", init_and_die)  # noqa: B010  (not exported)
    _run(spec, channel)


def in_a_later_collective(channel: Channel) -> None:
    """See `Collective`."""
    run_rank_worker(channel)


def never(channel: Channel) -> None:
    """The last rank does not join, and the others wait for it."""
    spec: RankSpec = channel.receive()
    if spec.rank == spec.ranks - 1:
        time.sleep(600)
    print("joining", flush=True)
    _run(spec, channel)


def refused(channel: Channel) -> None:
    """A rank that cannot join, and is not killed."""
    spec: RankSpec = channel.receive()
    object.__setattr__(spec, "init_method", "no_such_backend://")
    _run(spec, channel)


@dataclass(frozen=True, slots=True)
class Collective:
    """A sum over ranks, in which the last rank dies."""

    dies: bool

    def run(self, worker: Rank) -> float:
        if self.dies and distributed.get_rank() == distributed.get_world_size() - 1:
            die()
        total = torch.ones(1)
        distributed.all_reduce(total)
        return float(total)


@dataclass(frozen=True, slots=True)
class Large:
    """A message that no pipe holds, without an operation."""

    content: bytes

    def run(self, worker: Rank) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A sum over ranks, in which the last rank hangs: `stopped`, in a process that runs, or after the sum."""

    how: Literal["stopped", "in", "after"]

    def run(self, worker: Rank) -> float:
        is_last = distributed.get_rank() == distributed.get_world_size() - 1
        if is_last and self.how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if is_last and self.how == "in":
            time.sleep(600)
        total = torch.ones(1)
        distributed.all_reduce(total)
        if is_last and self.how == "after":
            time.sleep(600)
        return float(total)


class _Received:
    """A channel whose first message has been received already."""

    def __init__(self, first: object, channel: Channel) -> None:
        self._first = [first]
        self._channel = channel
        self.send = channel.send

    def receive(self) -> object:
        return self._first.pop() if self._first else self._channel.receive()


def _run(spec: RankSpec, channel: Channel) -> None:
    run_rank_worker(_Received(spec, channel))
