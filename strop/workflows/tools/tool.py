"""Interface of tools: what a model may call, and its state within one rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Lifetime = Literal["rollout", "call"]
"""Lifetime of a tool's instance. `rollout`: created before the first reply with `**create_kwargs`, and asked for
its reward and released after the last, as verl does with `rollout.mode: sync`. `call`: created for each call with
`create_kwargs=...` and released after it, as verl's agent loops do."""


@dataclass(slots=True)
class AgentData:
    """State of one rollout, for tools that read its history or keep values for the reward function."""

    request_id: str
    """Name of the rollout."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Messages so far, including the prompt."""
    tools_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of the task for each tool: `create_kwargs`, `execute_kwargs`, `calc_reward_kwargs`,
    `release_kwargs`."""
    tool_rewards: list[float] = field(default_factory=list)
    """Rewards of the calls so far."""
    turn_scores: list[float] = field(default_factory=list)
    """Scores of the interaction's turns so far."""
    assistant_turns: int = 0
    user_turns: int = 0
    """Number of messages, or sets of tool messages, that the model got after its replies."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Values of tools, which the reward function gets in `extra_info`."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Values of tools; not recorded."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of one call."""

    text: str
    """Text of the message that the model gets."""
    reward: float | None = None
    """Reward of the call, for reward functions; None if the tool gives none."""
    images: tuple[Any, ...] = ()
    """Images that the model gets before the text: encoded bytes, paths, data URLs or PIL images."""


class ToolInstance(Protocol):
    """A tool within one rollout."""

    async def open(self) -> None:
        """Prepare the calls; before the first reply."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute one call. Calls of one reply run concurrently. What it raises is the call's result."""

    async def close(self) -> float | None:
        """Release the tool's state; after the last reply, also of a rollout that failed. Returns the tool's
        reward of the rollout, or None if it gives none."""


class Tool(Protocol):
    """Something that a model may call."""

    @property
    def name(self) -> str:
        """Name by which the model calls it."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """Description in the format of OpenAI's `tools`, which the chat template shows to the model."""

    def start(self, data: AgentData) -> ToolInstance:
        """The tool within one rollout."""
