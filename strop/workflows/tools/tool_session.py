"""Tools within one rollout: their state, the calls of each reply, and the messages with the results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strop.data.encoding.reply import ToolCall
from strop.types import Message
from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.tools.tool import AgentData, Tool, ToolInstance, ToolResult

TruncatedSide = Literal["left", "middle", "right"]


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
