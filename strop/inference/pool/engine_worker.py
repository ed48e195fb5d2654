"""Main function of an engine's process in a pool: runs the engine and replies to the pool's messages."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import assert_never

import torch

from strop.errors import EngineLostError, WeightTransferError
from strop.inference.pool.messages import (
    AbortRequests,
    CancelRequests,
    CommandCompleted,
    CreateEngine,
    EngineCommand,
    EngineCreated,
    EngineFailure,
    EngineReply,
    LoadAdapter,
    LoadWeights,
    ProgressReport,
    ReceiveWeights,
    RequestCompleted,
    SetMemory,
    SetRunning,
    StatisticsTaken,
    SubmitRequests,
    TakeStatistics,
    TransferFailed,
)
from strop.inference.weight_files import read_weights
from strop.protocols import InferenceEngine
from strop.types import SampleRequest
from strop.workers.shared_file import SharedFileHandle
from strop.workers.worker import Channel, RemoteFailure


def run_engine_worker(channel: Channel) -> None:
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
            self._reply(RequestCompleted(request_id, completion))
        except EngineLostError as error:
            self._inbox.put_nowait(error)
        except Exception as error:  # noqa: BLE001  (sent to the pool, which raises it)
            self._reply(EngineFailure(request_id, RemoteFailure.from_exception(error)))

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
