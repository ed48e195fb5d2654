"""A trainer that holds version 1 of some weights: a process of its own, to be killed.

python -m tests.sync.trainer_process FOLDER [BROADCASTS]: after so many it kills itself, or with `stop` after
the number stops, in the middle of the next.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from strop.config.schema.synchronizer import CollectiveSync
from strop.sync.collective import parcel
from strop.sync.collective.outbox import CollectiveOutbox
from strop.sync.collective.pair import Pair

WEIGHTS = {f"w{number}": torch.arange(5000) + number for number in range(6)}
BUCKETS = 3


def main() -> None:
    folder, *limit = sys.argv[1:]
    parcel.BUCKET_BYTES = 80_000
    if limit:
        _break_off(int(limit[0]), signal.SIGSTOP if limit[1:] else signal.SIGKILL)
    cpu = torch.device("cpu")
    outbox = CollectiveOutbox(Path(folder), CollectiveSync(), "127.0.0.1", cpu, None)
    outbox.write(1, WEIGHTS.items())
    outbox.begin()
    assert len(outbox._shelf.all()[1]) == BUCKETS
    time.sleep(120)


def _break_off(after: int, how: int) -> None:
    broadcast, done = Pair.broadcast, 0

    def counted(self, content, check):
        nonlocal done
        if done == after:
            self._group.broadcast(content[: len(content) // 2].clone(), 0)
            os.kill(os.getpid(), how)
        done += 1
        broadcast(self, content, check)

    Pair.broadcast = counted


if __name__ == "__main__":
    main()
