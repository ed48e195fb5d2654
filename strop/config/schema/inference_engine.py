"""`rollout.engine`: inference engines that sample from the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class ProcessTimeoutsConfig(Section):
    """Time limits of an engine in a process of its own."""

    start_timeout_seconds: float = Field(1800.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of the start of an engine in a process of its own; after it the run stops with an error and the
    last lines of the engine's output."""
    hang_timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum time without a token while requests are running, for an engine in a process of its own; after it the
    process is restarted, and its requests are repeated."""


class NativeEngineConfig(ProcessTimeoutsConfig):
    """Strop's own sampler: it runs in the trainer's process, without a server, and shares the weights."""

    type: Literal["native"] = "native"
    dtype: Literal["model", "float32", "bfloat16"] = "model"
    """Data type of the sampler's weights and KV cache; `model` is the trainer's compute type."""
    kv_cache_tokens: int = Field(131072, gt=0)
    """Capacity of the KV cache, in tokens; sequences that do not fit wait, and none is dropped."""
    max_sequences: int = Field(256, gt=0)
    """Maximum number of concurrent completions; further requests queue."""
    merge_lora: bool = False
    """Sample from a copy of the adapted weights with the LoRA adapter merged: the samples are, bit for bit, those of an
    explorer in a separate process; the rounding of the merged weights is not the trainer's. False applies the
    adapter without a copy, in the trainer's process."""
    cuda_graphs: bool = False
    """On a GPU, record the kernels of a decoding step and repeat them while sequences neither join nor leave in large
    numbers; for Llama-style models. Not yet tried on a GPU. Without one it has no effect, and the engine's description
    says so."""


class ServingEngineConfig(ProcessTimeoutsConfig):
    """Options of every serving library."""

    library: ClassVar[str]
    """Name of the library in messages."""
    memory_field: ClassVar[str]
    """Field of `memory_fraction`."""
    length_field: ClassVar[str]
    """Field of `sequence_limit`."""

    dtype: Literal["model", "float32", "bfloat16", "float16"] = "model"
    """Data type of the weights and of the computation; `model` is the trainer's compute type."""
    tensor_parallel: int = Field(1, gt=0)
    """Number of processes, each on its own GPU, over which each layer is split."""
    pipeline_parallel: int = Field(1, gt=0)
    """Number of stages, each on its own GPUs, over which the layers are distributed."""
    quantization: str | None = None
    """Name of the library's quantization of the weights, such as `fp8`."""
    load_format: str = "auto"
    """Way to load the initial weights; `dummy` for random ones, where the trainer sends its weights at the
    start."""
    merge_lora: bool = False
    """Load full weights with the LoRA adapter merged, for adapters that the library cannot apply itself; by default
    only the adapter is loaded, where explorer and trainer take turns in one process."""
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the library's own class of arguments, by name: vLLM's `AsyncEngineArgs`, SGLang's
    `ServerArgs`."""
    max_logprob_gap: float | None = Field(None, gt=0)
    """Maximum mean difference, in nats, between the engine's and the trainer's log-probs of a probe after each
    load of weights; above it the run stops with an error. Null is 0.05 in float32, and 0.2 where one of the two
    computes in half precision."""

    @property
    def devices(self) -> int:
        """Number of GPUs that one engine uses."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def memory_fraction(self) -> float | None:
        """Fraction of each GPU's memory for weights and KV cache; None for the library's default."""
        fraction: float | None = getattr(self, self.memory_field)
        return fraction

    @property
    def sequence_limit(self) -> int | None:
        """Maximum length of a prompt with its completion, in tokens; None for the run's longest sequence."""
        limit: int | None = getattr(self, self.length_field)
        return limit


class VllmEngineConfig(ServingEngineConfig):
    """vLLM, in a process of its own with its own copy of the model. Without a value, an option has vLLM's
    default."""

    library = "vLLM"
    memory_field = "gpu_memory_utilization"
    length_field = "max_model_len"
    type: Literal["vllm"] = "vllm"
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Fraction of each GPU's memory for weights and KV cache."""
    max_num_batched_tokens: int | None = Field(None, gt=0)
    """Maximum number of tokens in one forward pass."""
    max_num_seqs: int | None = Field(None, gt=0)
    """Maximum number of concurrent completions; further requests queue."""
    max_model_len: int | None = Field(None, gt=1)
    """Maximum length of a prompt with its completion, in tokens; the run's longest sequence if omitted."""
    enforce_eager: bool = False
    """Run without compilation and CUDA graphs: a faster start and slower sampling."""
    enable_chunked_prefill: bool | None = None
    """Split long prompts over several forward passes."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of prompts that begin alike, such as those of one group."""
    limit_mm_per_prompt: dict[str, int] = Field(default_factory=dict)
    """Maximum number of images and other media in a prompt, by kind."""
    seed: int | None = Field(None, ge=0)
    """Seed of the engine; each request has a seed of its own."""
    sleep_level: Literal[1, 2] | None = None
    """Level of vLLM's sleep while `rollout.release_memory` frees its memory: 1 moves the weights to the CPU's memory,
    2 discards them, since the next load brings all. If omitted, 2, and 1 where only a LoRA adapter is loaded."""


