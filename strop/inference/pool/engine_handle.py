"""Handle of one engine process in a pool, which restarts the process if it dies.

A thread receives the process's replies. If the process dies, the handle starts a new one, loads the latest
weights into it, and submits all unanswered requests again.
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

from strop.errors import EngineLostError, InferenceError, StropError, WorkerDiedError
from strop.inference.pool.engine_worker import run_engine_worker
from strop.inference.pool.messages import (
    CancelRequests,
    CommandCompleted,
    CreateEngine,
    EngineCommand,
    EngineCreated,
    EngineFailure,
    EngineReply,
    LoadAdapter,
    LoadWeights,
    RequestCompleted,
    SetMemory,
    SetRunning,
    StatisticsTaken,
    SubmitRequests,
    TakeStatistics,
)
from strop.protocols import InferenceEngine
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.restarts import RestartBudget
from strop.workers.start import WorkerPlacement, start_worker
from strop.workers.worker import Worker

log = logging.getLogger("strop.inference")

_TIMEOUT_SECONDS = 1800.0
"""Maximum time for an engine to be created, to load weights, or to release or restore memory."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Specification of one engine in a pool."""

    name: str
    """Name of the process in logs; unique in the pool."""
    create: Callable[[], InferenceEngine]
    """Builds the engine; called in the engine's own process, to which it is pickled."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolRequest:
    """A pending request of a pool."""

    request_id: int
    """Unique id in the pool."""
    request: SampleRequest
    future: asyncio.Future[Completion]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Requests that were submitted together.

    After a restart they are submitted together again, the completed ones too: the same requests then share
    a batch, and the roundings are the same.
    """

    requests: dict[int, PoolRequest]
    """Requests by id, without cancelled ones."""


