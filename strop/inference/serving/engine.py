"""Inference engine on a serving library, for a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from strop.errors import EngineLostError, InferenceError, ModelError, StropError, WeightTransferError
from strop.inference.request_validation import refuse_top_logprobs
from strop.inference.serving.backend import ServingBackend
from strop.inference.weight_files import share_weights
from strop.inference.weight_transfer import WeightClient
from strop.protocols import EngineCapabilities, TrainerAddress
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.start import LOCAL
from strop.workers.threads import EventLoopThread, gather_or_cancel

T = TypeVar("T")
_POLL_SECONDS = 0.01
"""Interval at which requests are aborted until the library has none, and at which the end of its processes is looked
for."""
_WATCH_SECONDS = 1.0
"""Interval at which the library's processes are looked at."""
_REFUSALS = (StropError, ValueError, TypeError)
"""Errors that a call raises itself, and not because of the end of a process."""


class ServingEngine:
    """Inference engine that passes requests to a serving library, which computes in processes of its own.

    The library's front end runs in an event loop of this engine, so that the blocking methods can wait for it from
    any other loop. After the end of one of the library's processes every call raises `EngineLostError`; a pool then
    starts the engine again.
    """

    device = torch.device("cpu")
    """Device from which `load` takes tensors: it writes them into a file in shared memory."""

    def __init__(self, backend: ServingBackend) -> None:
        """An engine that loads the model when it starts; its weights have version 0."""
        self._backend = backend
        self._thread = EventLoopThread(backend.name)
        self._admitting = asyncio.Event()
        """Set while new requests are passed to the library; they wait while the engine is paused."""
        self._admitting.set()
        self._paused = False
        self._memory_released = False
        self._has_weights = True
        self._running = 0
        """Number of requests that the library has."""
        self._aborts = 0
        """Number of calls of `abort`."""
        self._weight_client = WeightClient()
        self._fault: str | None = None
        """Reason why the weights are unusable; None while they are complete."""
        self._calls: set[asyncio.Future[Any]] = set()
        """Calls of the library that it has not answered yet."""
        self._ended: EngineLostError | None = None
        """The error of a library whose process has ended."""
        self._started = False
        self._closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of the library's engine."""
        return self._backend.capabilities

    def start(self) -> None:
        """Start the library's processes, which load the model; see `ServingBackend.start`."""
        self._check_open()
        if not self._started:
            self._thread.run(self._backend.start())
            self._thread.submit(self._watch_processes())
            self._started = True

    def close(self) -> None:
        """End the library's processes; pending requests raise `InferenceError`."""
        if self._closed:
            return
        self._closed = True
        self._weight_client.close()
        if self._started:
            self._thread.run(self._backend.close())
        self._thread.close()

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        self._check_started()
        return self._backend.describe()

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid. When the awaiting task
        is cancelled, its requests are aborted.
        """
        self._check_started()
        for request in requests:
            self._backend.check(request)
            refuse_top_logprobs(request, self._backend.name)
        try:
            return await self._thread.run_async(self._sample_all(requests))
        except asyncio.CancelledError:
            self._check_open()
            raise

    async def _sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        return await gather_or_cancel([self._sample(request) for request in requests])

    async def _sample(self, request: SampleRequest) -> Completion:
        await self._admitting.wait()
        self._running += 1
        aborts = self._aborts
        try:
            completion = await self._answered(self._backend.generate(request))
        finally:
            self._running -= 1
        if completion.finish_reason == "abort" and self._aborts == aborts:
            raise InferenceError(f"request {request.id!r}: {self._backend.name} aborted it")
        return completion

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors through a file in shared memory; see `load_path`."""
        self._check_started()
        shared = share_weights(weights, LOCAL)
        try:
            with shared.handle.open() as path:
                self.load_path(path, version)
        finally:
            shared.close()

    def load_path(self, path: Path, version: int) -> None:
        """Load a safetensors file, or those of a folder.

        Running completions continue with the new weights, which compute their KV cache again. Raises `ModelError` if
        the library cannot load the file; the engine then refuses all requests.
        """
        self._run(self._load(lambda: self._backend.load_weights(path), version))

    def load_adapter(self, folder: Path, version: int) -> None:
        """Load a LoRA adapter in place of the last one; see `load_path`."""
        self._check_started()
        if not self.capabilities.adapters:
            raise InferenceError(
                f"this {self._backend.name} engine has no adapter; merge it, and pass the tensors to load"
            )
        self._run(self._load(lambda: self._backend.load_adapter(folder, version), version))

    async def _load(self, change: Callable[[], Coroutine[Any, Any, None]], version: int) -> None:
        """Change the weights between two steps, and discard what was computed with the old ones."""
        if self._memory_released:
            raise InferenceError("load was called after release_memory; call restore_memory first")
        try:
            await self._hold()
            await change()
            await self._backend.discard_cache()
            await self._backend.set_version(version)
            self._has_weights = True
            await self._continue()
        except WeightTransferError:
            self._has_weights = False
            raise
        except Exception as error:
            if (lost := await self._lost(error)) is not None:
                raise lost from error
            self._fault = (
                f"{self._backend.name} cannot load version {version} of the weights, and samples no more, so that "
                f"nothing comes from a mixture of two versions: {str(error).rstrip('.')}. Its own output, with the "
                "place of the error, is in `log/engine-*.log` of the run's folder. The same command resumes from the "
                "last checkpoint."
            )
            raise ModelError(self._fault) from error

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Have each of the library's processes receive a version from the trainer; see `load_path`.

        Raises `WeightTransferError` if the weights do not arrive; requests then wait until a load succeeds.
        """
        self._check_started()
        if "process_group" not in self.capabilities.weight_transports:
            raise InferenceError(
                f"the {self._backend.name} engine cannot join a process group; receive the weights in its process and "
                "pass the tensors to load"
            )
        self._run(self._load(lambda: self._receive(trainer, version), version))

    async def _receive(self, trainer: TrainerAddress, version: int) -> None:
        client = self._weight_client
        receivers = await self._backend.receivers()
        offer = await asyncio.to_thread(client.request, trainer, version, receivers)
        reasons = await self._backend.receive_weights(offer, client.host)
        if reasons:
            client.close()  # which ends the process group
            raise WeightTransferError(
                f"the transfer of version {version} of the weights failed: {reasons[0]}"
            )
        await asyncio.to_thread(client.finish)

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        self._check_started()
        return self._thread.call(self._backend.take_statistics)

    def abort(self) -> None:
        """End all requests with the tokens that they have."""
        self._run(self._abort())

    async def _abort(self) -> None:
        self._admitting.clear()
        self._aborts += 1
        while self._running:  # a request that is on its way to the library is aborted when it has arrived
            await self._backend.abort()
            await asyncio.sleep(_POLL_SECONDS)
        await self._continue()

    def pause(self) -> None:
        """Stop decoding; running and waiting requests keep their state."""
        self._paused = True
        self._run(self._hold())

    def resume(self) -> None:
        """Continue decoding."""
        self._paused = False
        self._run(self._continue())

    async def _hold(self) -> None:
        self._admitting.clear()
        await self._backend.hold()

    async def _continue(self) -> None:
        """Decode and admit requests again, unless the engine is paused, or has no memory or no weights."""
        if not self._paused and not self._memory_released and self._has_weights:
            await self._backend.release()
            self._admitting.set()

    def release_memory(self) -> None:
        """Free the KV cache and the weights. Raises `InferenceError` while completions are running."""
        self._check_memory_release()
        if self._running:
            raise InferenceError(
                f"release_memory was called with {self._running} completions running; await or cancel them first"
            )
        if not self._memory_released:
            self._memory_released = True
            self._has_weights = self._has_weights and self._backend.keeps_weights
            self._admitting.clear()
            self._run(self._backend.sleep())

    def restore_memory(self) -> None:
        """Accept work again; if weights were freed, requests wait until `load` has given all of them."""
        self._check_memory_release()
        if self._memory_released:
            self._memory_released = False
            self._run(self._wake())

    async def _wake(self) -> None:
        await self._backend.wake_up()
        await self._continue()

    def _check_memory_release(self) -> None:
        if not self.capabilities.memory_release:
            raise InferenceError(f"this {self._backend.name} engine cannot release its memory")

    @property
    def processed_tokens(self) -> int | None:
        """Prompt and sampled tokens computed so far; None for a library that does not report them."""
        return self._backend.processed_tokens

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            self._check_started()
        except InferenceError:
            coroutine.close()
            raise
        self._thread.run(self._answered(coroutine))

    async def _watch_processes(self) -> None:
        """End all calls when one of the library's processes has ended: the library may then never answer them."""
        while self._ended is None:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._closed:
                return
            self._ended = self._backend.lost(TimeoutError("it has not answered"))
        for call in self._calls:
            call.cancel()

    async def _answered(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a call of the library. Raises `EngineLostError` if one of its processes ends before."""
        if self._ended is not None:
            coroutine.close()
            raise self._ended
        call = asyncio.ensure_future(coroutine)
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if self._ended is not None:
                raise self._ended from None
            raise
        except EngineLostError:
            raise
        except Exception as error:
            if (lost := await self._lost(error)) is not None:
                raise lost from error
            raise
        finally:
            self._calls.discard(call)

    async def _lost(self, error: Exception) -> EngineLostError | None:
        """The error of a lost process, which the library may report later than the failure of a call."""
        patience = 0 if isinstance(error, _REFUSALS) else self._backend.report_seconds
        end = time.monotonic() + patience
        while (lost := self._backend.lost(error)) is None and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
        return lost

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceError("the inference engine has been closed")
        if self._fault is not None:
            raise InferenceError(self._fault)

    def _check_started(self) -> None:
        self._check_open()
        if not self._started:
            raise InferenceError(f"the {self._backend.name} engine has not been started; call start first")
