"""Pool of engine processes behind the interface of one inference engine."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import count
from pathlib import Path

import torch

from strop.errors import InferenceError, WeightTransferError
from strop.inference.pool.engine_handle import EngineHandle
from strop.inference.pool.messages import (
    EngineCreated,
    EngineSpec,
    LoadAdapter,
    LoadWeights,
    PoolRequest,
    ReceiveWeights,
    SetMemory,
    TakeStatistics,
    WeightCommand,
)
from strop.inference.weight_files import share_weights
from strop.protocols import EngineCapabilities, TrainerAddress
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.shared_file import SharedFile
from strop.workers.start import LocalPlacement, WorkerPlacement

_REMEMBERED_ROLLOUTS = 16384
"""Maximum number of rollouts whose engine is remembered for their next turn."""


class EnginePool:
    """Inference engine that distributes requests over engines in processes of their own.

    Each request goes to the engine with the fewest pending requests; requests with equal prompts go to the
    same engine while it has one of them pending, so that it prefills the prompt once. The next turn of a rollout
    goes to the engine of its last turn, if the engines keep the KV cache of prompts. Requests submitted in one
    iteration of the event loop are admitted together, so a step whose requests all arrive at once gives the same
    completions every time, bit for bit. An engine that dies is restarted, and repeats its pending requests.
    """

    device = torch.device("cpu")
    """Device from which `load` takes tensors without a detour: it writes them into a shared file."""

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        placement: WorkerPlacement,
        max_restarts: int,
        hang_timeout_seconds: float = 600.0,
        start_timeout_seconds: float = 1800.0,
    ) -> None:
        """A pool of these engines, not yet started; each may take `start_timeout_seconds` to start, and is restarted at
        most `max_restarts` times, after its end or after `hang_timeout_seconds` without progress.
        """
        self._start_timeout_seconds = start_timeout_seconds
        self._hang_timeout_seconds = hang_timeout_seconds
        self._specs = tuple(specs)
        self._placement = placement
        self._max_restarts = max_restarts
        self._engines: list[EngineHandle] = []
        self._created: EngineCreated | None = None
        self._closed = False
        self._memory_released = False
        self._weights: SharedFile | None = None
        self._ids = count()
        self._undispatched: list[PoolRequest] = []
        self._assignments: dict[int, tuple[EngineHandle, bytes]] = {}
        """Engine and prompt of each pending request, by request id."""
        self._pending_count: Counter[EngineHandle] = Counter()
        self._engine_of_prompt: dict[bytes, tuple[EngineHandle, int]] = {}
        """Engine that has a prompt pending, and the number of its requests."""
        self._engine_of_rollout: OrderedDict[str, EngineHandle] = OrderedDict()
        """Engine of the last request of each name, if the engines keep the KV cache of prompts; the latest is last."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of the pool's engines; adapters are loaded if all engines read this machine's files."""
        engine = self._running().capabilities
        return replace(
            engine,
            adapters=engine.adapters and isinstance(self._placement, LocalPlacement),
        )

    def start(self) -> None:
        """Start all processes at once, and wait until their engines have been created.

        Raises the error of a creation, and `PlacementError` if there is no capacity for a process.
        """
        self._check_open()
        if self._engines:
            return
        try:
            for spec in self._specs:
                self._engines.append(
                    EngineHandle(spec, self._placement, self._max_restarts, self._hang_timeout_seconds)
                )
            created = [engine.wait_created(self._start_timeout_seconds) for engine in self._engines]
        except BaseException:
            self.close()
            raise
        self._created = created[0]

    def close(self) -> None:
        """Kill all processes; pending requests raise `InferenceError`."""
        self._closed = True
        for engine in self._engines:
            engine.kill()
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    def describe(self) -> str:
        """One line: description of the engines, and their number."""
        number = f"{len(self._specs)} engines" if len(self._specs) > 1 else "1 engine"
        created = self._running()
        in_place = created.capabilities.weights_in_place or created.capabilities.adapter_in_place
        own = "KV cache" if in_place else "model and KV cache"
        return f"{created.description}; {number}, each a process with its own {own}"

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid, and `EngineLostError`
        if an engine has died too often. When the awaiting task is cancelled, its requests are cancelled.
        """
        self._running()
        loop = asyncio.get_running_loop()
        pending = [PoolRequest(next(self._ids), request, loop.create_future()) for request in requests]
        self._undispatched += pending
        loop.call_soon(self._dispatch)
        try:
            return await asyncio.gather(*(each.future for each in pending))
        finally:
            self._remove(pending)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors into all engines through one shared file; returns when all have loaded it.

        Raises `ModelError` for weights of another model, and `EngineLostError`.
        """
        self._check_can_load()
        shared = share_weights(weights, self._placement)
        old, self._weights = self._weights, shared
        self._load(lambda command_id: LoadWeights(shared.handle, version, command_id))
        if old is not None:
            old.close()

    def load_path(self, path: Path, version: int) -> None:
        """Load a model folder into all engines; the path must exist on every engine's node."""
        self._check_can_load()
        if "path" not in self.capabilities.weight_transports:
            raise InferenceError(
                "the engines of this pool cannot load weights by path; pass the tensors to load"
            )
        self._load(lambda command_id: LoadWeights(path, version, command_id))
        self._free_weights()

    def load_adapter(self, folder: Path, version: int) -> None:
        """Load an adapter into all engines, which read it again after a restart."""
        self._check_can_load()
        if not self.capabilities.adapters:
            raise InferenceError(
                "the engines of this pool cannot load an adapter; merge it, and pass the tensors to load"
            )
        command = LoadAdapter(folder, version, next(self._ids))
        for engine in self._engines:
            engine.load_adapter(command)
        for engine in self._engines:
            engine.wait_completed(command.command_id)

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Have each engine receive a version from the trainer, over a process group of its own.

        An engine that is restarted receives the version again, at the trainer's address of that time. Raises
        `WeightTransferError` if the weights do not arrive in one of the engines.
        """
        self._check_can_load()
        if "process_group" not in self.capabilities.weight_transports:
            raise InferenceError(
                "the engines of this pool cannot join a process group; receive the weights in this process and pass "
                "the tensors to load"
            )
        self._load(lambda command_id: ReceiveWeights(trainer(), version, command_id))
        self._free_weights()

    @property
    def processed_tokens(self) -> int:
        """Tokens that the engines' current processes have reported."""
        return sum(engine.processed_tokens for engine in self._engines)

    def take_statistics(self) -> EngineStatistics | None:
        """Load of all engines since the last call; None if they do not record it."""
        self._running()
        command = TakeStatistics(next(self._ids))
        for engine in self._engines:
            engine.begin_statistics(command)
        taken = [engine.statistics(command.command_id) for engine in self._engines]
        given = [statistics for statistics in taken if statistics is not None]
        return reduce(EngineStatistics.combined_with, given) if given else None

    def abort(self) -> None:
        """End all pending requests with the tokens that they have.

        An engine that dies meanwhile repeats its requests after its restart instead.
        """
        self._running()
        for engine in self._engines:
            engine.abort()

    def pause(self) -> None:
        """Stop decoding; pending requests keep their state."""
        self._running()
        for engine in self._engines:
            engine.set_running(False)

    def resume(self) -> None:
        """Continue decoding."""
        self._running()
        for engine in self._engines:
            engine.set_running(True)

    def release_memory(self) -> None:
        """Free memory in all engines; requests wait until `restore_memory`.

        Raises `InferenceError` while any request is pending, and if the engines do not support it.
        """
        if not self.capabilities.memory_release:
            raise InferenceError("the engines of this pool cannot release memory")
        if self._assignments or self._undispatched:
            raise InferenceError(
                f"release_memory was called with {len(self._assignments) + len(self._undispatched)} requests "
                "pending; await or cancel them first"
            )
        self._set_memory(released=True)

    def restore_memory(self) -> None:
        """Accept work again; if weights were freed, `load` must provide them before the next completion."""
        self._running()
        self._set_memory(released=False)

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceError("the inference engine has been closed")

    def _running(self) -> EngineCreated:
        """Check that the pool has been started and not closed; returns what its engines reported."""
        self._check_open()
        if self._created is None:
            raise InferenceError("the pool of engines has not been started; call start first")
        return self._created

    def _check_can_load(self) -> None:
        self._running()
        if self._memory_released:
            raise InferenceError("load was called after release_memory; call restore_memory first")

    def _load(self, message: Callable[[int], LoadWeights | ReceiveWeights]) -> None:
        """Send a load, built from the command's id, to all engines and wait for all."""
        command_id = next(self._ids)
        command = WeightCommand(command_id, lambda: message(command_id))
        for engine in self._engines:
            engine.load(command)
        failed: WeightTransferError | None = None
        for engine in self._engines:
            try:
                engine.wait_completed(command_id)
            except WeightTransferError as error:  # the other engines' processes are still busy with the load
                failed = error
        if failed is not None:
            raise failed

    def _free_weights(self) -> None:
        """Free the shared file of the latest `load`, which no restarted engine reads any more."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    def _set_memory(self, *, released: bool) -> None:
        command = SetMemory(released, next(self._ids))
        for engine in self._engines:
            engine.set_memory(command)
        for engine in self._engines:
            engine.wait_completed(command.command_id)
        self._memory_released = released

    def _dispatch(self) -> None:
        pending, self._undispatched = self._undispatched, []
        assigned: dict[EngineHandle, list[PoolRequest]] = {}
        for each in pending:
            if not each.future.done():
                assigned.setdefault(self._choose(each), []).append(each)
        for engine, batch in assigned.items():
            engine.submit(batch)

    def _choose(self, pending: PoolRequest) -> EngineHandle:
        prompt = pending.request.prompt_ids.tobytes()
        least_loaded = min(self._engines, key=lambda engine: self._pending_count[engine])
        preferred = self._engine_of_rollout.get(pending.request.id, least_loaded)
        engine, number = self._engine_of_prompt.get(prompt, (preferred, 0))
        self._remember(pending.request.id, engine)
        self._engine_of_prompt[prompt] = (engine, number + 1)
        self._pending_count[engine] += 1
        self._assignments[pending.request_id] = (engine, prompt)
        return engine

    def _remember(self, rollout: str, engine: EngineHandle) -> None:
        """Remember the engine that has the KV cache of a rollout's turns so far."""
        if self._created is None or not self._created.capabilities.keeps_prefixes:
            return
        self._engine_of_rollout[rollout] = engine
        self._engine_of_rollout.move_to_end(rollout)
        if len(self._engine_of_rollout) > _REMEMBERED_ROLLOUTS:
            self._engine_of_rollout.popitem(last=False)

    def _remove(self, requests: Sequence[PoolRequest]) -> None:
        """Remove the requests of a call that has ended, and cancel those without an answer."""
        unanswered: dict[EngineHandle, list[int]] = {}
        for pending in requests:
            if pending.request_id not in self._assignments:
                continue
            engine, prompt = self._assignments.pop(pending.request_id)
            self._pending_count[engine] -= 1
            number = self._engine_of_prompt[prompt][1]
            if number == 1:
                del self._engine_of_prompt[prompt]
            else:
                self._engine_of_prompt[prompt] = (engine, number - 1)
            if not pending.future.done() or pending.future.cancelled():
                unanswered.setdefault(engine, []).append(pending.request_id)
        for engine, request_ids in unanswered.items():
            engine.cancel(request_ids)
