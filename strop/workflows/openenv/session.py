"""Interface of a session with an environment, and the texts of its observations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from strop.types import Message, Task
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult


@dataclass(frozen=True, slots=True)
class Observation:
    """Answer of an environment to one action."""

    text: str
    """Text that the model gets."""
    reward: float | None
    """Reward of the action; None if the environment gives none."""
    is_done: bool


class EnvironmentSession(Protocol):
    """One episode in an environment."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Descriptions of the actions in the format of OpenAI's `tools`; empty if a reply's text is the action."""

    async def reset(self, task: Task) -> Sequence[Message]:
        """Start the episode; returns the model's prompt."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Execute a tool call."""

    async def act(self, text: str) -> Observation:
        """Execute an action that is a text."""

    async def result(self, rewards: Sequence[float | None], messages: Sequence[Message]) -> WorkflowResult:
        """Reward of the episode; `rewards` has one per turn, and `messages` is the conversation."""

    async def close(self) -> None:
        """End the session."""


def with_observation(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a text at the end of the last user message, or as one."""
    if not text:
        return list(messages)
    if not messages or messages[-1]["role"] != "user" or not isinstance(messages[-1]["content"], str):
        return [*messages, {"role": "user", "content": text}]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{text}"}]


def observation_text(observation: Mapping[str, Any], field: str | None) -> str:
    """Text of an observation: the named field; a tool's result; the only value, if it is text; or all as JSON."""
    if "tool_name" in observation:
        return _tool_text(observation)
    shown = {k: v for k, v in observation.items() if k != "metadata" and v not in (None, "", [], {})}
    if field is not None:
        if field not in observation:
            raise InvalidWorkflowResult(
                f"the environment's observation has no field {field!r}; its fields are {', '.join(observation)}"
            )
        shown = {field: observation[field]}
    return as_text(next(iter(shown.values())) if len(shown) == 1 else shown) if shown else ""


def as_text(value: Any) -> str:
    """A text as it is, nothing as the empty text, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def to_reward(value: Any) -> float | None:
    """Reward of an action. Raises `InvalidWorkflowResult` if it is no finite number."""
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidWorkflowResult(f"the environment's reward is {value!r}; a reward is a finite number")
    return float(value)


def _tool_text(observation: Mapping[str, Any]) -> str:
    """Text of a tool's result, which is the result of an MCP server, or of the error."""
    if (error := observation.get("error")) is not None:
        return as_text({"error": error.get("message") if isinstance(error, Mapping) else error})
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        parts = [part for part in result["content"] if isinstance(part, Mapping)]
        return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")
    return as_text(result)
