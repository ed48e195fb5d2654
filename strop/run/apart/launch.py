"""Explorer and trainer as two processes, here or on a cluster: started, watched, stopped together. Where
the buffer is a third one, it is there before them and after them.

Consumes    what they say, line by line, and how they end.
Waits for   the end of explorer and trainer.
Unblocked   by a signal, which it hands on to both; by the end of one that cannot be helped, which ends the
            other. One that was killed from outside is started again and goes on from its last state.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, assert_never

from strop.buffer.table import backup_of, clear_buffer, forget_ends
from strop.config.check import require_reward
from strop.config.load import Loaded
from strop.config.schema import Run
from strop.config.schema.cluster import LocalCluster, RayCluster
from strop.config.schema.parts import has_own_buffer
from strop.config.schema.synchronizer import MemorySync
from strop.errors import Interrupted
from strop.run.apart.explore_state import ExploreState
from strop.run.apart.local_part import LocalPart
from strop.run.apart.part import Name, Order, Part, say
from strop.run.apart.ray_cluster import open_ray_parts
from strop.run.folder import RunFolder
from strop.run.records.rows import last_row, read_rows
from strop.run.resume import find_start
from strop.run.stopping import StopSignal

_POLL_SECONDS = 0.1


def launch(loaded: Loaded, reward: Callable[..., Any] | None = None) -> int:
    """Run both to the end, or on from where an earlier start was stopped or killed; returns the steps that
    the trainer has done.

    Raises what ended one of them, after the other has saved its state and ended too; `Interrupted` for a
    signal, which both have heeded.
    """
    run, section = loaded.run, loaded.run.synchronizer
    assert not isinstance(section, MemorySync)
    require_reward(run, reward)
    folder = RunFolder.of(run)
    for note in find_start(run, folder).notes:
        say("run", note)
    folder.create()
    if ExploreState.load(folder.explorer) is None:
        _begin(loaded, folder)
    elif has_own_buffer(run):
        forget_ends(run.buffer, folder.path)
    if has_own_buffer(run):
        say(
            "run",
            f"The buffer is a process of its own, with a backup in {backup_of(run.buffer, folder.path)}.",
        )
    calm = replace(loaded, run=run.model_copy(update={"resume": "auto"}), sources=dict(loaded.sources))
    halves: tuple[Name, ...] = ("explorer", "trainer")
    names: tuple[Name, ...] = ("buffer", *halves) if has_own_buffer(run) else halves
    orders = [Order(name, calm, reward if name == "explorer" else None, sys.argv) for name in names]
    with _open_parts(run, orders, section.max_restarts) as parts, StopSignal() as stop:
        try:
            _watch(parts, stop)
        finally:
            _end(parts)
    return int(last_row(read_rows(folder.metrics))["step"])


@contextmanager
def _open_parts(run: Run, orders: Sequence[Order], restarts: int) -> Iterator[Sequence[Part]]:
    """Start them where `cluster` says."""
    match run.cluster:
        case LocalCluster():
            yield [LocalPart(order, restarts) for order in orders]
        case RayCluster() as section:
            with open_ray_parts(run, section, orders, restarts) as parts:
                yield parts
        case _:
            assert_never(run.cluster)


def _begin(loaded: Loaded, folder: RunFolder) -> None:
    """A new run: nothing of an older one may be left where the two meet."""
    from strop.sync import table  # torch, which no launcher needs that goes on with a run

    section = loaded.run.synchronizer
    assert not isinstance(section, MemorySync)
    clear_buffer(loaded.run.buffer, folder.path, is_process=has_own_buffer(loaded.run))
    table.clear(section, folder.path)
    ExploreState().save(folder.explorer)


def _watch(parts: Sequence[Part], stop: StopSignal) -> None:
    halves = parts[-2:]
    while not all(part.is_done for part in halves):
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
    for part in halves:
        part.wait()


def _end(parts: Sequence[Part]) -> None:
    """Explorer and trainer first: what they leave in the buffer is still to be put right."""
    for those in (parts[-2:], parts[:-2]):
        for part in those:
            part.stop()
        for part in those:
            part.wait()
