"""Ranks that are killed, or hang, at a given moment, as the main functions of their processes."""

from __future__ import annotations

import os
import signal
import time
from typing import Literal

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from strop.training.ranks import process
from strop.training.ranks import rendezvous as rendezvous_module
from strop.training.ranks.process import run_rank
from strop.training.ranks.rank import Rank
from strop.training.ranks.rendezvous import RankSpec
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

        setattr(process, "init_process_group", init_and_die)  # noqa: B010  (not exported)
    _run(spec, channel)


def in_a_later_collective(channel: Channel) -> None:
    """See `collective`."""
    run_rank(channel)


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


def collective(rank: Rank, dies: bool) -> float:
    """A sum over ranks, in which the last rank dies."""
    if dies and rank.rank == rank.ranks - 1:
        die()
    total = torch.ones(1)
    distributed.all_reduce(total)
    return float(total)


def receive(rank: Rank, content: bytes) -> None:
    """An operation without an effect, whose argument may be larger than a pipe."""


def hang(rank: Rank, how: Literal["stopped", "in", "after"]) -> float:
    """A sum over ranks, in which the last rank hangs: `stopped`, in a process that runs, or after the sum."""
    is_last = rank.rank == rank.ranks - 1
    if is_last and how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if is_last and how == "in":
        time.sleep(600)
    total = torch.ones(1)
    distributed.all_reduce(total)
    if is_last and how == "after":
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
    run_rank(_Received(spec, channel))
