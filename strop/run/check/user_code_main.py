"""Main module of the process in which `strop check` imports the user's code, supervised like a reward worker."""

from __future__ import annotations

import faulthandler
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from strop.config.schema.run import Run
from strop.errors import StropError
from strop.rewards.scorer import worker_isolation
from strop.run.check.user_code import Done, examine
from strop.workers.supervision import run_supervised


def main() -> None:
    """Examine the run that the parent sends; the arguments are the descriptors of the pipe and of the crash report."""
    pipe, crash_report = map(int, sys.argv[1:])
    for descriptor in (pipe, crash_report):
        os.set_inheritable(descriptor, False)
    connection: Connection[Any, Any] = Connection(pipe)
    os.dup2(2, 1)  # what the user's code prints is no part of the check's output
    run_supervised(lambda: _serve(connection, crash_report))


def _serve(connection: Connection[Any, Any], crash_report: int) -> None:
    faulthandler.enable(file=crash_report, all_threads=False)
    run: Run = connection.recv()
    worker_isolation(run.reward.worker).limits.apply()
    process = os.getpid()
    try:
        result = Done(examine(run, None, connection.send))
    except StropError as error:
        result = Done(error)
    if os.getpid() != process:
        os._exit(0)  # a fork of the worker, made by the user's code
    connection.send(result)


if __name__ == "__main__":
    main()
