"""Chat responses, as one body or as a stream of chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from strop.data.encoding.tool_calls import ToolCall
from strop.inference.endpoint.request import ChatRequest
from strop.types import FinishReason


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A model's response to one request."""

    id: str
    content: str
    """Text without the reasoning and the tool calls."""
    finish: FinishReason
    prompt_tokens: int
    completion_tokens: int
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    """Reasoning before the content, where a parser splits it off."""

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason: `tool_calls`, `stop` or `length`."""
        return "tool_calls" if self.calls else self.finish

    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls in OpenAI's format, with arguments as a JSON string."""
        return [
            {
                "id": f"{self.id}-{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for number, call in enumerate(self.calls)
        ]

    def message(self) -> dict[str, Any]:
        """The assistant's message, as clients return it in the next request."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message |= {"content": self.content or None, "tool_calls": self.tool_calls()}
        return message


class ChatModel(Protocol):
    """A model that serves chat requests from event loops of any thread."""

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Respond to a request. Raises `BadRequest` if that is not possible."""
        ...


def completion_body(request: ChatRequest, response: ChatResponse) -> dict[str, Any]:
    """Body of a response without streaming."""
    choice = {
        "index": 0,
        "message": response.message(),
        "finish_reason": response.finish_reason,
        "logprobs": None,
    }
    return {**_head(request, response, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def stream_chunks(request: ChatRequest, response: ChatResponse) -> Iterator[dict[str, Any]]:
    """Chunks of a streamed response, built from the complete response: only that shows the tool calls."""
    head = _head(request, response, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    if response.reasoning is not None:
        yield chunk({"reasoning_content": response.reasoning})
    for line in response.content.splitlines(keepends=True):
        yield chunk({"content": line})
    for number, call in enumerate(response.tool_calls()):
        yield chunk({"tool_calls": [{"index": number, **call}]})
    yield chunk({}, response.finish_reason)
    if request.include_usage:
        yield {**head, "choices": [], "usage": _usage(response)}


def _head(request: ChatRequest, response: ChatResponse, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{response.id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _usage(response: ChatResponse) -> dict[str, int]:
    return {
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "total_tokens": response.prompt_tokens + response.completion_tokens,
    }
