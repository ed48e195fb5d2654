"""Workers of engine pools that are threads of this process, which start at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from strop.errors import WorkerDiedError
from strop.inference.pool import engine_handle
from strop.workers import start
from strop.workers.worker import WorkerTarget


class ThreadWorker:
    """A `Worker` whose target runs in a thread; messages are pickled, as for a process."""

    def __init__(self, name: str, serve: WorkerTarget, log: Path | None = None) -> None:
        self.name = name
        self._commands_of_worker, self._commands = Pipe(duplex=False)
        self._replies, self._replies_of_worker = Pipe(duplex=False)
        self._is_ended = self._is_killed = False
        threading.Thread(target=self._run, args=(serve,), daemon=True).start()

    def _run(self, serve: WorkerTarget) -> None:
        with self._replies_of_worker, suppress(EOFError, ConnectionError, SystemExit):
            try:
                serve(Mock(receive=self._next_command, send=self._replies_of_worker.send))
            finally:
                self._is_ended = True

    def _next_command(self) -> Any:
        try:
            return self._commands_of_worker.recv()
        except EOFError:
            if self._is_ended:
                threading.Event().wait()  # the thread that waits for it has nobody to tell
            raise

    def send(self, message: object) -> None:
        try:
            self._commands.send(message)
        except OSError:
            raise self._died() from None

    def receive(self) -> Any:
        try:
            reply = self._replies.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if self._is_killed:  # a process would not have replied
            raise self._died()
        return reply

    def poll(self, seconds: float) -> bool:
        return self._replies.poll(seconds)

    def silent_seconds(self) -> float:
        return 0.0

    def kill(self) -> None:
        self._is_killed = True
        self._commands.close()

    def last_output(self) -> str:
        return ""

    def _died(self) -> WorkerDiedError:
        return WorkerDiedError(self.name, "with exit code 1", killed=False)


@contextmanager
def engines_in_threads() -> Iterator[None]:
    """Run the workers of engines in threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "LocalWorker", ThreadWorker)
        patch.setattr(engine_handle, "os", Mock(_exit=sys.exit))
        yield
