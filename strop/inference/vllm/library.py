"""Import of vLLM, arguments of its engine, and conversion of requests and completions to and from vLLM's."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from strop.config.peft_adapter import adapter_options
from strop.config.schema.model import DTYPE_BYTES, ModelConfig
from strop.config.schema.rollout import VllmEngineConfig
from strop.errors import ConfigError, InferenceError, MissingExtraError
from strop.inference.completion import effective_stop_tokens, split_versions, versions_of_spans
from strop.inference.serving.backend import check_engine_kwargs, engine_dtype, given_options
from strop.types import Completion, EngineStatistics, FloatArray, IntArray, SampleRequest, SamplingParams

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The CPU build binds its threads to cores by itself, the same cores for every engine of a machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Variables that are set before the import, unless they are set already."""
_NONE = EngineStatistics(0, 0, 0.0, 0, 0, 0)
_MIN_TEMPERATURE = 0.01
"""vLLM replaces lower temperatures by this one."""
_MAX_SEED = 2**63
WORKER_EXTENSION = "strop.inference.vllm.worker_extension.StropWorkerExtension"
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM can allocate an adapter."""
_BY_FIELD = {
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "max_model_len": "max_model_len",
    "enforce_eager": "enforce_eager",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_prefix_caching": "enable_prefix_caching",
    "quantization": "quantization",
    "load_format": "load_format",
    "seed": "seed",
}
"""vLLM's name of each option of the section; an option without a value is not passed."""
_CPU_BLOCK_TOKENS = 128
"""Tokens of a block of the KV cache in the CPU build."""
_CPU_SEQUENCES = 256
"""Sequences for which the KV cache has capacity on the CPU, where no maximum is given."""
_CPU_CACHE_TOKENS = 131072
"""Maximum capacity of that KV cache, in tokens, unless one sequence needs more."""
_VISION_ARGUMENTS = ("mm_processor_kwargs", "mm_device_do_normalize")
"""Arguments that decide about the pixels of images, which must be those of training."""


@dataclass(frozen=True, slots=True)
class VllmLibrary:
    """The classes of vLLM that Strop uses."""

    version: str
    engine_args: Any
    """`AsyncEngineArgs`, a dataclass of the engine's arguments."""
    engine: Any
    """`AsyncLLM`"""
    sampling_params: Any
    tokens_prompt: Any
    final_output: Any
    """Output kind of a request that is answered once, at its end."""
    lora_request: Any
    dead_error: type[Exception]
    """Exception of calls after the end of vLLM's engine process."""


def is_vllm_installed() -> bool:
    """Whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def import_vllm() -> VllmLibrary:
    """Import vLLM. Raises `MissingExtraError` if it is not installed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        raise MissingExtraError(
            f"An engine of the run has type vllm, and vLLM cannot be imported ({error}): pip install 'strop[vllm]'"
        ) from error
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.exceptions import EngineDeadError

    return VllmLibrary(
        version=vllm.__version__,
        engine_args=AsyncEngineArgs,
        engine=AsyncLLM,
        sampling_params=SamplingParams,
        tokens_prompt=TokensPrompt,
        final_output=RequestOutputKind.FINAL_ONLY,
        lora_request=LoRARequest,
        dead_error=EngineDeadError,
    )


class StatisticsRecorder:
    """Stat logger of vLLM: adds up what the scheduler reports after each of its steps.

    vLLM calls it, and `take`, in one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in seconds."""
        self._clock = clock
        self._total = _NONE
        self._last_step = clock()
        self._is_busy = False
        """Whether requests were running after the last step."""
        self.processed_tokens = 0
        """Prompt and sampled tokens computed so far."""

    def take(self) -> EngineStatistics:
        """The load since the last call."""
        taken, self._total = self._total, _NONE
        return taken

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **options: Any) -> None:
        """Called by vLLM after each step; either may be None."""
        self._total = self._total.combined_with(self._work_of(iteration_stats))
        if scheduler_stats is not None:
            self._total = self._total.combined_with(_load_of(scheduler_stats))
            self._is_busy = scheduler_stats.num_running_reqs > 0

    def _work_of(self, stats: Any) -> EngineStatistics:
        """Tokens and preemptions of one step, and the time since the step before it if requests were running."""
        now = self._clock()
        busy, self._last_step = (now - self._last_step if self._is_busy else 0.0), now
        if stats is None:
            return replace(_NONE, busy_seconds=busy)
        self.processed_tokens += stats.num_prompt_tokens + stats.num_generation_tokens
        return replace(
            _NONE,
            preemptions=stats.num_preempted_reqs,
            sampled_tokens=stats.num_generation_tokens,
            busy_seconds=busy,
        )

    def log(self) -> None:
        """Called by vLLM; nothing to print."""

    def log_engine_initialized(self) -> None:
        """Called by vLLM; nothing to print."""

    def record_sleep_state(self, *args: Any) -> None:
        """Called by vLLM; nothing to record."""


