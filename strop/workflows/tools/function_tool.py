"""Python functions as tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.user_code import ImportPath
from strop.errors import ConfigError
from strop.workflows.builtin.calculator import calculator
from strop.workflows.threads import call_sync_or_async
from strop.workflows.tools.tool import AgentData, ToolInstance, ToolResult

BUILTIN_TOOLS: dict[str, Callable[..., Any]] = {"calculator": calculator}


def text_result(returned: Any) -> ToolResult:
    """Result of a function: its text, or any other value as JSON."""
    is_text = isinstance(returned, str)
    return ToolResult(returned if is_text else json.dumps(returned, ensure_ascii=False, default=str))


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function, with or without `async`, as a tool without state."""

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    read: Callable[[Any], ToolResult] = text_result
    """Converts what the function returns."""

    def start(self, data: AgentData) -> ToolInstance:
        """The function itself: it has no state."""
        return _FunctionInstance(self)


@dataclass(frozen=True, slots=True)
class _FunctionInstance:
    tool: FunctionTool

    async def open(self) -> None:
        """Nothing to prepare."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return self.tool.read(await call_sync_or_async(self.tool.function, **arguments))

    async def close(self) -> None:
        """Nothing to release."""


def load_function_tool(name: str) -> FunctionTool:
    """A built-in tool, or a function by dotted path or `file.py:function`. Raises ConfigError."""
    what = f"rollout.workflow tools: the tool {name!r}"
    function = (
        BUILTIN_TOOLS.get(name) or ImportPath(name, what, "function", BUILTIN_TOOLS, ConfigError).load()
    )
    return FunctionTool(function.__name__, function_schema(function), function)


def function_schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Description of a function for chat templates, from its annotations and docstring. Raises ConfigError."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except Exception as error:
        raise ConfigError(
            f"rollout.workflow tools: the function {function.__name__} has no complete description: {error} A "
            "tool has annotated parameters, and a docstring that describes it and, under `Args:`, each of them."
        ) from error
    return schema
