"""`rollout`: sampling of responses, its inference engine, and the workflow that turns a task into a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class ProcessTimeoutsConfig(Section):
    """Time limits of an engine in a process of its own."""

    start_timeout_seconds: float = Field(default=1800.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of the start of an engine in a process of its own; after it the run stops with an error and the
    last lines of the engine's output."""
    hang_timeout_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """Maximum time without a token while requests are running, for an engine in a process of its own; after it the
    process is restarted, and its requests are repeated."""


class NativeEngineConfig(ProcessTimeoutsConfig):
    """Strop's own sampler: it runs in the trainer's process, without a server, and shares the weights."""

    type: Literal["native"] = "native"
    dtype: Literal["model", "float32", "bfloat16"] = "model"
    """Data type of the sampler's weights and KV cache; `model` is the trainer's compute type."""
    kv_cache_tokens: int = Field(default=131072, gt=0)
    """Capacity of the KV cache, in tokens; sequences that do not fit wait, and none is dropped."""
    max_sequences: int = Field(default=256, gt=0)
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
    tensor_parallel: int = Field(default=1, gt=0)
    """Number of processes, each on its own GPU, over which each layer is split."""
    pipeline_parallel: int = Field(default=1, gt=0)
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
    max_logprob_gap: float | None = Field(default=None, gt=0)
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
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """Fraction of each GPU's memory for weights and KV cache."""
    max_num_batched_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens in one forward pass."""
    max_num_seqs: int | None = Field(default=None, gt=0)
    """Maximum number of concurrent completions; further requests queue."""
    max_model_len: int | None = Field(default=None, gt=1)
    """Maximum length of a prompt with its completion, in tokens; the run's longest sequence if omitted."""
    enforce_eager: bool = False
    """Run without compilation and CUDA graphs: a faster start and slower sampling."""
    enable_chunked_prefill: bool | None = None
    """Split long prompts over several forward passes."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of prompts that begin alike, such as those of one group."""
    limit_mm_per_prompt: dict[str, int] = Field(default_factory=dict)
    """Maximum number of images and other media in a prompt, by kind."""
    seed: int | None = Field(default=None, ge=0)
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
    mem_fraction_static: float | None = Field(default=None, gt=0, lt=1)
    """Fraction of each GPU's memory for weights and KV cache."""
    max_total_tokens: int | None = Field(default=None, gt=1)
    """Capacity of the KV cache, in tokens; by default what `mem_fraction_static` leaves."""
    max_running_requests: int | None = Field(default=None, gt=0)
    """Maximum number of concurrent completions; further requests queue."""
    chunked_prefill_size: int | None = Field(default=None, ge=-1)
    """Maximum number of prompt tokens in one forward pass; longer prompts are split. -1 for no limit."""
    max_prefill_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of prompt tokens of all requests that are started together."""
    context_length: int | None = Field(default=None, gt=1)
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
    seed: int = Field(default=0, ge=0)
    """Seed of the engine's draws."""


class ServerConnectionConfig(Section):
    """Connection to a server that runs already."""

    base_url: str = Field(pattern=r"^https?://")
    """Base URL of the server, such as `http://localhost:8000/v1` for an OpenAI-compatible API, and
    `http://localhost:30000` for SGLang's own."""
    api_key_env: str | None = None
    """Environment variable that holds the server's API key; null if the server requires none."""
    timeout_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one request; after it the request is retried."""
    retries: int = Field(default=5, ge=0)
    """Maximum number of retries of a request; after the last one the run stops with an error."""
    backoff_seconds: float = Field(default=1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first retry; it doubles with each further retry."""
    max_concurrent_requests: int = Field(default=64, gt=0)
    """Maximum number of concurrent completions; further requests queue."""


class SglangServerConfig(ServerConnectionConfig):
    """SGLang server that runs already, for this run alone. It loads the weights of every step from a folder in this
    machine's shared memory, which it must be able to read."""

    type: Literal["sglang_server"] = "sglang_server"
    max_logprob_gap: float | None = Field(default=None, gt=0)
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
    holder: str | None = Field(default=None, pattern=r"^[^:]+$")
    """Name of the run in the labels of its weights at the server, by which two runs that update one server are
    noticed; `project/name` if omitted."""
    max_logprob_gap: float | None = Field(default=None, gt=0)
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


class WorkflowConfig(Section):
    """Procedure that turns a task into a rollout. A name alone is short for `{name: ...}`."""

    name: str = "single_turn"
    """Built-in name (single_turn, math, environment, tools, agent, openenv, verifiers, verl_agents, trinity), a
    dotted path, or `file.py:name`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the workflow's class, or of its function after `task` and `chat`."""

    @property
    def tool_args(self) -> Mapping[str, Any] | None:
        """Arguments of the workflow `tools`, to which `verl_agents` passes its argument `tools`; None for others."""
        if self.name == "verl_agents":
            return self.args.get("tools") or {}
        return self.args if self.name == "tools" else None


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


WorkflowConfigOrName = Annotated[WorkflowConfig, BeforeValidator(_from_name)]
"""A `WorkflowConfig`, or its name: `workflow: math` is `workflow: {name: math}`."""


