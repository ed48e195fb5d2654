"""One engine of a pool, seen from the pool: its worker, and another one where that died.

Consumes    what the worker answers, in a thread.
Waits for   its next answer, as long as there is a worker.
Unblocked   by the answer, or by the worker's end. One that died is replaced: the new one gets the weights
            that the old one had, and is asked again what the old one still owed.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import assert_never

from strop.errors import EngineLost, InferenceError, StropError, WorkerDied
from strop.inference.native import NativeEngine
from strop.inference.pool.messages import (
    Answer,
    Ask,
    Draw,
    Failed,
    Forget,
    Load,
    Loaded,
    Made,
    Make,
    Message,
    Reply,
)
from strop.inference.pool.serve import serve
from strop.types import Completion, SampleRequest
from strop.workers.start import Place, start_worker
from strop.workers.worker import Worker

log = logging.getLogger("strop.inference")

_MOST_SECONDS = 1800.0
"""An engine that takes longer to be made, or to take new weights, is given up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine that a pool is to have."""

    name: str
    make: Callable[[], NativeEngine]
    """Called in the engine's own process."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request on its way through a pool."""

    number: int
    """No other one has it."""
    request: SampleRequest
    future: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Tickets that were asked together. They are asked again together, the answered ones too: what goes
    through the model side by side is then what it was before, and so is every rounding."""

    tickets: dict[int, Ticket]


class Member:
    """One engine. Any thread may call; futures are settled in their own loops."""

    def __init__(self, wanted: Wanted, place: Place, max_restarts: int) -> None:
        """Start it. Raises PlacementError where no node of a cluster has room for it."""
        self.name = wanted.name
        self._make = wanted.make
        self._place = place
        self._max_restarts = max_restarts
        self._restarts = 0
        self._changed = Condition()
        self._owed: dict[int, _Batch] = {}
        """What is not answered, and what it was asked with."""
        self._load: Load | None = None
        self._is_loaded = False
        self._forward: str | None = None
        self._draws = True
        self._fault: StropError | None = None
        self._ended = False
        self._worker: Worker | None = self._start()
        self._thread = Thread(target=self._listen, name=self.name, daemon=True)
        self._thread.start()

    def wait_made(self) -> str:
        """Until it is made; returns what it is, in words. Raises what was raised in its making."""
        self._wait(lambda: self._forward is not None)
        assert self._forward is not None
        return self._forward

    def load(self, load: Load) -> None:
        """Tell it to take new weights; `wait_loaded` waits for that."""
        with self._changed:
            self._load, self._is_loaded = load, False
            self._tell(load)

    def wait_loaded(self) -> None:
        """Until it has taken them. Raises what was raised with it."""
        self._wait(lambda: self._is_loaded)

    def ask(self, tickets: Sequence[Ticket]) -> None:
        """Have these completed, let in together."""
        batch = _Batch({ticket.number: ticket for ticket in tickets})
        with self._changed:
            self._owed |= dict.fromkeys(batch.tickets, batch)
            if self._fault is not None:
                self._give_up(self._fault)
                return
            self._tell(_asked(batch))

    def forget(self, numbers: Sequence[int]) -> None:
        """Nobody waits for these any more, where they are under way."""
        with self._changed:
            for number in self._owed.keys() & numbers:
                del self._owed.pop(number).tickets[number]
            self._tell(Forget(tuple(numbers)))

    def draw(self, on: bool) -> None:
        """Go on drawing tokens, or stop."""
        with self._changed:
            self._draws = on
            self._tell(Draw(on))

    def end(self) -> None:
        """End its process, whatever it is doing."""
        with self._changed:
            self._ended = True
            if self._worker is not None:
                self._worker.end()
        self._thread.join()

    def _start(self) -> Worker:
        worker = start_worker(self.name, serve, self._place)
        with suppress(WorkerDied):  # which `_listen` hears too
            worker.send(Make(self._make))
        return worker

    def _tell(self, message: Message) -> None:
        """To the worker, where there is one: another one is told when it has been started."""
        if self._worker is not None:
            with suppress(WorkerDied):  # which `_listen` hears too
                self._worker.send(message)

    def _listen(self) -> None:
        try:
            while self._worker is not None:
                self._worker = self._heard(self._worker)
        except StropError as error:
            self._lose(error)
        except Exception:  # noqa: BLE001  (whoever waits is told, and raises it)
            self._lose(InferenceError(f"{self.name}:\n{traceback.format_exc()}"))

    def _heard(self, worker: Worker) -> Worker | None:
        """Hear of it once; returns who is there then."""
        try:
            reply: Reply = worker.receive()
        except WorkerDied as death:
            return self._replaced(worker, death)
        with self._changed:
            self._take(reply)
            self._changed.notify_all()
        return worker

    def _take(self, reply: Reply) -> None:
        match reply:
            case Made():
                self._forward = reply.forward
            case Loaded():
                self._is_loaded = self._load is not None and reply.number == self._load.number
            case Answer():
                self._settle(reply.number, reply.completion)
            case Failed():
                kind = reply.kind or InferenceError
                where = "" if reply.kind else f"{self.name} failed:\n"
                error = kind(where + reply.message)
                if reply.number is None:
                    self._lose(error)
                else:
                    self._settle(reply.number, error)
            case _:
                assert_never(reply)

    def _settle(self, number: int, result: Completion | StropError) -> None:
        if number in self._owed:  # one that was asked again may be answered twice
            _deliver(self._owed.pop(number).tickets[number], result)

    def _replaced(self, old: Worker, death: WorkerDied) -> Worker | None:
        """Another worker in the place of one that died; None where there is to be none.

        Raises PlacementError where no node of a cluster has room for it.
        """
        with self._changed:
            self._worker = None
            if self._ended or self._fault is not None:
                return None
            if self._restarts >= self._max_restarts:
                self._lose(_given_up(death, self._restarts))
                return None
            self._restarts += 1
        log.warning(
            "%s. It is started again, and does again what it had under way (%d of %d times).",
            death,
            self._restarts,
            self._max_restarts,
        )
        old.end()  # on Ray its name is free then
        worker = self._start()
        with self._changed:
            if self._ended:
                worker.end()
                return None
            self._worker = worker
            for message in self._due():
                self._tell(message)
        return worker

    def _due(self) -> list[Message]:
        """What a new worker has to know and to do."""
        known: list[Message] = [] if self._load is None else [self._load]
        if not self._draws:
            known.append(Draw(on=False))
        return [*known, *map(_asked, dict.fromkeys(self._owed.values()))]

    def _lose(self, fault: StropError) -> None:
        with self._changed:  # which the caller may hold already
            self._fault = fault
            if self._worker is not None:
                self._worker.end()
            self._give_up(fault)
            self._changed.notify_all()

    def _give_up(self, fault: StropError) -> None:
        for number in tuple(self._owed):
            self._settle(number, EngineLost(str(fault)))

    def _wait(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._fault is not None or is_so(), _MOST_SECONDS)
            if self._fault is not None:
                raise self._fault
        if not in_time:
            raise EngineLost(f"{self.name} has not answered for {_MOST_SECONDS:.0f} s: it hangs.")


def _asked(batch: _Batch) -> Ask:
    return Ask({number: ticket.request for number, ticket in batch.tickets.items()})


def _deliver(ticket: Ticket, result: Completion | StropError) -> None:
    future = ticket.future

    def settle() -> None:
        if future.done():
            return
        if isinstance(result, StropError):
            future.set_exception(result)
        else:
            future.set_result(result)

    with suppress(RuntimeError):  # the loop has ended without it
        future.get_loop().call_soon_threadsafe(settle)


def _given_up(death: WorkerDied, restarts: int) -> EngineLost:
    return EngineLost(
        f"{death}, and is not started again: rollout.pool.max_restarts is {restarts}. A "
        "signal 9 that nobody sent is the kernel's, for want of memory: each engine has a copy of the "
        "weights and a cache of rollout.engine.kv_cache_tokens. The same command goes on from the last "
        "state."
    )
