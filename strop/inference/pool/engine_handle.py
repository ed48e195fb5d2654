"""Handle of one engine process in a pool, which restarts the process if it dies, and the process's main function.

A thread receives the process's replies. If the process dies, the handle starts a new one, loads the latest weights
into it, and submits all unanswered requests again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Thread
from typing import assert_never

import torch

from strop.errors import (
    ConfigError,
    EngineLostError,
    InferenceError,
    StropError,
    WeightTransferError,
    WorkerDiedError,
    see_troubleshooting,
)
from strop.inference.pool.messages import (
    REPEAT_SECONDS,
    AbortRequests,
    CancelRequests,
    CommandCompleted,
    CreateEngine,
    EngineCommand,
    EngineCreated,
    EngineFailure,
    EngineReply,
    EngineSpec,
    FailedTransfer,
    LoadAdapter,
    LoadWeights,
    PoolRequest,
    ProgressReport,
    ProgressWatch,
    ReceiveWeights,
    RequestBatch,
    RequestsCompleted,
    SetMemory,
    SetRunning,
    StatisticsTaken,
    SubmitRequests,
    TakeStatistics,
    TransferFailed,
    WeightCommand,
    submit_message,
)
from strop.inference.weight_files import read_weights
from strop.protocols import InferenceEngine
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.child_process import RestartBudget
from strop.workers.shared_file import SharedFileHandle
from strop.workers.start import WorkerPlacement, start_worker
from strop.workers.threads import LoopResults
from strop.workers.worker import Channel, RemoteFailure, Worker

log = logging.getLogger("strop.inference")

_TIMEOUT_SECONDS = 1800.0
"""Maximum time for an engine to load weights, or to release or restore memory."""


class EngineHandle:
    """One engine process. Any thread may call; futures are resolved in their own event loops."""

    def __init__(
        self, spec: EngineSpec, placement: WorkerPlacement, max_restarts: int, hang_timeout_seconds: float
    ) -> None:
        """Start the process, which is restarted if it dies, or makes no progress for `hang_timeout_seconds`.

        Raises `PlacementError` if no node of a cluster has capacity for it.
        """
        self.name = spec.name
        self._create = spec.create
        self._placement = placement
        self._restarts = RestartBudget(max_restarts)
        self._progress = ProgressWatch(hang_timeout_seconds)
        self._changed = Condition()
        self._pending: dict[int, RequestBatch] = {}
        """Batch of each unanswered request, by request id."""
        self._results = LoopResults()
        self._load: WeightCommand | None = None
        """Latest load, repeated after a restart."""
        self._transfer: FailedTransfer | None = None
        """Latest load whose weights have not arrived."""
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
        self._is_created = False
        """Whether the engine of the current process has been created."""
        self._running = True
        self._fault: StropError | None = None
        self._closed = False
        self._worker: Worker | None = self._start_worker()
        self._thread = Thread(target=self._receive_replies, name=self.name, daemon=True)
        self._thread.start()

    @property
    def processed_tokens(self) -> int:
        """Tokens that the current process has reported."""
        return self._progress.processed_tokens

    def wait_created(self, timeout_seconds: float) -> EngineCreated:
        """Wait until the engine has been created.

        Raises the error of its creation, or EngineLostError after the timeout, with the last lines of its output.
        """
        awaited = "started; a longer time is `start_timeout_seconds` of the engine"
        self._wait(lambda: self._created is not None, awaited, timeout_seconds)
        assert self._created is not None
        return self._created

    def load(self, load: WeightCommand) -> None:
        """Begin to load weights; see `wait_completed`."""
        with self._changed:
            self._load, self._transfer = load, None
            self._send(load.message())

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
        """Wait until a command has completed. Raises its error: `WeightTransferError` for weights that have not
        arrived."""

        def failed() -> bool:
            return self._transfer is not None and self._transfer.command_id == command_id

        self._wait(lambda: self._completed_command >= command_id or failed(), "replied")
        if self._completed_command < command_id and self._transfer is not None:
            raise WeightTransferError(f"{self.name}: {self._transfer.reason}")

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
        batch = RequestBatch({pending.request_id: pending for pending in requests})
        with self._changed:
            if not self._pending:
                self._progress.restart()
            self._pending |= dict.fromkeys(batch.requests, batch)
            if self._closed:
                self._fail_pending(_closed_error())
            elif self._fault is not None:
                self._fail_pending(EngineLostError(str(self._fault)))
            else:
                self._send(submit_message(batch))

    def cancel(self, request_ids: Sequence[int]) -> None:
        """Cancel requests that are pending."""
        with self._changed:
            for request_id in self._pending.keys() & request_ids:
                del self._pending.pop(request_id).requests[request_id]
            self._send(CancelRequests(tuple(request_ids)))

    def abort(self) -> None:
        """Begin to end all pending requests with the tokens that they have."""
        with self._changed:
            self._send(AbortRequests())

    def set_running(self, running: bool) -> None:
        """Pause or resume decoding."""
        with self._changed:
            self._running = running
            self._progress.restart()
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
        worker = start_worker(self.name, _run_engine_worker, self._placement)
        with suppress(WorkerDiedError):  # `_receive_replies` handles it
            worker.send(CreateEngine(self._create, self._progress.report_seconds))
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
        while not worker.poll(self._progress.report_seconds if self._transfer is None else REPEAT_SECONDS):
            self._kill_if_hanging(worker)
            self._repeat_transfer()
        try:
            reply: EngineReply = worker.receive()
        except WorkerDiedError as death:
            return self._restart(worker, death)
        with self._changed:
            self._handle(reply)
            self._changed.notify_all()
        self._kill_if_hanging(worker)
        return worker

    def _kill_if_hanging(self, worker: Worker) -> None:
        """Kill a process that makes no progress with its requests; it is then restarted like one that died."""
        with self._changed:
            is_busy = bool(self._pending) and self._is_created and self._running and not self._is_commanded
            if not self._progress.is_hanging(is_busy=is_busy):
                return
            log.warning(
                "%s has made no progress for %g s with %d requests pending (rollout.engine.hang_timeout_seconds). "
                "Killing it. %s",
                self.name,
                self._progress.timeout_seconds,
                len(self._pending),
                see_troubleshooting("a-run-hangs-or-waits"),
            )
            self._progress.restart()
        worker.kill()

    @property
    def _is_commanded(self) -> bool:
        """Whether the process loads weights, releases memory or has no memory: it then samples nothing."""
        commands = (self._load, self._adapter, self._memory, self._statistics_command)
        last = max((command.command_id for command in commands if command is not None), default=-1)
        is_released = self._memory is not None and self._memory.released
        return is_released or self._transfer is not None or self._completed_command < last

    def _repeat_transfer(self) -> None:
        """Request weights again that did not arrive after a restart, for which no caller waits."""
        with self._changed:
            transfer, load = self._transfer, self._load
            if transfer is None or load is None or not transfer.is_due:
                return
            self._transfer = transfer.repeated(self.name, _TIMEOUT_SECONDS)
            self._send(load.message())

    def _handle(self, reply: EngineReply) -> None:
        match reply:
            case EngineCreated():
                self._created, self._is_created = reply, True
                self._progress.restart()
            case ProgressReport():
                self._progress.observe(reply.processed_tokens)
            case CommandCompleted():
                self._progress.restart()
                self._completed_command = max(self._completed_command, reply.command_id)
                if self._transfer is not None and self._transfer.command_id == reply.command_id:
                    self._transfer = None
            case TransferFailed():
                self._handle_failed_transfer(reply)
            case StatisticsTaken():
                self._statistics_command, self._statistics = None, reply.statistics
                self._completed_command = max(self._completed_command, reply.command_id)
            case RequestsCompleted():
                self._progress.restart()
                for request_id, completion in reply.completions.items():
                    self._resolve(request_id, completion)
            case EngineFailure():
                error = reply.failure.to_error(self.name, InferenceError)
                if reply.request_id is not None:
                    self._resolve(reply.request_id, error)
                elif self._is_created or isinstance(error, ConfigError):  # which says what to write
                    self._give_up(error)
                else:
                    self._give_up(type(error)(f"{error}{self._output()}"))
            case _:
                assert_never(reply)

    def _handle_failed_transfer(self, reply: TransferFailed) -> None:
        if self._load is None or self._load.command_id != reply.command_id:
            return  # a later load has been sent
        since = None if self._transfer is None else self._transfer.since
        is_due = reply.command_id <= self._completed_command
        self._transfer = FailedTransfer(reply.command_id, reply.reason, is_due, since or time.monotonic())

    def _resolve(self, request_id: int, result: Completion | StropError) -> None:
        if request_id in self._pending:  # after a restart a request may be answered twice
            self._results.put(self._pending.pop(request_id).requests[request_id].future, result)

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
        self._is_created = False
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
        messages: list[EngineCommand] = [] if self._load is None else [self._load.message()]
        messages += [
            each for each in (self._adapter, self._memory, self._statistics_command) if each is not None
        ]
        if not self._running:
            messages.append(SetRunning(running=False))
        return [*messages, *map(submit_message, dict.fromkeys(self._pending.values()))]

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

    def _wait(
        self, is_done: Callable[[], bool], awaited: str, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        """Wait until a condition is true.

        Raises the engine's fault, and EngineLostError after the timeout, in which the engine has not `awaited`.
        """
        with self._changed:
            in_time = self._changed.wait_for(
                lambda: self._fault is not None or is_done(), timeout=timeout_seconds
            )
            if self._fault is not None:
                raise self._fault
        if not in_time:
            raise EngineLostError(f"In {timeout_seconds:g} s {self.name} has not {awaited}.{self._output()}")

    def _output(self) -> str:
        """The last lines of the process's output, for an error message; empty without a log file."""
        lines = "" if self._worker is None else self._worker.last_output()
        return f" The last lines of its output:\n{lines}" if lines else ""


