"""`reward`: how an answer is scored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section
from strop.config.schema.judge import Calls, Judge
from strop.config.units import Amount, MicroBatchSize


class RewardFunction(Section):
    """One part of the reward."""

    function: str
    """A built-in name, a dotted path, `file.py:name`, or `by_source` to choose by each task's source."""
    name: str | None = None
    """The part's name in metrics; the function's own when left out."""
    weight: float = 1.0
    """What its value is multiplied with in the sum."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""


class RewardModel(Section):
    """A model with one label that reads the whole conversation; its logit is the value."""

    path: str
    """A Hugging Face folder, or a name on the hub, of a model for sequence classification."""
    name: str = "reward_model"
    """The part's name in metrics."""
    weight: float = 1.0
    """What its value is multiplied with in the sum."""
    tokenizer: str | None = None
    """A tokenizer folder or name; the model's own when left out."""
    chat_template: str = "tokenizer"
    """`tokenizer` for its own, or a file with a Jinja template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of its weights and matrix products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU where there is one."""
    batch: MicroBatchSize = Amount(16384, "tokens")
    """What goes through it at once, in `tokens` (padding included) or `sequences`."""
    max_tokens: int | None = Field(None, gt=0)
    """Longest conversation; as much as the model has positions for when left out."""
    overlong: Literal["error", "left", "right"] = "error"
    """A longer one breaks that rollout, or is cut: `left` drops its beginning, `right` its end."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model folder."""


class Reward(Section):
    """How an answer is scored: a weighted sum. `reward: gsm8k` is short for one function."""

    functions: tuple[RewardFunction, ...] = ()
    """Parts by rule; a function may also be passed to `strop.train` from Python."""
    models: tuple[RewardModel, ...] = ()
    """Parts by models that were trained to score."""
    judges: tuple[Judge, ...] = ()
    """Parts by language models that are asked."""
    calls: Calls = Calls()
    """How judges are called, and at what cost."""
    timeout_seconds: float = Field(30.0, gt=0)
    """A function that takes longer on one answer is killed, and that rollout counts as broken."""
    workers: int = Field(0, ge=0)
    """Processes in which functions score side by side; 0 is one per core, four at most."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing here says how an answer is scored."""
        return not (self.functions or self.models or self.judges)


def spell_out_reward(value: Any) -> Any:
    """`gsm8k`, `{function: ...}` and `[...]` are short for `{functions: [...]}`."""
    if isinstance(value, str):
        return {"functions": [{"function": value}]}
    if isinstance(value, list | tuple):
        return {"functions": [{"function": v} if isinstance(v, str) else v for v in value]}
    if isinstance(value, dict) and "function" in value:
        return {"functions": [value]}
    return value


RewardOrShort = Annotated[
    Reward,
    BeforeValidator(
        spell_out_reward,
        json_schema_input_type=str | RewardFunction | tuple[str | RewardFunction, ...] | Reward,
    ),
]
"""Lets `reward: gsm8k` stand for `reward: {functions: [{function: gsm8k}]}`."""