class SglangEngineConfig(ServingEngineConfig):
    """SGLang, in a process of its own with its own copy of the model. Without a value, an option has SGLang's
    default."""

    library = "SGLang"
    memory_field = "mem_fraction_static"
    length_field = "context_length"
    type: Literal["sglang"] = "sglang"
    mem_fraction_static: float | None = Field(None, gt=0, lt=1)
    """Fraction of each GPU's memory for weights and KV cache."""
    max_total_tokens: int | None = Field(None, gt=1)
    """Capacity of the KV cache, in tokens; by default what `mem_fraction_static` leaves."""
    max_running_requests: int | None = Field(None, gt=0)
    """Maximum number of concurrent completions; further requests queue."""
    chunked_prefill_size: int | None = Field(None, ge=-1)
    """Maximum number of prompt tokens in one forward pass; longer prompts are split. -1 for no limit."""
    max_prefill_tokens: int | None = Field(None, gt=0)
    """Maximum number of prompt tokens of all requests that are started together."""
    context_length: int | None = Field(None, gt=1)
    """Maximum length of a prompt with its completion, in tokens; the run's longest sequence if omitted."""
    disable_cuda_graph: bool = False
    """Run without CUDA graphs: a faster start and slower sampling."""
    disable_radix_cache: bool = False
    """Compute each prompt again, instead of reusing the KV cache of prompts that begin alike."""
    attention_backend: str | None = None
    """Name of SGLang's implementation of attention, such as `fa3` or `flashinfer`."""
    deterministic: bool = False
    """Repeat seeded requests and the roundings of any batch, where SGLang's attention on a GPU can; by default each
    draw depends on the requests before it."""
    enable_memory_saver: bool | None = None
    """Allocate weights and KV cache so that `rollout.release_memory` can free them; null where it does."""
    seed: int = Field(0, ge=0)
    """Seed of the engine's draws."""


class ServerConnectionConfig(Section):
    """Connection to a server that runs already."""

    base_url: str = Field(pattern=r"^https?://")
    """Base URL of the server, such as `http://localhost:8000/v1` for an OpenAI-compatible API, and
    `http://localhost:30000` for SGLang's own."""
    api_key_env: str | None = None
    """Environment variable that holds the server's API key; null if the server requires none."""
    timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one request; after it the request is retried."""
    retries: int = Field(5, ge=0)
    """Maximum number of retries of a request; after the last one the run stops with an error."""
    backoff_seconds: float = Field(1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first retry; it doubles with each further retry."""
    max_concurrent_requests: int = Field(64, gt=0)
    """Maximum number of concurrent completions; further requests queue."""


class SglangServerConfig(ServerConnectionConfig):
    """SGLang server that runs already, for this run alone. It loads the weights of every step from a folder in this
    machine's shared memory, which it must be able to read."""

    type: Literal["sglang_server"] = "sglang_server"
    max_logprob_gap: float | None = Field(None, gt=0)
    """Maximum mean difference, in nats, between the engine's and the trainer's log-probs of a probe after each
    load of weights; above it the run stops with an error. Null is 0.05 in float32, and 0.2 where one of the two
    computes in half precision."""


class OpenAiEngineConfig(ServerConnectionConfig):
    """OpenAI-compatible server that runs already: vLLM, SGLang, or a provider's. As it is, it serves `strop evaluate`,
    `strop generate` and mode `bench`, which load the run's tokenizer and no weights; `weight_updates` makes it serve
    training."""

    type: Literal["openai"] = "openai"
    model: str
    """Name of the model at the server."""
    api: Literal["completions", "chat"] = "completions"
    """API that is called: `completions` sends prompts as token ids, to a server of the model whose tokenizer the
    run has; `chat` sends messages, to a server of any model, and counts tokens with the run's tokenizer."""
    weight_updates: Literal["none", "vllm"] = "none"
    """Way for trained weights to reach the server: `vllm` is vLLM's HTTP API, on this machine; `none` leaves the server
    as it is, and training is refused."""
    holder: str | None = Field(None, pattern=r"^[^:]+$")
    """Name of the run in the labels of its weights at the server, by which two runs that update one server are
    noticed; `project/name` if omitted."""
    max_logprob_gap: float | None = Field(None, gt=0)
    """Maximum mean difference, in nats, between the server's and the trainer's log-probs of a probe after each
    update of the weights; above it the run stops with an error. Null is 0.05 in float32, and 0.2 where the trainer
    computes in half precision."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.weight_updates == "vllm" and self.api == "chat":
            yield (
                "weight_updates is vllm, which samples by token ids, but api is chat; remove api, or write "
                "weight_updates: none"
            )


class AutoEngineConfig(Section):
    """vLLM if this machine has a GPU, vLLM is installed and the model takes no images, otherwise the native sampler."""

    type: Literal["auto"] = "auto"
    native: NativeEngineConfig = NativeEngineConfig()
    """Options of the native sampler."""
    vllm: VllmEngineConfig = VllmEngineConfig()
    """Options of vLLM."""


AuxiliaryEngineConfig = Annotated[
    Annotated[NativeEngineConfig | VllmEngineConfig | SglangEngineConfig, Field(discriminator="type")],
    type_shorthand("native"),
]
InferenceEngineConfig = Annotated[
    Annotated[
        NativeEngineConfig
        | VllmEngineConfig
        | SglangEngineConfig
        | SglangServerConfig
        | OpenAiEngineConfig
        | AutoEngineConfig,
        Field(discriminator="type"),
    ],
    type_shorthand("native"),
]
