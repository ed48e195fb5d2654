"""Inference engine on vLLM's `AsyncLLM`, for a process of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from strop.config.schema.inference_engine import VllmEngineConfig
from strop.config.schema.model import ModelConfig
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.request_validation import validate_request
from strop.inference.stop_tokens import eos_token_ids
from strop.inference.vllm.arguments import add_engine_kwargs, engine_arguments, engine_dtype, loads_adapters
from strop.inference.vllm.library import VllmLibrary, import_vllm
from strop.inference.vllm.requests import check_temperature, to_completion, to_vllm
from strop.inference.vllm.statistics import StatisticsRecorder
from strop.models.loading import load_config, load_generation_config
from strop.protocols import EngineCapabilities, WeightBroadcast
from strop.types import Completion, EngineStatistics, SampleRequest
from strop.workers.event_loop_thread import EventLoopThread, gather_or_cancel
from strop.workers.shared_file import SharedFile
from strop.workers.start import LOCAL

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VLLM_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(("tensors", "path")),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=True,
    adapters=False,
    images=False,
    memory_release=False,
)
"""Features of the vLLM engine on a model without an adapter."""
_ADAPTER = "policy"


class VllmEngine:
    """Inference engine that passes requests to vLLM, which computes in processes of its own.

    vLLM's front end runs in an event loop of this engine, so that the blocking methods can wait for it from any
    other loop. After the end of one of vLLM's processes every call raises `EngineLostError`; a pool then starts
    the engine again.
    """

    device = torch.device("cpu")
    """Device from which `load` takes tensors: it writes them into a file in shared memory."""

    def __init__(
        self, section: VllmEngineConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        """An engine that loads the model when it starts; its weights have version 0."""
        self._section = section
        self._model = model
        config = load_config(model)
        self._model_type = config.model_type
        self._vocab_size = int(config.get_text_config().vocab_size)
        self._eos_ids = eos_token_ids(config, load_generation_config(model), tokenizer)
        self._thread = EventLoopThread("vllm")
        self._library: VllmLibrary | None = None
        self._llm: Any = None
        self._adapter: Any = None
        """vLLM's request for the adapter that was loaded last."""
        self._recorder = StatisticsRecorder()
        self._version = 0
        self._request_numbers = itertools.count()
        self._admitting = asyncio.Event()
        """Set while new requests are passed to vLLM; they wait while the engine is paused."""
        self._admitting.set()
        self._paused = False
        self._fault: str | None = None
        """Reason why the weights are unusable; None while they are complete."""
        self._closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of this engine; adapters if the model's section has one that is not to be merged."""
        return replace(VLLM_CAPABILITIES, adapters=loads_adapters(self._section, self._model))

    def start(self) -> None:
        """Start vLLM's processes, which load the model.

        Raises `MissingExtraError` without vLLM, `ConfigError` for arguments that it does not have, and
        `InferenceError` if it does not start.
        """
        self._check_open()
        if self._llm is not None:
            return
        self._library = library = import_vllm()
        arguments = engine_arguments(self._section, self._model)
        arguments = add_engine_kwargs(arguments, self._section, library.engine_args)
        try:
            self._llm = self._thread.call(self._create, library, arguments)
        except Exception as error:
            raise InferenceError(f"vLLM {library.version} does not start: {error}") from error

    def _create(self, library: VllmLibrary, arguments: dict[str, Any]) -> Any:
        return library.engine.from_engine_args(
            library.engine_args(**arguments), stat_loggers=[lambda config, index: self._recorder]
        )

    def close(self) -> None:
        """End vLLM's processes; pending requests raise `InferenceError`."""
        if self._closed:
            return
        self._closed = True
        if self._llm is not None:
            self._thread.call(self._llm.shutdown)
        self._thread.close()

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        library = self._started()
        section = self._section
        sizes = f"tensor parallel {section.tensor_parallel}, pipeline parallel {section.pipeline_parallel}"
        dtype = engine_dtype(section, self._model)
        return f"vLLM {library.version}, {self._model_type} in {dtype}, {sizes}"

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid. When the awaiting task
        is cancelled, its requests are aborted.
        """
        self._started()
        for request in requests:
            validate_request(request, self._vocab_size, self._llm.model_config.max_model_len)
            check_temperature(request)
        try:
            return await self._thread.run_async(self._sample_all(requests))
        except asyncio.CancelledError:
            self._check_open()
            raise

    async def _sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        return await gather_or_cancel([self._sample(request) for request in requests])

    async def _sample(self, request: SampleRequest) -> Completion:
        library = self._started()
        await self._admitting.wait()
        version = self._version
        outputs = self._llm.generate(
            library.tokens_prompt(prompt_token_ids=request.prompt_ids.tolist()),
            to_vllm(request, self._eos_ids, self._vocab_size, library),
            request_id=str(next(self._request_numbers)),
            lora_request=self._adapter,
        )
        try:
            (output,) = [output async for output in outputs]
        except library.dead_error as error:
            raise _lost(error) from error
        return to_completion(request, output, version)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors through a file in shared memory; see `load_path`."""
        self._started()
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
        size = sum(tensor.nbytes for tensor in tensors.values())
        shared = SharedFile(partial(_write, tensors), size, LOCAL)
        try:
            with shared.handle.open() as path:
                self.load_path(path, version)
        finally:
            shared.close()

    def load_path(self, path: Path, version: int) -> None:
        """Load a safetensors file, or those of a folder.

        Running completions continue with the new weights, which compute their KV cache again, and keep the version
        they began with. Raises `ModelError` if vLLM cannot load the file; the engine then samples no more.
        """
        self._run(self._load(lambda: self._load_weights(path), version))

    async def _load_weights(self, path: Path) -> None:
        await self._llm.collective_rpc("strop_load_weights", args=(str(path),))

    def load_adapter(self, folder: Path, version: int) -> None:
        """Load a LoRA adapter in place of the last one; see `load_path`."""
        self._started()
        if not self.capabilities.adapters:
            raise InferenceError("this vLLM engine has no adapter; merge it, and pass the tensors to load")
        self._run(self._load(lambda: self._load_adapter(folder), version))

    async def _load_adapter(self, folder: Path) -> None:
        make = self._started().lora_request
        await self._llm.add_lora(make(_ADAPTER, 1, str(folder), load_inplace=True))
        self._adapter = make(_ADAPTER, 1, str(folder))

    async def _load(self, change: Callable[[], Awaitable[None]], version: int) -> None:
        """Change the weights between two steps, and discard what was computed with the old ones."""
        try:
            await self._hold()
            await change()
            await self._llm.reset_prefix_cache(reset_running_requests=True)
            await self._llm.reset_mm_cache()
            self._version = version
            if not self._paused:
                await self._release()
        except Exception as error:
            if self._llm.errored:
                raise _lost(error) from error
            self._fault = f"vLLM cannot load version {version} of the weights: {error}"
            raise ModelError(self._fault) from error

    def load_process_group(self, broadcast: WeightBroadcast, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(
            "the vLLM engine cannot join a process group; receive the weights in its process and pass the "
            "tensors to load"
        )

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        self._started()
        return self._thread.call(self._recorder.take)

    def pause(self) -> None:
        """Stop decoding; running and waiting requests keep their state."""
        self._started()
        self._paused = True
        self._run(self._hold())

    def resume(self) -> None:
        """Continue decoding."""
        self._started()
        self._paused = False
        self._run(self._release())

    async def _hold(self) -> None:
        self._admitting.clear()
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def _release(self) -> None:
        await self._llm.resume_generation()
        self._admitting.set()

    def release_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the vLLM engine cannot release its memory")

    def restore_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the vLLM engine cannot release its memory")

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        library = self._started()
        try:
            self._thread.run(coroutine)
        except library.dead_error as error:
            raise _lost(error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceError("the inference engine has been closed")
        if self._fault is not None:
            raise InferenceError(self._fault)

    def _started(self) -> VllmLibrary:
        self._check_open()
        if self._library is None or self._llm is None:
            raise InferenceError("the vLLM engine has not been started; call start first")
        return self._library


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)


def _lost(error: Exception) -> EngineLostError:
    return EngineLostError(f"a process of vLLM has ended: {error}")
