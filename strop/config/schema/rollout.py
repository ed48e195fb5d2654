"""`rollout`: sampling of responses, and the workflow that turns a task into a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section
from strop.config.schema.inference_engine import (
    AuxiliaryEngineConfig,
    InferenceEngineConfig,
    NativeEngineConfig,
)
from strop.config.units import MAX_SECONDS


class WorkflowConfig(Section):
    """Procedure that turns a task into a rollout. A name alone is short for `{name: ...}`."""

    name: str = "single_turn"
    """Built-in name (single_turn, math, environment, tools, agent, verl_agents, trinity, verifiers), a dotted path,
    or `file.py:name`."""
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

    temperature: float = Field(1.0, ge=0)
    """Divisor of the logits; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Cumulative probability of the most likely tokens that are kept; 1 keeps all."""
    top_k: int = Field(0, ge=0)
    """Number of most likely tokens that are kept; 0 keeps all."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Minimum probability of a token, as a fraction of the most likely token's; 0 keeps all."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Penalty of tokens that occurred before (arXiv 1909.05858): above 1 they become less likely; 1 for
    none."""
    min_response_tokens: int = Field(0, ge=0)
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
    max_restarts: int = Field(3, ge=0)
    """Maximum number of restarts of each killed engine; after them the run stops with an error."""


class EndpointConfig(Section):
    """OpenAI-compatible endpoint of the policy for agents and judges: on loopback, with a token per rollout.
    It starts if a workflow or a judge needs it."""

    port: int = Field(0, ge=0, le=65535)
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
    max_response_tokens: int = Field(1024, gt=0)
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
    max_sequence_tokens: int | None = Field(None, gt=1)
    """Maximum length of a conversation (prompt and all turns), in tokens; `max_prompt_tokens +
    max_response_tokens` if omitted."""
    sequence_per: Literal["trajectory", "turn"] = "trajectory"
    """Unit of a training sequence: `trajectory` joins turns that continue each other, `turn` makes each turn
    a sequence."""
    max_concurrent_rollouts: int | None = Field(None, gt=0)
    """Maximum number of concurrent rollouts; null for all rollouts of a step (64 for workflows without
    `async`)."""
    timeout_seconds: float = Field(3600.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of a rollout; after it the rollout is cancelled and counts as failed, not as reward
    0."""
    retries: int = Field(0, ge=0)
    """Maximum number of retries of a rollout that failed or timed out."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the workflows."""
    endpoint: EndpointConfig = EndpointConfig()
    """Endpoint at which agents reach the policy."""
    auxiliary_models: tuple[AuxiliaryModelConfig, ...] = ()
    """Models that are not trained, each with its own inference engine."""
    max_error_fraction: float = Field(0.1, ge=0, le=1)
    """Maximum fraction of a step's rollouts that may fail; above it the run stops with an error."""
