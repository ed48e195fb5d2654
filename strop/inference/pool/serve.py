"""A pool's engine in its own process: what the worker does."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import assert_never

import torch
from safetensors import safe_open

from strop.errors import StropError
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
from strop.types import SampleRequest
from strop.workers.shared import Shared
from strop.workers.worker import Channel


def serve(channel: Channel) -> None:
    """Do what the pool says, until it is gone."""
    asyncio.run(_Served(channel).run())


class _Served:
    """Consumes messages between two steps of the sampler; waits for them where there is nothing to draw."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: NativeEngine
        self._under_way: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until nobody is there any more."""
        inbox: asyncio.Queue[Message | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(inbox.put_nowait, self._channel.receive())
            except Exception as error:  # noqa: BLE001  (nobody is there any more, or it cannot be unpickled)
                loop.call_soon_threadsafe(inbox.put_nowait, error)

        threading.Thread(target=listen, daemon=True).start()
        while not isinstance(message := await inbox.get(), Exception):
            try:
                self._do(message)
            except Exception as error:  # noqa: BLE001  (the pool is told, and raises it)
                self._say(_failed(None, error))
        self._say(_failed(None, message))

    def _do(self, message: Message) -> None:
        match message:
            case Make():
                self._engine = message.make()
                self._say(Made(self._engine.forward))
            case Load():
                self._engine.load(_read(message.weights), message.version)
                self._say(Loaded(message.number))
            case Ask():
                for number, request in message.requests.items():
                    task = asyncio.create_task(self._answer(number, request))
                    self._under_way[number] = task
                    task.add_done_callback(partial(self._over, number))
            case Forget():
                for number in message.numbers:
                    if number in self._under_way:
                        self._under_way[number].cancel()
            case Draw():
                (self._engine.resume if message.on else self._engine.pause)()
            case _:
                assert_never(message)

    async def _answer(self, number: int, request: SampleRequest) -> None:
        try:
            (completion,) = await self._engine.sample([request])
            self._say(Answer(number, completion))
        except Exception as error:  # noqa: BLE001  (the pool is told, and raises it)
            self._say(_failed(number, error))

    def _over(self, number: int, _: asyncio.Task[None]) -> None:
        del self._under_way[number]

    def _say(self, reply: Reply) -> None:
        with suppress(ConnectionError):  # nobody is there any more, which `listen` hears
            self._channel.send(reply)


def _read(weights: Shared) -> Iterator[tuple[str, torch.Tensor]]:
    with weights.opened() as path, safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (safe_open is no dict)
            yield name, file.get_tensor(name)


def _failed(number: int | None, error: Exception) -> Failed:
    if isinstance(error, StropError):
        return Failed(number, str(error), type(error))
    return Failed(number, "".join(traceback.format_exception(error)), None)
