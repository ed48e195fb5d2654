"""Native inference engine: continuous batching in the calling process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from strop.config.schema.rollout import NativeEngineConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.errors import InferenceError
from strop.inference.completion import StopStringMatcher
from strop.inference.native.model.architecture import native_unsupported_reason
from strop.inference.native.model.decoder import NativeModelRunner
from strop.inference.native.model.huggingface import HuggingFaceModelRunner
from strop.inference.native.model.runner import CudaGraphRecorder, ModelRunner, RecordedSteps
from strop.inference.native.model.weights import is_applicable
from strop.inference.native.pending_request import (
    PendingRequest,
    SampleCall,
    TokenCallback,
    prompt_key,
)
from strop.inference.native.scheduler import EngineStats, Scheduler
from strop.inference.native.sequences import SequenceBatch
from strop.inference.request_validation import refuse_prompt_logprobs, validate_request
from strop.inference.weight_files import read_weights
from strop.models.shared_weights import model_weights
from strop.models.vision.embedding import takes_images
from strop.protocols import EngineCapabilities, ImageProcessor, SharedWeights, TrainerAddress, UnmergedWeights
from strop.types import Completion, EngineStatistics, SampleRequest

NATIVE_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(("tensors", "path")),
    determinism="same_batch",
    filtered_policy_logprobs=True,
    converts_weights=False,
    adapters=False,
    images=False,
    memory_release=True,
    token_versions=True,
    prompt_logprobs=True,
    top_logprobs=True,
)
"""Features of the native engine."""
_IDLE_SECONDS = 5.0
"""Time without work after which the memory of kept prefixes is freed, for an update of the trainer, say. Next to a tool
that takes as long, it is nothing to compute them again."""
_POLL_SECONDS = 0.001
"""Interval at which the event loop asks for the lock while another thread holds it."""


class NativeEngine:
    """Inference engine that batches concurrent calls of `sample` in one event loop.

    The same requests in the same order give the same completions, bit for bit. The given weights are
    Hugging Face's names and tensors: if their type, device and layout allow, the engine uses these very
    tensors, so that an in-place update by an optimizer takes effect at once; they must not change in any
    other way while the engine runs.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        section: NativeEngineConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        generation_config: GenerationConfig | None = None,
        image_processor: Callable[[], ImageProcessor] | None = None,
        unmerged: UnmergedWeights | None = None,
    ) -> None:
        """Build the model; `dtype` is used if `section.dtype` is `model`. With `merge_lora: false` the
        native forward samples from `unmerged` in place of `weights` where it can apply the adapter.

        Raises `ModelError` for weights that do not fit the configuration.
        """
        if section.dtype != "model":
            dtype = getattr(torch, section.dtype)
        self._fallback_reason = native_unsupported_reason(config)
        device = torch.device(device)
        graphs = section.cuda_graphs and device.type == "cuda" and self._fallback_reason is None
        self._lacks_graphs = section.cuda_graphs and not graphs
        runner: ModelRunner
        applied = None if section.merge_lora else unmerged
        if applied is not None and not is_applicable(applied.adapter, dtype):
            applied = None
        if self._fallback_reason is None:
            runner = NativeModelRunner(
                config,
                weights if applied is None else applied.tensors(),
                device=device,
                dtype=dtype,
                image_processor=image_processor,
                adapter=None if applied is None else applied.adapter,
                steps=RecordedSteps(CudaGraphRecorder(device)) if graphs else None,
            )
        else:
            runner = HuggingFaceModelRunner(
                config, weights, device=device, dtype=dtype, image_processor=image_processor
            )
        in_place = self._fallback_reason is None and runner.shared_fraction() == 1
        self._runner = runner
        self._image_processor = image_processor if takes_images(config) else None
        self.capabilities = replace(
            NATIVE_CAPABILITIES,
            images=self._image_processor is not None,
            weights_in_place=in_place,
            adapter_in_place=in_place and applied is not None,
            keeps_prefixes=runner.takes_prefixes,
        )
        eos_ids = eos_token_ids(config, generation_config, tokenizer)
        sequences = SequenceBatch(runner.vocab_size, runner.device, eos_ids, StopStringMatcher(tokenizer))
        self._scheduler = Scheduler(runner, sequences, section.kv_cache_tokens, section.max_sequences)
        self._cache_tokens = section.kv_cache_tokens
        self._paused = False
        self._memory_released = False
        self._has_weights = True
        self._closed = False
        self._lock = StepLock()
        self._cancellation_is_due = False
        """Whether a call was cancelled while another thread held `_lock`."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Event loop of the latest call of `sample`."""
        self._decoding: asyncio.Task[None] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        """Call that drops kept prefixes after a time without work."""

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        section: NativeEngineConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dtype: torch.dtype | None = None,
    ) -> NativeEngine:
        """Sample from a Hugging Face model, on its weights if possible; `dtype` None is the model's own.

        Adapters are ignored: `load` takes merged weights.
        """
        return cls.from_weights(model_weights(model, dtype=dtype), section, tokenizer)

    @classmethod
    def from_weights(
        cls, weights: SharedWeights, section: NativeEngineConfig, tokenizer: PreTrainedTokenizerBase
    ) -> NativeEngine:
        """Sample from a model in this process, on its weights if possible."""
        return cls(
            weights.config,
            weights.tensors(),
            section,
            tokenizer,
            device=weights.device,
            dtype=weights.dtype,
            generation_config=weights.generation_config,
            image_processor=weights.image_processor,
            unmerged=weights.unmerged,
        )

    @property
    def device(self) -> torch.device:
        """Device of the weights, from which `load` takes tensors without a detour."""
        return self._runner.device

    @property
    def stats(self) -> EngineStats:
        """Counters and current load, for a display to poll."""
        return self._scheduler.stats

    @property
    def processed_tokens(self) -> int:
        """Prompt and sampled tokens computed so far."""
        stats = self._scheduler.stats
        return stats.prompt_tokens + stats.generated_tokens

    def start(self) -> None:
        """Nothing to do: the engine accepts requests after construction."""
        self._check_open()

    def close(self) -> None:
        """Stop decoding, free weights and cache; pending requests raise `InferenceError`."""
        with self._lock.between_steps():
            if self._closed:
                return
            self._closed = True
            calls = self._scheduler.calls()
            self._scheduler.clear()
            self._runner.release_weights()
        error = _closed_error()
        for call in calls:
            call.fail(error)

    def describe(self) -> str:
        """One line: forward pass, data type, weights used in place, why it is not the native forward, and whether it
        cannot record CUDA graphs."""
        in_place = f"{100 * self._runner.shared_fraction():.0f} % of the weights used in place"
        reason = "" if self._fallback_reason is None else f" ({self._fallback_reason})"
        graphs = ", no CUDA graphs without a GPU and the native forward" if self._lacks_graphs else ""
        return f"{self._runner.describe()}, {in_place}{reason}{graphs}"

    async def sample(
        self, requests: Sequence[SampleRequest], on_token: TokenCallback | None = None
    ) -> list[Completion]:
        """Completions in the order of the requests; `on_token` gets each token at once, in the loop of this call.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid, or would not fit
        into the cache alone. When the awaiting task is cancelled, its requests are removed.
        """
        self._check_open()
        if not requests:
            return []
        loop = asyncio.get_running_loop()
        call = SampleCall(len(requests), loop.create_future(), on_token)
        pending = [
            PendingRequest(request, call, index, prompt_key(request))
            for index, request in enumerate(requests)
        ]
        for each in pending:
            if each.request.media:
                refuse_prompt_logprobs(each.request, "the native engine, for a prompt with images,")
            validate_request(
                each.request,
                self._runner.vocab_size,
                self._runner.max_sequence_tokens,
                self._image_processor,
            )
            if not self._scheduler.fits_alone(each):
                raise self._too_long(each)
        await self._lock.acquire()
        try:
            self._check_open()
            if not (self._has_weights or self._memory_released):
                raise InferenceError(
                    "the engine has no weights since release_memory; call load with all weights first"
                )
            self._loop = loop
            self._scheduler.add_requests(pending)
        finally:
            self._lock.release()
        self._decode_in_background()
        try:
            return await call.future
        except asyncio.CancelledError:
            self._remove(call)
            raise

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors, with which running completions continue."""
        with self._lock.between_steps():
            self._check_open()
            if self._memory_released:
                raise InferenceError("load was called after release_memory; call restore_memory first")
            self._runner.load(weights)
            self._has_weights = self._runner.has_weights()
            self._scheduler.invalidate_prompts()
            self._scheduler.version = version
        self._wake()

    def load_path(self, path: Path, version: int) -> None:
        """Load the safetensors files of a folder, one tensor at a time; see `load`."""
        self.load(read_weights(path), version)

    def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(
            "the native engine cannot load an adapter; merge it, and pass the tensors to load"
        )

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(
            "the native engine cannot join a process group; receive the weights in its process and pass the "
            "tensors to load"
        )

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        with self._lock.between_steps():
            return self._scheduler.statistics.take()

    def abort(self) -> None:
        """End all requests with the tokens that they have."""
        with self._lock.between_steps():
            self._check_open()
            aborted = self._scheduler.abort()
        for pending, completion in aborted:
            pending.call.run_in_loop(partial(pending.call.set_completion, pending.index, completion))

    def pause(self) -> None:
        """Stop decoding; running and waiting requests keep their state."""
        with self._lock.between_steps():
            self._check_open()
            self._paused = True

    def resume(self) -> None:
        """Continue decoding."""
        with self._lock.between_steps():
            self._check_open()
            self._paused = False
        self._wake()

    def release_memory(self) -> None:
        """Free the KV cache and the weights that are copies; requests wait until `restore_memory`.

        Raises `InferenceError` while completions are running.
        """
        with self._lock.between_steps():
            self._check_open()
            running = self._scheduler.stats.running
            if running:
                raise InferenceError(
                    f"release_memory was called with {running} completions running; await or cancel them first"
                )
            self._memory_released = True
            self._scheduler.prefixes.clear()
            self._runner.clear()
            self._runner.release_weights()
            self._has_weights = self._runner.has_weights()

    def restore_memory(self) -> None:
        """Accept work again; if weights were freed, requests wait until `load` has given all of them.

        The KV cache and freed weights are allocated when they are needed.
        """
        with self._lock.between_steps():
            self._check_open()
            self._memory_released = False
        self._wake()

    def _remove(self, call: SampleCall) -> None:
        """Remove the requests of a cancelled call, now or before the next step."""
        if call.cancelled:
            return
        if not self._lock.try_acquire():
            self._cancellation_is_due = True
            return
        try:
            self._scheduler.remove_cancelled()
        finally:
            self._lock.release()

    def _wake(self) -> None:
        """Decode in the loop of the waiting calls, if there is work; any thread may call."""
        if self._loop is not None and self._can_step():
            with suppress(RuntimeError):  # the loop has been closed, and its calls with it
                self._loop.call_soon_threadsafe(self._decode_in_background)

    def _can_step(self) -> bool:
        held = self._closed or self._paused or self._memory_released
        return not held and self._has_weights and self._scheduler.has_requests

    def _decode_in_background(self) -> None:
        """Make sure that a task decodes in the loop of the waiting calls; only that loop's thread may call."""
        if self._loop is None or not self._can_step():
            return
        if self._decoding is None or self._decoding.done() or self._decoding.get_loop() is not self._loop:
            self._decoding = self._loop.create_task(self._decode(), name="native sampler")
            self._decoding.add_done_callback(self._fail_pending)

    async def _decode(self) -> None:
        """Step while there is work, yielding to the event loop in between."""
        if self._dropping is not None:
            self._dropping.cancel()
        while True:
            await self._lock.acquire()
            try:
                if self._cancellation_is_due:
                    self._cancellation_is_due = False
                    self._scheduler.remove_cancelled()
                if not self._can_step():
                    if self._scheduler.prefixes.tokens:
                        loop = asyncio.get_running_loop()
                        self._dropping = loop.call_later(_IDLE_SECONDS, self._drop_prefixes)
                    return
                self._scheduler.step()
            finally:
                self._lock.release()
            # Twice: the callers of finished requests act in the first iteration, and what they schedule in the second.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _drop_prefixes(self) -> None:
        # Another thread that has the lock loads weights, which drops them too, or ends the engine.
        if self._lock.try_acquire():
            self._scheduler.prefixes.clear()
            self._lock.release()

    def _fail_pending(self, decoding: asyncio.Task[None]) -> None:
        """After a failed step, raise its error in all pending calls; the engine is then empty and usable."""
        error = None if decoding.cancelled() else decoding.exception()
        if error is None:
            return
        with self._lock.between_steps():
            calls = self._scheduler.calls()
            self._scheduler.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)

    def _check_open(self) -> None:
        if self._closed:
            raise _closed_error()

    def _too_long(self, pending: PendingRequest) -> InferenceError:
        sampling = pending.request.sampling
        return InferenceError(
            f"request {pending.request.id!r}: a prompt of {pending.prompt_tokens} tokens and max_tokens "
            f"{sampling.max_tokens} do not fit into rollout.engine.kv_cache_tokens ({self._cache_tokens}); "
            "increase it, or shorten the request"
        )


def _closed_error() -> InferenceError:
    return InferenceError("the inference engine has been closed")


class StepLock:
    """Lock that is held during a step, and by every method that changes what the next step sees."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[object] = set()
        """Calls from other threads that wait for the lock; decoding lets them go first."""

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Hold the lock, in any thread; decoding waits."""
        ticket = object()
        self._waiting.add(ticket)
        try:
            self._lock.acquire()
        finally:
            self._waiting.discard(ticket)
        try:
            yield
        finally:
            self._lock.release()

    async def acquire(self) -> None:
        """Take the lock without blocking the event loop, after the threads that wait for it."""
        while self._waiting or not self.try_acquire():
            await asyncio.sleep(_POLL_SECONDS)

    def try_acquire(self) -> bool:
        """Take the lock if it is free; whether it was."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