def _load_of(stats: Any) -> EngineStatistics:
    return EngineStatistics(
        stats.num_running_reqs,
        stats.num_waiting_reqs,
        stats.kv_cache_usage,
        stats.prefix_cache_stats.queries,
        stats.prefix_cache_stats.hits,
        0,
    )


def check_temperature(request: SampleRequest) -> None:
    """Raise `InferenceError` for a temperature that vLLM would change."""
    temperature = request.sampling.temperature
    if 0 < temperature < _MIN_TEMPERATURE:
        raise InferenceError(
            f"request {request.id!r}: temperature is {temperature}; vLLM samples at {_MIN_TEMPERATURE} or above, "
            "or greedily with 0"
        )


def to_vllm(request: SampleRequest, eos_ids: frozenset[int], vocab_size: int, library: VllmLibrary) -> Any:
    """vLLM's sampling parameters of a request."""
    arguments = sampling_arguments(request, eos_ids, vocab_size)
    return library.sampling_params(**arguments, flat_logprobs=True, output_kind=library.final_output)


def sampling_arguments(request: SampleRequest, eos_ids: frozenset[int], vocab_size: int) -> dict[str, Any]:
    """Sampling parameters of a request by vLLM's names. A greedy request has no filters."""
    sampling = request.sampling
    greedy = sampling.temperature == 0
    stops = sorted(token for token in effective_stop_tokens(sampling, eos_ids) if 0 <= token < vocab_size)
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "min_p": 0.0 if greedy else sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": None if greedy else request.seed % _MAX_SEED,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        # End tokens are stop tokens here, so that both follow Strop's rules about `min_tokens`.
        "ignore_eos": True,
        "stop_token_ids": stops,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        "logprobs": 0,
        "prompt_logprobs": 0 if request.prompt_logprobs else None,
    }


def to_completion(request: SampleRequest, output: Any) -> Completion:
    """The completion of a finished request. Raises `InferenceError` for one that vLLM ended early."""
    (found,) = output.outputs
    spans = [(_version(span.version), span.start, span.end) for span in found.weight_versions]
    completion = completed(
        request,
        np.asarray(found.token_ids, dtype=np.int32),
        np.asarray(found.logprobs.logprobs, dtype=np.float32),
        found.finish_reason,
        spans,
    )
    if (
        not request.prompt_logprobs or found.finish_reason == "abort"
    ):  # perhaps before its prompt was computed
        return completion
    return replace(completion, prompt_logprobs=np.asarray(output.prompt_logprobs.logprobs, dtype=np.float32))


def _version(label: str) -> int:
    """Version of a label of the weights; those that vLLM started with have no number."""
    return 0 if label == "default" else int(label)


def completed(
    request: SampleRequest,
    token_ids: IntArray,
    logprobs: FloatArray,
    finish_reason: str,
    spans: Sequence[tuple[int, int, int]],
) -> Completion:
    """The completion of vLLM's tokens and their log-probs; each span of tokens is (version, start, end).

    Raises `InferenceError` for one that vLLM ended early.
    """
    if finish_reason not in ("stop", "length", "abort"):
        raise InferenceError(f"request {request.id!r}: vLLM ended it early ({finish_reason})")
    version, token_versions = split_versions(versions_of_spans(spans, len(token_ids)), current=0)
    greedy = request.sampling.temperature == 0
    return Completion(
        token_ids=token_ids,
        sampler_logprobs=np.zeros_like(logprobs) if greedy else logprobs,
        policy_logprobs=_policy_logprobs(request.sampling, logprobs),
        finish_reason=finish_reason,  # type: ignore[arg-type]
        version=version,
        token_versions=token_versions,
    )


def _policy_logprobs(sampling: SamplingParams, sampled: FloatArray) -> FloatArray | None:
    """vLLM reports the log-probs of one distribution: the policy's only where nothing changes it."""
    greedy = sampling.temperature == 0
    filtered = not greedy and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)
    changed = sampling.repetition_penalty != 1 or sampling.min_tokens > 0
    return None if filtered or changed else sampled


