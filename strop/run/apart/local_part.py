"""One part of a run as a process of this machine, seen from the launcher."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO

import cloudpickle

from strop.errors import RankLost, StropError
from strop.interpreter import child_environment
from strop.run.apart.part import Order, say


class LocalPart:
    """A process of this machine, and another one where that was killed."""

    def __init__(self, order: Order, restarts: int) -> None:
        self.name = order.name
        self._order = cloudpickle.dumps(order)
        self._restarts = restarts
        self._restarted = 0
        self._start()

    @property
    def is_done(self) -> bool:
        """Whether it has done all that it had to."""
        return self._process.poll() == 0

    def check(self) -> None:
        """Start it again if it was killed. Raises what it died of, if that is no help."""
        code = self._process.poll()
        if code is None or code == 0:
            return
        self._pump.join()
        lost = code == RankLost.exit_code
        if (lost or code < 0) and self._restarted < self._restarts:
            self._restarted += 1
            why = self._words() if lost else f"The {self.name} was ended by {_signal(code)}."
            say(
                "run",
                f"{why} It is started again and goes on from its last state ({self._restarted} of "
                f"{self._restarts} times).",
            )
            self._start()
            return
        raise self._error(code)

    def stop(self) -> None:
        """Ask it to save its state and end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Until it has ended, and all that it said is shown."""
        self._process.wait()
        self._pump.join()

    def _start(self) -> None:
        self._last_words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (goes with this object)
        passed = self._last_words.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "strop.run.apart.part", str(passed), self.name],
            pass_fds=(passed,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(),
            start_new_session=True,  # so Ctrl-C is the launcher's, which hands it on once
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already, which `check` will see
            self._process.stdin.write(self._order)
            self._process.stdin.flush()  # and stays open: its end would say that the launcher is gone
        self._pump = threading.Thread(target=_show, args=(self.name, self._process.stdout), daemon=True)
        self._pump.start()

    def _words(self) -> str:
        """What Strop raised in it on purpose."""
        self._last_words.seek(0)
        return self._last_words.read().decode(errors="replace")

    def _error(self, code: int) -> StropError:
        words = self._words()
        if not words:
            how = _signal(code) if code < 0 else f"exit code {code}"
            words = f"The {self.name} ended with {how}; what it said stands above."
            if code < 0:
                words += f" It was started again {self._restarts} times (synchronizer.max_restarts)."
        error = StropError(words)
        error.exit_code = code if code > 0 else 128 - code
        return error


def _signal(code: int) -> str:
    return f"signal {-code} ({signal.strsignal(-code)})"


def _show(name: str, said: IO[bytes]) -> None:
    for line in said:
        say(name, line.decode(errors="replace").rstrip("\n"))
