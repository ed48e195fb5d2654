"""Explorer and trainer as two processes of this machine: started, watched, started again, stopped together.

Consumes    what the two say, line by line, and how they end.
Waits for   the end of both.
Unblocked   by a signal, which it hands on to both; by the end of one that cannot be helped, which ends the
            other. One that was killed from outside is started again and goes on from its last state.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import cloudpickle

from strop.buffer.table import clear_buffer
from strop.config.load import Loaded
from strop.config.schema.synchronizer import CheckpointSync
from strop.errors import Interrupted, StropError
from strop.run.explore_driver import ExploreState
from strop.run.folder import RunFolder
from strop.run.part import Name, Order
from strop.run.policy import require_reward
from strop.run.resume import find_start
from strop.run.stopping import StopSignal
from strop.sync.versions import Versions

_POLL_SECONDS = 0.1


def launch(loaded: Loaded, reward: Callable[..., Any] | None = None) -> int:
    """Run both to the end, or on from where an earlier start was stopped or killed; returns the steps done.

    Raises what ended one of them, after the other has saved its state and ended too; `Interrupted` for a
    signal, which both have heeded.
    """
    run, section = loaded.run, loaded.run.synchronizer
    assert isinstance(section, CheckpointSync)
    require_reward(run, reward)
    folder = RunFolder.of(run)
    for note in find_start(run, folder).notes:
        _say("run", note)
    folder.create()
    if ExploreState.load(folder.explorer) is None:
        _begin(loaded, folder)
    calm = replace(loaded, run=run.model_copy(update={"resume": "auto"}), sources=dict(loaded.sources))
    names: tuple[Name, ...] = ("explorer", "trainer")
    parts = [Part(Order(name, calm, reward, sys.argv), section.max_restarts) for name in names]
    with StopSignal() as stop:
        try:
            _watch(parts, stop)
        finally:
            _end(parts)
    done = ExploreState.load(folder.explorer)
    assert done is not None
    return done.step


class Part:
    """One of the two: a process, and another one where that was killed."""

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
        if code < 0 and self._restarted < self._restarts:
            self._restarted += 1
            _say(
                "run",
                f"The {self.name} was ended by signal {-code} ({signal.strsignal(-code)}). It is started "
                f"again and goes on from its last state ({self._restarted} of {self._restarts} times).",
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
            [sys.executable, "-P", "-m", "strop.run.part", str(passed), self.name],
            pass_fds=(passed,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)},
            start_new_session=True,  # so Ctrl-C is the launcher's, which hands it on once
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(self._order)
        self._process.stdin.flush()  # and stays open: its end would tell the part that the launcher is gone
        self._pump = threading.Thread(target=_show, args=(self.name, self._process.stdout), daemon=True)
        self._pump.start()

    def _error(self, code: int) -> StropError:
        self._last_words.seek(0)
        words = self._last_words.read().decode(errors="replace")
        if not words:
            how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
            words = f"The {self.name} ended with {how}; what it said stands above."
            if code < 0:
                words += f" It was started again {self._restarts} times (synchronizer.max_restarts)."
        error = StropError(words)
        error.exit_code = code if code > 0 else 128 - code
        return error


def _begin(loaded: Loaded, folder: RunFolder) -> None:
    """A new run: nothing of an older one may be left where the two meet."""
    section = loaded.run.synchronizer
    assert isinstance(section, CheckpointSync)
    clear_buffer(loaded.run.buffer, folder.path)
    Versions(folder.path / section.folder).clear()
    ExploreState().save(folder.explorer)


def _watch(parts: Sequence[Part], stop: StopSignal) -> None:
    while not all(part.is_done for part in parts):
        if stop.received is not None:
            _end(parts)
            name = signal.Signals(stop.received).name
            raise Interrupted(
                f"Stopped by {name}. Explorer and trainer have saved their states; the same command goes on "
                "from there.",
                stop.received,
            )
        for part in parts:
            part.check()
        time.sleep(_POLL_SECONDS)
    for part in parts:
        part.wait()


def _end(parts: Sequence[Part]) -> None:
    for part in parts:
        part.stop()
    for part in parts:
        part.wait()


def _show(name: str, said: IO[bytes]) -> None:
    for line in said:
        _say(name, line.decode(errors="replace").rstrip("\n"))


def _say(who: str, line: str) -> None:
    print(f"{who:8} | {line}", flush=True)
