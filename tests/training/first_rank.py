"""The process of a first rank whose other ranks die or hang: `python -m tests.training.first_rank WORK MAIN RANKS`.

It prints the error that names the rank, and exits with its code.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from typing import Any

from strop.errors import StropError
from strop.training.ranks import group as first_group
from strop.training.ranks.group import RankGroup
from strop.workers import worker
from tests.training import dying_ranks


def lose(main: str, ranks: int) -> None:
    """Start ranks with a main function of `dying_ranks`, and lose one in a collective operation at the latest."""
    setattr(first_group, "run_rank", getattr(dying_ranks, main))  # noqa: B010  (not exported)
    # As for Strop's own function; a function of another package gets a new interpreter.
    setattr(worker, "_slow_imports", lambda _: ["strop.training.ranks.process"])  # noqa: B010
    with closing(RankGroup(ranks, "cpu")) as group:
        assert group.run(dying_ranks.collective, False) == [float(ranks)] * ranks
        group.run(dying_ranks.collective, True)


def wait_for_hanging(how: Any, ranks: int) -> None:
    """Wait for a rank that hangs in a collective operation, or outside of one."""
    with closing(RankGroup(ranks, "cpu", hang_timeout_seconds=6.0)) as group:
        group.run(dying_ranks.collective, False)
        if how == "between":
            last: Any = group._remote[-1]._worker
            os.kill(last.pid, signal.SIGSTOP)
            group.run(dying_ranks.receive, bytes(1 << 22))
        group.run(dying_ranks.hang, how)


if __name__ == "__main__":
    work = {"lose": lose, "hang": wait_for_hanging}[sys.argv[1]]
    try:
        work(sys.argv[2], int(sys.argv[3]))
    except StropError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