class SamplingConfig(Section):
    """Sampling of tokens."""

    temperature: float = Field(default=1.0, ge=0)
    """Divisor of the logits; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Cumulative probability of the most likely tokens that are kept; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens that are kept; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Minimum probability of a token, as a fraction of the most likely token's; 0 keeps all."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Penalty of tokens that occurred before (arXiv 1909.05858): above 1 they become less likely; 1 for
    none."""
    min_response_tokens: int = Field(default=0, ge=0)
    """Minimum length of a response, in tokens; end tokens and stop texts have no effect before it."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; the text itself remains in the response."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids of tokens that end a response, in addition to the model's end tokens."""
    ignore_eos: bool = False
    """Continue after end tokens, up to `data.max_response_tokens`."""


class EnginePoolConfig(Section):
    """Several inference engines, each in its own process (an actor on Ray) with its own copy of the model,
    its own KV cache and, if there are enough, its own GPU."""

    engines: int = Field(gt=0)
    """Number of engines."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum number of restarts of each killed engine; after them the run stops with an error."""


class EndpointConfig(Section):
    """OpenAI-compatible endpoint of the policy for agents and judges: on loopback, with a token per rollout.
    It starts if a workflow or a judge needs it."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port on which the endpoint listens; 0 for any free port."""
    model: str = "policy"
    """Name of the policy at the endpoint, which an agent sends as `model`."""
    tool_call_parser: Literal[
        "auto", "hermes", "llama3_json", "qwen3_coder", "mistral", "deepseek", "gpt_oss"
    ] = "auto"
    """Format of the policy's tool calls: `hermes` (Hermes, Qwen2.5, Qwen3), `llama3_json`, `qwen3_coder`, `mistral`,
    `deepseek` (V3 and V3.1), or `gpt_oss`; `auto` is that of the chat template."""
    reasoning_parser: Literal["none", "deepseek_r1", "qwen3"] = "none"
    """Parser of the policy's reasoning, which an agent receives as `reasoning_content`: `deepseek_r1` for everything
    before </think>, `qwen3` for the text between both tags; `none` leaves it in the content. `enable_thinking` is a
    variable of the chat template (`data.chat_template_args`)."""


class AuxiliaryModelConfig(Section):
    """Model that is not trained; workflows and judges call it by its name."""

    name: str = Field(pattern=r"^[^/\\\s]+$")
    """Name of the model; unique in the run."""
    path: str
    """Hugging Face model folder, or a name on the Hub."""
    tokenizer: str | None = None
    """Tokenizer folder, or a name on the Hub; the model's own if omitted."""
    chat_template: str = "tokenizer"
    """File with a Jinja template; `tokenizer` for the tokenizer's own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights and matrix products, unless the engine has one of its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; `auto` is the GPU if there is one, otherwise the CPU."""
    engine: AuxiliaryEngineConfig = NativeEngineConfig(kv_cache_tokens=32768)
    """Inference engine of the model; vLLM and SGLang run in a process of its own, which is restarted if it ends."""
    max_response_tokens: int = Field(default=1024, gt=0)
    """Maximum length of a reply, in tokens, for requests without their own limit."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""


class RolloutConfig(Section):
    """Sampling of responses."""

    engine: InferenceEngineConfig = NativeEngineConfig()
    """Inference engine that samples from the policy."""
    pool: EnginePoolConfig | None = None
    """Pool of several inference engines; null for one engine in the explorer's process."""
    colocated: bool | None = None
    """Whether engines in processes of their own share the GPUs of the trainer's ranks; null where there are too few
    GPUs for both."""
    release_memory: bool | None = None
    """Whether the engines free their KV cache, and their copy of the weights, while the trainer works; explorer and
    trainer must be one process. Null where `colocated` is true."""
    workflow: WorkflowConfigOrName = WorkflowConfig()
    """Workflow that turns a task into a rollout; an eval taskset may have its own."""
    sampling: SamplingConfig = SamplingConfig()
    """Sampling of the rollouts that are trained on."""
    max_sequence_tokens: int | None = Field(default=None, gt=1)
    """Maximum length of a conversation (prompt and all turns), in tokens; `max_prompt_tokens +
    max_response_tokens` if omitted."""
    sequence_per: Literal["trajectory", "turn"] = "trajectory"
    """Unit of a training sequence: `trajectory` joins turns that continue each other, `turn` makes each turn
    a sequence."""
    max_concurrent_rollouts: int | None = Field(default=None, gt=0)
    """Maximum number of concurrent rollouts; null for all rollouts of a step (64 for workflows without
    `async`)."""
    timeout_seconds: float = Field(default=3600.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of a rollout; after it the rollout is cancelled and counts as failed, not as reward
    0."""
    retries: int = Field(default=0, ge=0)
    """Maximum number of retries of a rollout that failed or timed out."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the workflows."""
    endpoint: EndpointConfig = EndpointConfig()
    """Endpoint at which agents reach the policy."""
    auxiliary_models: tuple[AuxiliaryModelConfig, ...] = ()
    """Models that are not trained, each with its own inference engine."""
    max_error_fraction: float = Field(default=0.1, ge=0, le=1)
    """Maximum fraction of a step's rollouts that may fail; above it the run stops with an error."""
