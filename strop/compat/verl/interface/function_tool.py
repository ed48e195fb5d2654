"""`verl.tools.function_tool`: the decorator of functions that are tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strop.compat.verl.interface.schemas import OpenAIFunctionToolSchema

_MARK = "__strop_function_tool__"


@dataclass(frozen=True, slots=True)
class FunctionToolMark:
    """Arguments of the decorator."""

    name: str
    schema: OpenAIFunctionToolSchema | Mapping[str, Any] | None


def function_tool(
    name: str | Callable[..., Any] | None = None,
    *,
    schema: OpenAIFunctionToolSchema | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Mark a function as a tool: `@function_tool`, or `@function_tool("name", schema=...)`.

    Without a schema, the annotations and the docstring of the function describe it.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        chosen = name if isinstance(name, str) else function.__name__
        setattr(function, _MARK, FunctionToolMark(chosen, schema))
        return function

    return mark(name) if callable(name) else mark


def function_tool_mark(value: Any) -> FunctionToolMark | None:
    """Arguments of the decorator of a function; None for a value without it."""
    mark = getattr(value, _MARK, None)
    return mark if isinstance(mark, FunctionToolMark) else None
