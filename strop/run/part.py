"""One half of a run as a local process: `launch.py` starts it and hears how it ended.

A fresh interpreter, like a reward's worker: a fork would not survive torch's threads, and a
`multiprocessing` child would run the user's script a second time.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from strop.config.load import Loaded
from strop.errors import StropError

Name = Literal["explorer", "trainer"]


@dataclass(frozen=True, slots=True)
class Order:
    """What a part is told to do."""

    name: Name
    loaded: Loaded
    reward: Callable[..., Any] | None
    argv: list[str]
    """How the run was called."""


def main() -> None:
    """Do what stands on the standard input; write what Strop raised on purpose to the file `argv[1]`.

    `argv[2]` is the part's name, for whoever lists processes.
    """
    order: Order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_launcher, args=(sys.stdin.fileno(),), daemon=True).start()
    last_words = int(sys.argv[1])
    sys.argv = order.argv
    try:
        _run(order)
    except StropError as error:
        with os.fdopen(last_words, "w") as file:
            file.write(str(error))
        sys.exit(error.exit_code)


def _run(order: Order) -> None:
    if order.name == "explorer":
        from strop.run.explore import explore

        explore(order.loaded, order.reward)
    else:
        from strop.run.train import train

        train(order.loaded)


def _end_with_the_launcher(stdin: int) -> None:
    """Nothing more comes from it: what ends this read is its end."""
    os.read(stdin, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