def engine_arguments(
    section: VllmEngineConfig, model: ModelConfig, image_arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`, by name, with those of `image_arguments` for a model that reads images."""
    arguments: dict[str, Any] = {
        "model": model.path,
        "tokenizer": model.tokenizer or model.path,
        "trust_remote_code": model.trust_remote_code,
        "dtype": engine_dtype(section, model),
        "hf_overrides": model.override,
        # The log-probs are those of the distribution sampled from, after temperature, penalties and filters.
        "logprobs_mode": "processed_logprobs",
        # Strop passes each request's end tokens and sampling parameters itself.
        "generation_config": "vllm",
        "worker_extension_cls": WORKER_EXTENSION,
    }
    if model.lora is not None and loads_adapters(section, model):
        largest = adapter_options(model.lora).max_rank
        rank = next((size for size in _LORA_RANKS if size >= largest), largest)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    if section.devices > 1:
        arguments["distributed_executor_backend"] = "mp"
    if section.sleep_level is not None and torch.cuda.is_available():
        arguments["enable_sleep_mode"] = True
    if section.limit_mm_per_prompt:
        arguments["limit_mm_per_prompt"] = section.limit_mm_per_prompt
    arguments |= image_arguments or {}
    arguments |= given_options(section, _BY_FIELD)
    if not torch.cuda.is_available():
        _prefill_whole_prompts(arguments)
    return arguments


def _prefill_whole_prompts(arguments: dict[str, Any]) -> None:
    """Have the CPU build compute each prompt in one pass: split over two, a seeded request ends its engine.

    Raises `ConfigError` for a limit of the tokens of a pass below the longest sequence.
    """
    arguments["enable_chunked_prefill"] = False
    tokens, longest = arguments.get("max_num_batched_tokens"), arguments.get("max_model_len")
    if tokens is not None and longest is not None and tokens < longest:
        raise ConfigError(
            f"rollout.engine.max_num_batched_tokens is {tokens}, less than the longest sequence ({longest}, "
            "rollout.engine.max_model_len). vLLM's CPU build ends with an error if it splits the prompt of a seeded "
            f"request over two passes; write at least {longest}, or leave it out."
        )


def size_cache_on_cpu(arguments: dict[str, Any], config: PretrainedConfig, devices: int) -> None:
    """Have the CPU build reserve a KV cache for the run's sequences, unless its size is given.

    By default it takes `gpu_memory_utilization`, 0.9, of the machine's memory, in which the trainer has no part, and
    does not start while less is free. Raises `ConfigError` for a given size that does not hold one sequence.
    """
    arguments.pop("gpu_memory_utilization", None)
    text = config.get_text_config()
    longest = arguments.get("max_model_len") or text.max_position_embeddings
    of_token = _cache_bytes_of_token(text, arguments["dtype"], devices)
    if (given := arguments.get("kv_cache_memory_bytes")) is not None:
        if set(getattr(text, "layer_types", None) or ["full_attention"]) == {"full_attention"}:
            stages = arguments.get("pipeline_parallel_size", 1)
            _check_cache(given, of_token * longest // stages, longest)
        return
    if "VLLM_CPU_KVCACHE_SPACE" in os.environ:
        return
    blocks = -(-longest // _CPU_BLOCK_TOKENS)
    fitting = max(1, _CPU_CACHE_TOKENS // (blocks * _CPU_BLOCK_TOKENS))
    sequences = min(arguments.get("max_num_seqs") or _CPU_SEQUENCES, fitting)
    # One more block is the one that vLLM never gives to a sequence.
    arguments["kv_cache_memory_bytes"] = of_token * _CPU_BLOCK_TOKENS * (blocks * sequences + 1)


def _cache_bytes_of_token(text: Any, dtype: str, devices: int) -> int:
    """Size of a token's KV cache on each device, in bytes."""
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = max(1, (getattr(text, "num_key_value_heads", None) or heads) // devices)
    return 2 * int(text.num_hidden_layers) * int(kv_heads) * int(head_dim) * DTYPE_BYTES[dtype]


def _check_cache(given: int, needed: int, longest: int) -> None:
    if given < needed:
        raise ConfigError(
            f"rollout.engine.engine_kwargs.kv_cache_memory_bytes is {given}; the KV cache of one sequence of {longest} "
            f"tokens (rollout.engine.max_model_len) needs at least {needed} bytes in each process. Write a larger "
            "size, or leave it out: Strop then derives one."
        )


def vision_arguments(
    section: VllmEngineConfig, size: Mapping[str, int], max_images: int | None
) -> dict[str, Any]:
    """Arguments of a model that reads images, of which `size` limits the pixels and `max_images` the number."""
    most = {} if max_images is None else {"image": max_images}
    return {
        "mm_processor_kwargs": {"size": dict(size)},
        # vLLM would normalize pixels on the device, and not at all if preprocessor_config.json leaves the mean to its
        # class.
        "mm_device_do_normalize": False,
        "limit_mm_per_prompt": {"video": 0, **most, **section.limit_mm_per_prompt},
    }


def add_engine_kwargs(arguments: dict[str, Any], section: VllmEngineConfig, known: Any) -> dict[str, Any]:
    """The arguments with those of `engine_kwargs`; `known` is the dataclass of vLLM's arguments.

    Raises `ConfigError` for a name that vLLM does not have, and for one that Strop sets.
    """
    check_engine_kwargs(
        section,
        _BY_FIELD,
        set_by_strop={*arguments, "limit_mm_per_prompt", *_VISION_ARGUMENTS},
        known={field.name for field in fields(known)},
        owner="vLLM's AsyncEngineArgs",
    )
    return arguments | section.engine_kwargs


def loads_adapters(section: VllmEngineConfig, model: ModelConfig) -> bool:
    """Whether the engine applies the model's LoRA adapter itself, instead of merged weights."""
    return model.lora is not None and not section.merge_lora
