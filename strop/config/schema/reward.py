"""`reward`: scoring of responses by functions, reward models and judges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section
from strop.config.schema.judge import JudgeCallsConfig, JudgeConfig
from strop.config.schema.reward_worker import RewardWorkerConfig
from strop.config.schema.sandbox import LocalSandboxConfig, SandboxConfig
from strop.config.units import MAX_SECONDS, Amount, MicroBatchSize


class RewardFunctionConfig(Section):
    """Part of the reward that a Python function computes."""

    function: str
    """Built-in name, a dotted path, `file.py:name`, or `by_source` to choose a function by the task's
    source."""
    name: str | None = None
    """Name of this part in metrics; the function's own name if omitted."""
    weight: float = 1.0
    """Weight of the value in the sum."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Additional keyword arguments of the function."""


class RewardModelConfig(Section):
    """Part of the reward that a model with one label computes: its logit for the whole conversation."""

    path: str
    """Hugging Face folder, or a name on the Hub, of a model for sequence classification."""
    name: str = "reward_model"
    """Name of this part in metrics."""
    weight: float = 1.0
    """Weight of the value in the sum."""
    tokenizer: str | None = None
    """Tokenizer folder, or a name on the Hub; the model's own if omitted."""
    chat_template: str = "tokenizer"
    """File with a Jinja template; `tokenizer` for the tokenizer's own."""
    text_prompts: Literal["template", "raw"] = "template"
    """Conversation of a prompt that is plain text: a user message in the chat template, or `raw`, the text with the
    response after it (TRL's standard format)."""
    append_eos: bool = False
    """Whether the tokenizer's end token follows such a text, as in the training with `algorithm.append_eos`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights and matrix products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; `auto` is the GPU if there is one, otherwise the CPU."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """Size of a batch, in `tokens` (including padding) or `sequences`."""
    max_tokens: int | None = Field(None, gt=0)
    """Maximum length of a conversation, in tokens; the model's number of positions if omitted."""
    overlong: Literal["error", "left", "right"] = "error"
    """Treatment of a longer conversation: `error` fails that rollout, `left` removes its beginning, `right`
    its end."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""


class RewardConfig(Section):
    """Reward of a response: a weighted sum of parts. `reward: gsm8k` is short for one function."""

    functions: tuple[RewardFunctionConfig, ...] = ()
    """Parts that Python functions compute; `strop.train` accepts a further function from Python."""
    models: tuple[RewardModelConfig, ...] = ()
    """Parts that reward models compute."""
    judges: tuple[JudgeConfig, ...] = ()
    """Parts that language models score as judges."""
    judge_calls: JudgeCallsConfig = JudgeCallsConfig()
    """Concurrency, retries, cache and budget of calls to judges."""
    correct_at: float = 1.0
    """Reward from which a response counts as correct in `pass@k`, up to the rounding of a weighted sum."""
    timeout_seconds: float = Field(30.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of a function on one response; after it the function is killed, and `on_timeout`
    applies."""
    on_timeout: Literal["error", "zero"] = "error"
    """Treatment of a response on which a function of the user exceeds `timeout_seconds`: `error` fails that
    rollout, `zero` sets the function's value to 0. A built-in function's value is always 0."""
    workers: int = Field(0, ge=0)
    """Number of processes that compute functions in parallel; 0 is one per CPU core, at most four."""
    worker: RewardWorkerConfig = RewardWorkerConfig()
    """Resources and environment of each of these processes."""
    sandbox: SandboxConfig = LocalSandboxConfig()
    """Sandbox of the programs that the built-in reward `code` runs."""

    @property
    def is_empty(self) -> bool:
        """Whether the section has no part."""
        return not (self.functions or self.models or self.judges)


def expand_reward(value: Any) -> Any:
    """Expand the shorthands `gsm8k`, `{function: ...}` and `[...]` to `{functions: [...]}`."""
    if isinstance(value, str):
        return {"functions": [{"function": value}]}
    if isinstance(value, list | tuple):
        return {"functions": [{"function": v} if isinstance(v, str) else v for v in value]}
    if isinstance(value, dict) and "function" in value:
        return {"functions": [value]}
    return value


RewardConfigOrShorthand = Annotated[
    RewardConfig,
    BeforeValidator(
        expand_reward,
        json_schema_input_type=str
        | RewardFunctionConfig
        | tuple[str | RewardFunctionConfig, ...]
        | RewardConfig,
    ),
]
"""A `RewardConfig`, or a shorthand: `reward: gsm8k` is `reward: {functions: [{function: gsm8k}]}`."""
