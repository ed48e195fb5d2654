"""Adapter of tool classes with verl's interface: `create`, `execute`, `calc_reward` and `release`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.errors import ConfigError
from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.threads import is_async
from strop.workflows.tool import AgentData, Lifetime, ToolInstance, ToolResult

_METHODS = ("create", "execute", "calc_reward", "release")


class ClassTool:
    """A tool object with verl's interface, which serves all rollouts."""

    def __init__(self, tool: Any, lifetime: Lifetime) -> None:
        """Raises ConfigError for an object that does not have the interface."""
        what = type(tool).__name__
        missing = [name for name in _METHODS if not (hasattr(tool, name) and is_async(getattr(tool, name)))]
        if missing:
            raise ConfigError(
                f"rollout.workflow tools: the tool class {what} has no `async def {missing[0]}`. A tool class has "
                f"the methods {', '.join(_METHODS)} of verl's BaseTool."
            )
        schema = getattr(tool, "tool_schema", None)
        if schema is None:
            raise ConfigError(
                f"rollout.workflow tools: the tool class {what} has no schema; write tool_schema in the "
                "configuration file."
            )
        self.schema: Mapping[str, Any] = schema.model_dump(exclude_unset=True, exclude_none=True)
        self.name: str = schema.function.name
        self._tool = tool
        self._lifetime = lifetime

    def start(self, data: AgentData) -> ToolInstance:
        """An instance for one rollout, or one that creates an instance for each call."""
        options = data.tools_kwargs.get(self.name) or {}
        if self._lifetime == "rollout":
            return _RolloutInstance(self._tool, f"{data.request_id}/{self.name}", options)
        return _CallInstance(self._tool, options, data)


@dataclass(slots=True)
class _RolloutInstance:
    """One instance for all calls of a rollout."""

    tool: Any
    id: str
    options: Mapping[str, Any]
    created: bool = False

    async def open(self) -> None:
        self.id = _instance_id(await self.tool.create(self.id, **self._kwargs("create")))
        self.created = True

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return verl_result(await self.tool.execute(self.id, dict(arguments), **self._kwargs("execute")))

    async def close(self) -> float | None:
        if not self.created:
            return None
        try:
            return _reward(await self.tool.calc_reward(self.id, **self._kwargs("calc_reward")))
        finally:
            await self.tool.release(self.id, **self._kwargs("release"))

    def _kwargs(self, method: str) -> Mapping[str, Any]:
        return self.options.get(f"{method}_kwargs") or {}


@dataclass(slots=True)
class _CallInstance:
    """A new instance for each call."""

    tool: Any
    options: Mapping[str, Any]
    data: AgentData

    async def open(self) -> None:
        """Nothing to prepare: each call creates its instance."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        created = await self.tool.create(create_kwargs=self.options.get("create_kwargs") or {})
        instance = _instance_id(created)
        try:
            return verl_result(await self.tool.execute(instance, dict(arguments), agent_data=self.data))
        finally:
            await self.tool.release(instance)

    async def close(self) -> None:
        """Nothing to release: each call releases its instance."""


def verl_result(returned: Any) -> ToolResult:
    """Result of verl's `execute` or of a function tool: a response, perhaps with the reward of the call and
    metrics. A response is text, a `ToolResponse`, or a value that becomes JSON.

    Raises InvalidWorkflowResult for video.
    """
    response, reward, *_ = returned if isinstance(returned, tuple) else (returned, None)
    if getattr(response, "video", None):
        raise InvalidWorkflowResult("a tool returned video; Strop trains on text and images")
    text = response if isinstance(response, str) else getattr(response, "text", response)
    if text is None:
        text = ""
    elif not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, default=str)
    return ToolResult(text, _reward(reward), tuple(getattr(response, "image", None) or ()))


def _instance_id(created: Any) -> str:
    """The id that `create` returns, alone or with a response. Raises InvalidWorkflowResult for a response with
    content, which verl would put before the model's first reply."""
    if not isinstance(created, tuple):
        return str(created)
    name, response = created
    if response is not None and not response.is_empty():
        raise InvalidWorkflowResult(
            "the method `create` of a tool returned a response with content; the model gets tool messages only "
            "after a call. Return an empty ToolResponse, and write the content into the prompt"
        )
    return str(name)


def _reward(value: Any) -> float | None:
    """The number that a tool returns; None for the values without a reward (verl's tools return `[]` or text)."""
    return float(value) if isinstance(value, int | float) else None
