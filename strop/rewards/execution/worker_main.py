"""Main module of a reward worker's process, which supervises the worker."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from strop.rewards.execution.worker import serve
from strop.workers.supervision import run_supervised


def main() -> None:
    """Run the worker; the arguments are the inherited file descriptors of its pipe and of its fault report."""
    pipe, fault_output = map(int, sys.argv[1:])
    for descriptor in (pipe, fault_output):
        os.set_inheritable(descriptor, False)
    connection = Connection(pipe)
    run_supervised(lambda: serve(connection, fault_output))


if __name__ == "__main__":
    main()
