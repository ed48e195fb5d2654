"""`trinity.common.workflows.Task`, and the sections of a configuration that a task carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class FormatConfig:
    """Columns and texts of a taskset: `format` in a Trinity configuration."""

    prompt_type: Any = None
    prompt_key: str = "prompt"
    response_key: str = "response"
    messages_key: str = "message"
    tools_key: str | None = None
    system_prompt: str | None = None
    system_prompt_key: str | None = None
    reply_prefix: str | None = None
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    workflow_key: str = ""
    reward_fn_key: str = ""


@dataclass
class TrinityGenerationConfig:
    """Sampling of a taskset: `rollout_args` in a Trinity configuration."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    logprobs: int = 0


@dataclass
class TrinityTask:
    """A row of a taskset, with what a workflow needs to run it."""

    workflow: Any = None
    repeat_times: int | None = 1
    format_args: FormatConfig = field(default_factory=FormatConfig)
    rollout_args: TrinityGenerationConfig = field(default_factory=TrinityGenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: dict[str, Any] | None = None
    """The row."""
    batch_id: int | str = ""
    task_id: int | str = ""
    run_id: int = 0
    index: dict[str, Any] = field(default_factory=dict)

    @property
    def task_desc(self) -> Any:
        """Value of the prompt column."""
        return (self.raw_task or {}).get(self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """Value of the answer column."""
        return (self.raw_task or {}).get(self.format_args.response_key)

    def to_dict(self) -> dict[str, Any] | None:
        """The row."""
        return self.raw_task
