"""vLLM's `AsyncLLM` as the library of a serving engine."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import VllmEngineConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.request_validation import validate_request
from strop.inference.serving.backend import (
    SERVING_CAPABILITIES,
    check_expansion,
    engine_dtype,
    request_images,
)
from strop.inference.vllm.library import (
    StatisticsRecorder,
    VllmLibrary,
    add_engine_kwargs,
    check_temperature,
    engine_arguments,
    import_vllm,
    loads_adapters,
    size_cache_on_cpu,
    to_completion,
    to_vllm,
    vision_arguments,
)
from strop.inference.weight_transfer import WeightOffer
from strop.models.loading import load_config, load_generation_config
from strop.types import Completion, EngineStatistics, SampleRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ADAPTER = "policy"
_WORKER_FAILED, _SEE_TRACE = "Worker failed with error '", "', please check the stack trace"
"""Texts before and after the error of a worker in vLLM's message."""


class VllmBackend:
    """vLLM's front end, which runs in the event loop of a serving engine."""

    name = "vLLM"
    report_seconds = 10.0

    def __init__(
        self,
        section: VllmEngineConfig,
        model: ModelConfig,
        tokenizer: PreTrainedTokenizerBase,
        limits: ImagesConfig,
    ) -> None:
        self._section = section
        self._model = model
        config = load_config(model)
        self._config = config
        self._model_type = config.model_type
        self._vocab_size = int(config.get_text_config().vocab_size)
        self._limits = limits
        self._images = request_images(config, model, limits)
        self._eos_ids = eos_token_ids(config, load_generation_config(model), tokenizer)
        self.capabilities = replace(
            SERVING_CAPABILITIES,
            weight_transports=SERVING_CAPABILITIES.weight_transports | {"process_group"},
            adapters=loads_adapters(section, model),
            images=self._images is not None,
            memory_release=section.sleep_level is not None,
            keeps_prefixes=section.enable_prefix_caching is not False,
        )
        self._recorder = StatisticsRecorder()
        self._request_numbers = itertools.count()
        self._library: VllmLibrary
        self._llm: Any
        self._adapter: Any = None
        """vLLM's request for the adapter that was loaded last."""

    async def start(self) -> None:
        """Start vLLM's processes, which load the model."""
        self._library = library = import_vllm()
        arguments = engine_arguments(self._section, self._model, self._image_arguments())
        arguments = add_engine_kwargs(arguments, self._section, library.engine_args)
        if not torch.cuda.is_available():
            size_cache_on_cpu(arguments, self._config, self._section.tensor_parallel)
        try:
            self._llm = library.engine.from_engine_args(
                library.engine_args(**arguments), stat_loggers=[lambda config, index: self._recorder]
            )
        except Exception as error:
            raise InferenceError(f"vLLM {library.version} does not start: {error}") from error
        await self._llm.collective_rpc("strop_prepare")

    def _image_arguments(self) -> dict[str, Any]:
        if self._images is None:
            return {}
        return vision_arguments(self._section, self._images.processor().size, self._limits.max_images)

    async def close(self) -> None:
        """End vLLM's processes."""
        self._llm.shutdown()

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        section = self._section
        sizes = f"tensor parallel {section.tensor_parallel}, pipeline parallel {section.pipeline_parallel}"
        dtype = engine_dtype(section, self._model)
        return f"vLLM {self._library.version}, {self._model_type} in {dtype}, {sizes}"

    def check(self, request: SampleRequest) -> None:
        """Raise `InferenceError` for an invalid request, and for a temperature that vLLM would change."""
        processor = None if self._images is None else self._images.processor
        validate_request(request, self._vocab_size, self._llm.model_config.max_model_len, processor)
        check_temperature(request)

    async def generate(self, request: SampleRequest) -> Completion:
        """The completion of a request, whose tokens vLLM labels with their versions."""
        library = self._library
        outputs = self._llm.generate(
            library.tokens_prompt(**self._prompt(request)),
            to_vllm(request, self._eos_ids, self._vocab_size, library),
            request_id=str(next(self._request_numbers)),
            lora_request=self._adapter,
        )
        (output,) = [output async for output in outputs]
        check_expansion(request, len(output.prompt_token_ids), self.name)
        return to_completion(request, output)

    def _prompt(self, request: SampleRequest) -> dict[str, Any]:
        if self._images is None or not request.media:
            return {"prompt_token_ids": request.prompt_ids.tolist()}
        return {
            "prompt_token_ids": self._images.prompt_ids(request),
            "multi_modal_data": {"image": self._images.pixels(request)},
            # The names of images in vLLM's caches, which it would otherwise compute from the pixels.
            "multi_modal_uuids": {"image": [reference.digest for reference in request.media]},
        }

    async def load_weights(self, path: Path) -> None:
        """Have each worker load its shard of a safetensors file, or of a folder's files."""
        await self._call_workers("strop_load_weights", str(path))

    async def receivers(self) -> list[str | None]:
        """The GPU of each worker, by rank."""
        return list(await self._llm.collective_rpc("strop_gpu"))

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Have each worker receive the weights, and load its shard of them bucket by bucket."""
        replies = await self._call_workers(
            "strop_receive_weights", asdict(offer.rendezvous), list(offer.buckets), host
        )
        return [reply for reply in replies if reply is not None]

    async def _call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """The workers' results. Raises `ModelError` with a worker's error, without vLLM's words around it."""
        try:
            return list(await self._llm.collective_rpc(method, args=arguments))
        except Exception as error:
            _, begin, reason = str(error).partition(_WORKER_FAILED)
            if not begin:
                raise
            raise ModelError(reason.rpartition(_SEE_TRACE)[0] or reason) from error

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Load an adapter in place of the last one."""
        make = self._library.lora_request
        await self._llm.add_lora(make(_ADAPTER, 1, str(folder), load_inplace=True))
        self._adapter = make(_ADAPTER, 1, str(folder))

    async def discard_cache(self) -> None:
        """Discard the KV cache, that of running completions included."""
        await self._llm.reset_prefix_cache(reset_running_requests=True)
        # Features of images, which the old weights computed.
        await self._llm.reset_encoder_cache()

    async def set_version(self, version: int) -> None:
        """Label the weights, so that vLLM reports the label with each token that they sample."""
        await self._llm.update_weight_version(str(version))

    async def abort(self) -> None:
        """Abort all requests, and stop decoding."""
        await self._llm.pause_generation(mode="abort", clear_cache=False)

    async def hold(self) -> None:
        """Stop decoding after the current step."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def release(self) -> None:
        """Continue decoding."""
        await self._llm.resume_generation()

    async def sleep(self) -> None:
        """Put vLLM to sleep, which on the CPU frees nothing."""
        await self._llm.sleep(level=self._section.sleep_level)

    async def wake_up(self) -> None:
        """Wake vLLM up; decoding is held."""
        await self._llm.wake_up()
        await self.hold()

    @property
    def keeps_weights(self) -> bool:
        """Whether sleep moves the weights to the CPU's memory."""
        return self._section.sleep_level == 1

    @property
    def processed_tokens(self) -> int:
        """Prompt and sampled tokens computed so far."""
        return self._recorder.processed_tokens

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        return self._recorder.take()

    def lost(self, error: Exception) -> EngineLostError | None:
        """The error of a lost engine, if vLLM's engine process has ended."""
        if isinstance(error, self._library.dead_error) or self._llm.errored:
            return EngineLostError(f"a process of vLLM has ended: {error}")
        return None
