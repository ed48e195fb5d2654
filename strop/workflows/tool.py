"""Tools that a model may call: their interface, their calls within one rollout, and Python functions as tools."""

from __future__ import annotations

import ast
import asyncio
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from strop.config.user_code import ImportPath
from strop.data.encoding.reply import ToolCall
from strop.errors import ConfigError
from strop.types import Message
from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.threads import call_sync_or_async

Lifetime = Literal["rollout", "call"]
"""Lifetime of a tool's instance. `rollout`: created before the first reply with `**create_kwargs`, and asked for
its reward and released after the last, as verl does with `rollout.mode: sync`. `call`: created for each call with
`create_kwargs=...` and released after it, as verl's agent loops do."""
TruncatedSide = Literal["left", "middle", "right"]
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_MAX_CHARS = 1000
_MAX_EXPONENT = 1000


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


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Maximum length of a result in the prompt."""

    characters: int | None
    """None for no limit."""
    side: TruncatedSide
    """Part of a longer result that is removed."""
    mark: bool
    """Whether a text marks where something is removed."""

    def apply(self, text: str) -> str:
        """The text, truncated if it is longer."""
        if self.characters is None or len(text) <= self.characters:
            return text
        if self.side == "left":
            kept = text[len(text) - self.characters :]
            return f"(truncated)...{kept}" if self.mark else kept
        if self.side == "right":
            kept = text[: self.characters]
            return f"{kept}...(truncated)" if self.mark else kept
        half = self.characters // 2
        gap = "...(truncated)..." if self.mark else ""
        return f"{text[:half]}{gap}{text[len(text) - half :]}"


class ToolSession:
    """Tools of one rollout; open it before the first reply, and close it after the last."""

    def __init__(self, tools: Sequence[Tool], data: AgentData, limit: OutputLimit) -> None:
        self._instances: Mapping[str, ToolInstance] = {tool.name: tool.start(data) for tool in tools}
        self._data = data
        self._limit = limit

    async def open(self) -> None:
        """Create the tools' instances. Raises whatever a tool raises."""
        await asyncio.gather(*(instance.open() for instance in self._instances.values()))

    async def close(self) -> dict[str, float]:
        """Release all instances; returns the rewards of those that give one, by tool.

        Raises the first exception of a tool, after all are released.
        """
        ended = await asyncio.gather(
            *(instance.close() for instance in self._instances.values()), return_exceptions=True
        )
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return {name: r for name, r in zip(self._instances, ended, strict=True) if isinstance(r, float)}

    async def answer(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run the calls concurrently; returns one message of the role `tool` for each, in their order.

        The error of a call is its result. Raises InvalidWorkflowResult for a result that cannot be trained on.
        """
        results = await asyncio.gather(*(self._run(call) for call in calls))
        self._data.tool_rewards += [result.reward for result in results if result.reward is not None]
        return [
            {
                "role": "tool",
                "name": call.name,
                "content": self._content(result),
                "tool_call_id": f"call{number:05d}",
            }
            for number, (call, result) in enumerate(zip(calls, results, strict=True))
        ]

    def _content(self, result: ToolResult) -> str | list[dict[str, Any]]:
        text = self._limit.apply(result.text)
        if not result.images:
            return text
        parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in result.images]
        return [*parts, {"type": "text", "text": text}] if text else parts

    async def _run(self, call: ToolCall) -> ToolResult:
        if call.parse_error is not None:
            return _error(call.parse_error)
        if call.name not in self._instances:
            return _error(f"there is no tool {call.name!r}; the tools are {', '.join(self._instances)}")
        try:
            return await self._instances[call.name].call(call.arguments)
        except InvalidWorkflowResult:
            raise
        except Exception as error:  # noqa: BLE001 - the model gets whatever error a tool raises
            return _error(f"{type(error).__name__}: {error}")


def _error(message: str) -> ToolResult:
    return ToolResult(json.dumps({"error": message}, ensure_ascii=False))


def _text_result(returned: Any) -> ToolResult:
    """Result of a function: its text, or any other value as JSON."""
    is_text = isinstance(returned, str)
    return ToolResult(returned if is_text else json.dumps(returned, ensure_ascii=False, default=str))


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function, with or without `async`, as a tool without state."""

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    read: Callable[[Any], ToolResult] = _text_result
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
        _BUILTIN_TOOLS.get(name) or ImportPath(name, what, "function", _BUILTIN_TOOLS, ConfigError).load()
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


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers, parentheses, and + - * / // % **, such as "(3 + 4) * 2".
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression is longer than {_MAX_CHARS} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.Pow) and (abs(second) > _MAX_EXPONENT or abs(first) > 1e6):
                raise ValueError("this power is too large")
            result = _BINARY[type(op)](first, second)
            if isinstance(result, complex) or not math.isfinite(result):
                raise ValueError("the result is not a finite real number")
            return result
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


_BUILTIN_TOOLS: dict[str, Callable[..., Any]] = {"calculator": calculator}
