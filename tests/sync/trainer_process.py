"""Processes of a transfer that break off in its middle. They start from a process that has torch loaded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from strop.config.schema.buffer import CollectiveSyncConfig
from strop.inference import weight_transfer
from strop.inference.weight_transfer import WeightProcessGroup
from strop.sync.collective.receiver import CollectiveReceiver
from strop.sync.collective.sender import CollectiveSender

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
WEIGHTS = {f"w{number}": torch.arange(5000) + number for number in range(6)}
BUCKETS = 3
CPU = torch.device("cpu")


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process that runs a function of this module."""
    process = SERVER.Process(target=target, args=arguments)
    # Otherwise the process would import the main module of pytest again.
    with patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
        process.start()
    return process


def train(folder: Path, broadcasts: int | None = None, how: signal.Signals = signal.SIGKILL) -> None:
    """A trainer with version 1 of the weights; after that many broadcasts it gets a signal in the next one."""
    weight_transfer.BUCKET_BYTES = 80_000
    if broadcasts is not None:
        _break_off(broadcasts, how)
    sender = CollectiveSender(folder, CollectiveSyncConfig(), "127.0.0.1", CPU, None)
    sender.write(1, WEIGHTS.items())
    sender.announce_start()
    assert len(sender._store.versions()[1]) == BUCKETS
    time.sleep(3600)


def explore(folder: Path) -> None:
    """An explorer that is killed after the first weight of version 1."""
    receiver = CollectiveReceiver(folder, "127.0.0.1", CPU, lambda: None)
    for _ in receiver.read(1):
        os.kill(os.getpid(), signal.SIGKILL)


def _break_off(after: int, how: signal.Signals) -> None:
    broadcast, done = WeightProcessGroup.broadcast, 0

    def counted(self: WeightProcessGroup, content: torch.Tensor, check: Callable[[], None]) -> None:
        nonlocal done
        if done == after:
            self._group.broadcast(content[: len(content) // 2].clone(), 0)
            os.kill(os.getpid(), how)
        done += 1
        broadcast(self, content, check)

    WeightProcessGroup.broadcast = counted  # type: ignore[method-assign,assignment]
