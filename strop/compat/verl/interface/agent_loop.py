"""`verl.experimental.agent_loop.agent_loop`: base class and result of agent loops of the user;
`verl.utils.rollout_trace`: the decorator of traced methods, which changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

F = TypeVar("F", bound=Callable[..., Any])


def rollout_trace_op(function: F) -> F:
    """The function unchanged."""
    return function


C = TypeVar("C", bound=type)


class AgentLoopMetrics(BaseModel):
    """Durations in seconds; not recorded."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    """Result of an agent loop."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")

    prompt_ids: list[int]
    response_ids: list[int]
    """Tokens after the prompt: those that the model sampled, and those between them."""
    response_mask: list[int]
    """1 for tokens that are trained on."""
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics | dict[str, Any] = Field(default_factory=AgentLoopMetrics)
    extra_fields: dict[str, Any] = Field(default_factory=dict)
    """Values for the reward function's `extra_info`."""


@dataclass(frozen=True, slots=True)
class DictConfigWrap:
    """Holds a configuration."""

    config: Any


class AgentLoopBase:
    """An agent loop; each rollout has an object of its own."""

    _class_initialized = False

    def __init__(
        self, trainer_config: Any, server_manager: Any, tokenizer: Any, processor: Any = None, **kwargs: Any
    ) -> None:
        """`trainer_config.config` is verl's configuration, `server_manager` samples tokens."""
        config = trainer_config.config
        self.init_class(config=config, tokenizer=tokenizer, processor=processor, **kwargs)
        self.config = config
        self.rollout_config = config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.apply_chat_template_kwargs = dict(config.data.get("apply_chat_template_kwargs") or {})
        self.loop = asyncio.get_running_loop()

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any = None, **kwargs: Any) -> None:
        """Prepare what all objects of the class share; called for each object."""
        cls._class_initialized = True

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One rollout; `kwargs` are the task's columns, with the messages as `raw_prompt`."""
        raise NotImplementedError(f"{type(self).__name__} does not define run")


def register(agent_name: str) -> Callable[[C], C]:
    """The class unchanged: the file of agent loops names the classes."""
    return lambda subclass: subclass
