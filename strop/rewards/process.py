"""One worker, seen from the parent: start it, talk to it, end it, and say what it died of.

A fresh interpreter: a fork would not survive torch's threads, and a `multiprocessing` child would
run the user's script a second time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from strop.errors import RewardError
from strop.interpreter import child_environment
from strop.rewards.function import Function

_FRAMES_SHOWN = 3
_FRAME = re.compile(r'^  File "(?P<file>.+)", line \d+ in .+$', re.MULTILINE)
_ROOM = str(Path(__file__).parent)
_MACHINERY = tuple(f"{_ROOM}{os.sep}{name}.py" for name in ("signature", "worker"))


class Process:
    """A worker with `functions` under `timeout_seconds`."""

    def __init__(self, functions: Sequence[Function], timeout_seconds: float) -> None:
        self.connection: Connection[Any, Any]
        self.connection, theirs = Pipe()
        self._timeout_seconds = timeout_seconds
        self._last_words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
        passed = (theirs.fileno(), self._last_words.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "strop.rewards.worker", *map(str, passed)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                # one thread each, and sets in one order in every run
                env=child_environment(OMP_NUM_THREADS="1", PYTHONHASHSEED="0"),
                start_new_session=True,  # so Ctrl-C is the parent's, and what a reward starts ends with it
            )
        self.send((tuple(functions), timeout_seconds))

    def send(self, message: object) -> bool:
        """False when the worker is no longer there. Raises RewardError for what cannot be sent."""
        try:
            self.connection.send(message)
        except ConnectionError:
            return False
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(
                f"A column of the tasks cannot be sent to the processes that score answers: {error}. "
                "Leave it out of the dataset, or write it as plain data."
            ) from error
        return True

    def end(self) -> str:
        """Kill it and all it has started; returns what it died of, if it was dead or hung already."""
        if self.connection.closed:
            return ""
        # Not yet waited for, its id cannot have become another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self.connection.close()
        with self._last_words as file:
            file.seek(0)
            words = file.read().decode(errors="replace")
        return _cause_of_death(code, words, self._timeout_seconds)


def _cause_of_death(code: int, words: str, timeout_seconds: float) -> str:
    # `words` are faulthandler's; with several threads the main one, which runs rewards, comes last.
    frames = _FRAME.finditer(words.rpartition("Thread 0x")[2])
    users = itertools.takewhile(lambda frame: frame["file"] not in _MACHINERY, frames)
    where = "".join(f"\n{frame[0]}" for frame in itertools.islice(users, _FRAMES_SHOWN))
    if words.startswith("Timeout"):
        return f"took longer than {timeout_seconds:g} s and was stopped, at{where}"
    if code < 0:
        how = f"by signal {-code} ({signal.strsignal(-code)})"
        return f"ended its process {how}{', at' if where else ''}{where}"
    return f"ended its process with exit code {code}"
