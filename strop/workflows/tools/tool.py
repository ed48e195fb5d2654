"""Interface of tools: what a model may call, and its state within one rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from strop.workflows.verl_interface.agent_data import AgentData


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