def _closed_error() -> InferenceError:
    return InferenceError("the inference engine has been closed")


def _restart_limit_error(death: WorkerDiedError, restarts: int) -> EngineLostError:
    return EngineLostError(
        f"{death}, and is not restarted: rollout.pool.max_restarts is {restarts}. If no user sent signal 9, "
        "the kernel sent it for lack of memory: each engine has a copy of the weights and a cache of "
        "rollout.engine.kv_cache_tokens. The same command resumes from the last saved state."
    )


def _run_engine_worker(channel: Channel) -> None:
    """Serve the pool until it disconnects."""
    asyncio.run(_EngineWorker(channel).run())


class _EngineWorker:
    """Handles messages in the event loop that also runs the engine, so between two decoding steps."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._created: InferenceEngine | None = None
        self._inbox: asyncio.Queue[EngineCommand | Exception] = asyncio.Queue()
        """Messages of the pool; an exception is the last one."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Running requests by id."""
        self._completed: dict[int, Completion] = {}
        """Completions that are not sent yet, by the id of their request."""
        self._reporting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Handle messages until the pool disconnects."""
        inbox = self._inbox
        loop = asyncio.get_running_loop()

        def receive() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(inbox.put_nowait, self._channel.receive())
            except Exception as error:  # noqa: BLE001  (the pool is gone, or a message cannot be unpickled)
                loop.call_soon_threadsafe(inbox.put_nowait, error)

        threading.Thread(target=receive, daemon=True).start()
        while not isinstance(message := await inbox.get(), Exception):
            try:
                self._handle(message)
            except EngineLostError as error:
                inbox.put_nowait(error)
            except Exception as error:  # noqa: BLE001  (sent to the pool, which raises it)
                self._reply(EngineFailure(None, RemoteFailure.from_exception(error)))
        if isinstance(message, EngineLostError):
            # The pool starts a new process. No reply must reach it on the way, such as that of a cancelled request.
            print(message, file=sys.stderr, flush=True)
            os._exit(1)
        if self._created is not None:
            self._created.close()
        self._reply(EngineFailure(None, RemoteFailure.from_exception(message)))

    @property
    def _engine(self) -> InferenceEngine:
        assert self._created is not None, "the pool sends CreateEngine first"
        return self._created

    def _handle(self, message: EngineCommand) -> None:
        match message:
            case CreateEngine():
                self._created = message.create()
                self._engine.start()
                self._reply(EngineCreated(self._engine.describe(), self._engine.capabilities))
                self._reporting = asyncio.create_task(self._report_progress(message.progress_seconds))
            case LoadWeights():
                self._load(message.weights, message.version)
                self._reply(CommandCompleted(message.command_id))
            case ReceiveWeights():
                self._receive(message)
            case LoadAdapter():
                self._engine.load_adapter(message.folder, message.version)
                self._reply(CommandCompleted(message.command_id))
            case SetMemory():
                (self._engine.release_memory if message.released else self._engine.restore_memory)()
                self._reply(CommandCompleted(message.command_id))
            case TakeStatistics():
                self._reply(StatisticsTaken(message.command_id, self._engine.take_statistics()))
            case SubmitRequests():
                for request_id, request in message.requests.items():
                    task = asyncio.create_task(self._sample(request_id, request))
                    self._tasks[request_id] = task
                    task.add_done_callback(partial(self._forget_task, request_id))
            case CancelRequests():
                for request_id in message.request_ids:
                    if request_id in self._tasks:
                        self._tasks[request_id].cancel()
            case AbortRequests():
                self._engine.abort()
            case SetRunning():
                (self._engine.resume if message.running else self._engine.pause)()
            case _:
                assert_never(message)

    def _load(self, weights: SharedFileHandle | Path, version: int) -> None:
        if isinstance(weights, Path):
            self._engine.load_path(weights, version)
        elif "path" in self._engine.capabilities.weight_transports:
            with weights.open() as path:
                self._engine.load_path(path, version)
        else:
            self._engine.load(_read(weights), version)

    def _receive(self, message: ReceiveWeights) -> None:
        try:
            self._engine.load_process_group(lambda: message.trainer, message.version)
        except WeightTransferError as error:
            self._reply(TransferFailed(message.command_id, str(error)))
        else:
            self._reply(CommandCompleted(message.command_id))

    async def _sample(self, request_id: int, request: SampleRequest) -> None:
        try:
            (completion,) = await self._engine.sample([request])
            if not self._completed:  # one message for all requests that end in this iteration of the loop
                asyncio.get_running_loop().call_soon(self._send_completed)
            self._completed[request_id] = completion
        except EngineLostError as error:
            self._inbox.put_nowait(error)
        except Exception as error:  # noqa: BLE001  (sent to the pool, which raises it)
            self._reply(EngineFailure(request_id, RemoteFailure.from_exception(error)))

    def _send_completed(self) -> None:
        completed, self._completed = self._completed, {}
        self._reply(RequestsCompleted(completed))

    async def _report_progress(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            if self._tasks:
                self._reply(ProgressReport(self._engine.processed_tokens))

    def _forget_task(self, request_id: int, _: asyncio.Task[None]) -> None:
        del self._tasks[request_id]

    def _reply(self, reply: EngineReply) -> None:
        with suppress(ConnectionError):  # the pool is gone, which `receive` notices too
            self._channel.send(reply)


def _read(weights: SharedFileHandle) -> Iterator[tuple[str, torch.Tensor]]:
    with weights.open() as path:
        yield from read_weights(path)
