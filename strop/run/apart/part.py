"""One part of a run, and what it is as a local process: `launch.py` starts it and hears how it ended.

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
from typing import Any, Literal, Protocol, assert_never

from strop.config.load import Loaded
from strop.errors import StropError

Name = Literal["buffer", "explorer", "trainer"]


@dataclass(frozen=True, slots=True)
class Order:
    """What a part is told to do."""

    name: Name
    loaded: Loaded
    reward: Callable[..., Any] | None
    argv: list[str]
    """How the run was called."""


class Part(Protocol):
    """One of them, seen from the launcher."""

    @property
    def is_done(self) -> bool:
        """Whether it has done all that it had to."""
        ...

    def check(self) -> None:
        """Show what it said; start it again if it was killed. Raises what it died of, if that is no help."""
        ...

    def stop(self) -> None:
        """Ask it to save its state and end."""
        ...

    def wait(self) -> None:
        """Until it has ended, and all that it said is shown."""
        ...


def say(who: str, line: str) -> None:
    """A line on the console, with whose it is."""
    print(f"{who:8} | {line}", flush=True)


def main() -> None:
    """Do what stands on the standard input; write what Strop raised on purpose to the file `argv[1]`.

    `argv[2]` is the part's name, for whoever lists processes.
    """
    order: Order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_launcher, args=(sys.stdin.fileno(),), daemon=True).start()
    last_words = int(sys.argv[1])
    sys.argv = order.argv
    try:
        run_part(order)
    except StropError as error:
        with os.fdopen(last_words, "w") as file:
            file.write(str(error))
        sys.exit(error.exit_code)


def run_part(order: Order) -> None:
    """To the end of the part; raises what Strop raises."""
    match order.name:
        case "buffer":
            from strop.run.apart.keep import keep

            keep(order.loaded)
        case "explorer":
            from strop.run.apart.explore import explore

            explore(order.loaded, order.reward)
        case "trainer":
            from strop.run.train import train

            train(order.loaded)
        case _:
            assert_never(order.name)


def _end_with_the_launcher(stdin: int) -> None:
    """Nothing more comes from it: what ends this read is its end."""
    os.read(stdin, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
