"""A trainer process that holds version 1 of some weights, to be killed by tests.

python -m tests.sync.trainer_process FOLDER [BROADCASTS]: after that many broadcasts it kills itself, or with
`stop` as a third argument stops itself, in the middle of the next one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from strop.config.schema.synchronizer import CollectiveSyncConfig
from strop.inference.weight_transfer import buckets
from strop.inference.weight_transfer.process_group import WeightProcessGroup
from strop.sync.collective.sender import CollectiveSender

WEIGHTS = {f"w{number}": torch.arange(5000) + number for number in range(6)}
BUCKETS = 3


def main() -> None:
    folder, *limit = sys.argv[1:]
    buckets.BUCKET_BYTES = 80_000
    if limit:
        _break_off(int(limit[0]), signal.SIGSTOP if limit[1:] else signal.SIGKILL)
    cpu = torch.device("cpu")
    sender = CollectiveSender(Path(folder), CollectiveSyncConfig(), "127.0.0.1", cpu, None)
    sender.write(1, WEIGHTS.items())
    sender.announce_start()
    assert len(sender._store.versions()[1]) == BUCKETS
    time.sleep(120)


def _break_off(after: int, how: int) -> None:
    broadcast, done = WeightProcessGroup.broadcast, 0

    def counted(self: WeightProcessGroup, content: torch.Tensor, check: Callable[[], None]) -> None:
        nonlocal done
        if done == after:
            self._group.broadcast(content[: len(content) // 2].clone(), 0)
            os.kill(os.getpid(), how)
        done += 1
        broadcast(self, content, check)

    WeightProcessGroup.broadcast = counted  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    main()