class EngineHandle:
    """One engine process. Any thread may call; futures are resolved in their own event loops."""

    def __init__(self, spec: EngineSpec, placement: WorkerPlacement, max_restarts: int) -> None:
        """Start the process. Raises `PlacementError` if no node of a cluster has capacity for it."""
        self.name = spec.name
        self._create = spec.create
        self._placement = placement
        self._restarts = RestartBudget(max_restarts)
        self._changed = Condition()
        self._pending: dict[int, _Batch] = {}
        """Batch of each unanswered request, by request id."""
        self._load: LoadWeights | None = None
        """Latest load, repeated after a restart."""
        self._adapter: LoadAdapter | None = None
        """Latest load of an adapter, repeated after a restart and after that of the weights."""
        self._memory: SetMemory | None = None
        """Latest release or restore, repeated after a restart."""
        self._statistics_command: TakeStatistics | None = None
        """Unanswered request for statistics, repeated after a restart."""
        self._statistics: EngineStatistics | None = None
        self._completed_command = -1
        """Highest id of a completed command."""
        self._created: EngineCreated | None = None
        self._running = True
        self._fault: StropError | None = None
        self._closed = False
        self._worker: Worker | None = self._start_worker()
        self._thread = Thread(target=self._receive_replies, name=self.name, daemon=True)
        self._thread.start()

    def wait_created(self) -> EngineCreated:
        """Wait until the engine has been created. Raises the error of its creation."""
        self._wait(lambda: self._created is not None)
        assert self._created is not None
        return self._created

    def load(self, load: LoadWeights) -> None:
        """Begin to load weights; see `wait_completed`."""
        with self._changed:
            self._load = load
            self._send(load)

    def load_adapter(self, load: LoadAdapter) -> None:
        """Begin to load an adapter; see `wait_completed`."""
        with self._changed:
            self._adapter = load
            self._send(load)

    def set_memory(self, command: SetMemory) -> None:
        """Begin to release or restore memory; see `wait_completed`."""
        with self._changed:
            self._memory = command
            self._send(command)

    def wait_completed(self, command_id: int) -> None:
        """Wait until a command has completed. Raises its error."""
        self._wait(lambda: self._completed_command >= command_id)

    def begin_statistics(self, command: TakeStatistics) -> None:
        """Begin to take statistics; see `statistics`."""
        with self._changed:
            self._statistics_command = command
            self._send(command)

    def statistics(self, command_id: int) -> EngineStatistics | None:
        """Wait for the statistics of `begin_statistics`."""
        self.wait_completed(command_id)
        return self._statistics

    def submit(self, requests: Sequence[PoolRequest]) -> None:
        """Submit requests that are admitted together."""
        batch = _Batch({pending.request_id: pending for pending in requests})
        with self._changed:
            self._pending |= dict.fromkeys(batch.requests, batch)
            if self._closed:
                self._fail_pending(_closed_error())
            elif self._fault is not None:
                self._fail_pending(EngineLostError(str(self._fault)))
            else:
                self._send(_submit_message(batch))

    def cancel(self, request_ids: Sequence[int]) -> None:
        """Cancel requests that are pending."""
        with self._changed:
            for request_id in self._pending.keys() & request_ids:
                del self._pending.pop(request_id).requests[request_id]
            self._send(CancelRequests(tuple(request_ids)))

    def set_running(self, running: bool) -> None:
        """Pause or resume decoding."""
        with self._changed:
            self._running = running
            self._send(SetRunning(running))

    def kill(self) -> None:
        """Kill the process; pending requests raise `InferenceError`."""
        with self._changed:
            self._closed = True
            if self._worker is not None:
                self._worker.kill()
        self._thread.join()
        with self._changed:
            self._fail_pending(_closed_error())

    def _start_worker(self) -> Worker:
        worker = start_worker(self.name, run_engine_worker, self._placement)
        with suppress(WorkerDiedError):  # `_receive_replies` handles it
            worker.send(CreateEngine(self._create))
        return worker

    def _send(self, message: EngineCommand) -> None:
        """Send to the process if there is one; a restarted process gets the current state instead."""
        if self._worker is not None:
            with suppress(WorkerDiedError):  # `_receive_replies` handles it
                self._worker.send(message)

    def _receive_replies(self) -> None:
        try:
            while self._worker is not None:
                self._worker = self._receive_one(self._worker)
        except StropError as error:
            self._give_up(error)
        except Exception:  # noqa: BLE001  (raised in the threads that wait)
            self._give_up(InferenceError(f"{self.name}:\n{traceback.format_exc()}"))

    def _receive_one(self, worker: Worker) -> Worker | None:
        """Handle one reply; returns the process to receive from next, None if there is none."""
        try:
            reply: EngineReply = worker.receive()
        except WorkerDiedError as death:
            return self._restart(worker, death)
        with self._changed:
            self._handle(reply)
            self._changed.notify_all()
        return worker

    def _handle(self, reply: EngineReply) -> None:
        match reply:
            case EngineCreated():
                self._created = reply
            case CommandCompleted():
                self._completed_command = max(self._completed_command, reply.command_id)
            case StatisticsTaken():
                self._statistics_command, self._statistics = None, reply.statistics
                self._completed_command = max(self._completed_command, reply.command_id)
            case RequestCompleted():
                self._resolve(reply.request_id, reply.completion)
            case EngineFailure():
                error = reply.failure.to_error(self.name, InferenceError)
                if reply.request_id is None:
                    self._give_up(error)
                else:
                    self._resolve(reply.request_id, error)
            case _:
                assert_never(reply)

    def _resolve(self, request_id: int, result: Completion | StropError) -> None:
        if request_id in self._pending:  # after a restart a request may be answered twice
            _set_result(self._pending.pop(request_id).requests[request_id], result)

    def _restart(self, old: Worker, death: WorkerDiedError) -> Worker | None:
        """Start a new process after the old one died; None if the limit is reached.

        Raises `PlacementError` if no node of a cluster has capacity for it.
        """
        with self._changed:
            self._worker = None
            if self._closed or self._fault is not None:
                return None
            if not self._restarts.spend():
                self._give_up(_restart_limit_error(death, self._restarts.max_restarts))
                return None
        log.warning(
            "%s. Restarting it with its latest weights and its pending requests (restart %d of %d).",
            death,
            self._restarts.restarts,
            self._restarts.max_restarts,
        )
        old.kill()  # on Ray this frees its name
        worker = self._start_worker()
        with self._changed:
            if self._closed:
                worker.kill()
                return None
            self._worker = worker
            for message in self._state_messages():
                self._send(message)
        return worker

    def _state_messages(self) -> list[EngineCommand]:
        """Messages that bring a new process to the current state."""
        messages: list[EngineCommand] = [
            each
            for each in (self._load, self._adapter, self._memory, self._statistics_command)
            if each is not None
        ]
        if not self._running:
            messages.append(SetRunning(running=False))
        return [*messages, *map(_submit_message, dict.fromkeys(self._pending.values()))]

    def _give_up(self, fault: StropError) -> None:
        """Raise the fault in all pending and future calls; the process is killed."""
        with self._changed:  # the caller may hold it already
            self._fault = fault
            if self._worker is not None:
                self._worker.kill()
            self._fail_pending(EngineLostError(str(fault)))
            self._changed.notify_all()

    def _fail_pending(self, error: StropError) -> None:
        for request_id in tuple(self._pending):
            self._resolve(request_id, error)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._fault is not None or is_done(), timeout=_TIMEOUT_SECONDS
            )
            if self._fault is not None:
                raise self._fault
        if not in_time:
            raise EngineLostError(f"{self.name} has not replied for {_TIMEOUT_SECONDS:.0f} s.")


def _submit_message(batch: _Batch) -> SubmitRequests:
    return SubmitRequests({request_id: pending.request for request_id, pending in batch.requests.items()})


def _set_result(pending: PoolRequest, result: Completion | StropError) -> None:
    future = pending.future

    def set_result() -> None:
        if future.done():
            return
        if isinstance(result, StropError):
            future.set_exception(result)
        else:
            future.set_result(result)

    with suppress(RuntimeError):  # the loop has been closed
        future.get_loop().call_soon_threadsafe(set_result)


def _closed_error() -> InferenceError:
    return InferenceError("the inference engine has been closed")


def _restart_limit_error(death: WorkerDiedError, restarts: int) -> EngineLostError:
    return EngineLostError(
        f"{death}, and is not restarted: rollout.pool.max_restarts is {restarts}. If no user sent signal 9, "
        "the kernel sent it for lack of memory: each engine has a copy of the weights and a cache of "
        "rollout.engine.kv_cache_tokens. The same command resumes from the last saved state."
    )
