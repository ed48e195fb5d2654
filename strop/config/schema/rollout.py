"""`rollout`: how answers are sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import KindByName, Section
from strop.config.schema.workflow import Workflow, WorkflowOrName


class Sampling(Section):
    """How tokens are drawn."""

    temperature: float = Field(1.0, ge=0)
    """Logits are divided by it; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest tokens that together have this probability."""
    top_k: int = Field(0, ge=0)
    """Keep so many of the likeliest tokens; 0 keeps all."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Drop tokens less likely than this share of the likeliest one."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Above 1, tokens already seen become less likely (arXiv 1909.05858)."""
    min_response_tokens: int = Field(0, ge=0)
    """Until so many tokens are out, nothing can end the answer."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; they stay in it."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Go on after end tokens, up to `data.max_response_tokens`."""


class NativeEngine(Section):
    """Strop's own sampler, in the trainer's process: no server, no needless copy of the weights."""

    type: Literal["native"] = "native"
    dtype: Literal["model", "float32", "bfloat16"] = "model"
    """Of the sampler's weights and cache; `model` is the trainer's compute type."""
    kv_cache_tokens: int = Field(131072, gt=0)
    """Room for so many tokens of keys and values; what does not fit waits, nothing is dropped."""
    max_sequences: int = Field(256, gt=0)
    """So many completions are under way at most; more wait."""


class Pool(Section):
    """Engines that are processes of their own, beside each other. Each has a copy of the model and a cache of
    its own, and a GPU of its own where there are so many; on a Ray cluster each is an actor."""

    engines: int = Field(gt=0)
    """So many."""
    max_restarts: int = Field(3, ge=0)
    """So often is each of them started again that was killed; then the run stops."""


class Endpoint(Section):
    """The OpenAI-compatible endpoint that agents talk to: on loopback, with a token for each rollout. It
    runs where a workflow or a judge needs it."""

    port: int = Field(0, ge=0, le=65535)
    """Where it listens; 0 for any port that is free."""
    model: str = "policy"
    """What the model that is trained is called there: the name that the agent asks for."""


class AuxiliaryModel(Section):
    """A model that helps and is not trained: workflows and judges ask it by its name."""

    name: str = Field(pattern=r"^[^/\\\s]+$")
    """What it is called; unique in the run."""
    path: str
    """A Hugging Face model folder, or a name on the hub."""
    tokenizer: str | None = None
    """A tokenizer folder or name; the model's own when left out."""
    chat_template: str = "tokenizer"
    """`tokenizer` for its own, or a file with a Jinja template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of its weights and matrix products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""
    engine: Annotated[NativeEngine, KindByName] = NativeEngine(kv_cache_tokens=32768)
    """What runs it."""
    max_response_tokens: int = Field(1024, gt=0)
    """Longest reply, where a question does not say."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""


class Rollout(Section):
    """How answers are sampled."""

    engine: Annotated[NativeEngine, KindByName] = NativeEngine()
    """What runs the model to sample from it."""
    pool: Pool | None = None
    """Several such engines; null for one, in the process that explores."""
    workflow: WorkflowOrName = Workflow()
    """How a task becomes a rollout; an eval taskset may have its own."""
    sampling: Sampling = Sampling()
    """How answers to train on are drawn."""
    max_sequence_tokens: int | None = Field(None, gt=1)
    """Longest conversation, prompt and all turns; `max_prompt_tokens + max_response_tokens` if left out."""
    experience_per: Literal["trajectory", "turn"] = "trajectory"
    """What becomes one training sequence: turns that go on from each other, or each turn by itself."""
    runners: int | None = Field(None, gt=0)
    """Rollouts under way at most, in all; null for all of a step (of workflows without `async`: 64)."""
    timeout_seconds: float = Field(3600.0, gt=0)
    """A rollout that takes longer is cancelled and counts as broken: late, never a zero."""
    retries: int = Field(0, ge=0)
    """So often is a rollout tried again that broke or was late."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables that workflows run under."""
    endpoint: Endpoint = Endpoint()
    """Where agents reach the model that is trained."""
    auxiliary_models: tuple[AuxiliaryModel, ...] = ()
    """Models that help, each with an engine of its own."""
    max_error_share: float = Field(0.1, ge=0, le=1)
    """When more of a step's rollouts than this break, the run stops and says why."""
