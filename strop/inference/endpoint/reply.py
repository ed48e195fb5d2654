"""What a client is answered, whole or as a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from strop.data.tool_calls import ToolCall
from strop.inference.endpoint.request import ChatRequest
from strop.types import Finish


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A model's answer to one request."""

    id: str
    content: str
    """Without the calls."""
    finish: Finish
    prompt_tokens: int
    completion_tokens: int
    calls: tuple[ToolCall, ...] = ()

    @property
    def finish_reason(self) -> str:
        """As OpenAI calls it."""
        return "tool_calls" if self.calls else self.finish

    def tool_calls(self) -> list[dict[str, Any]]:
        """As OpenAI writes them: arguments are JSON in text."""
        return [
            {
                "id": f"{self.id}-{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for number, call in enumerate(self.calls)
        ]

    def message(self) -> dict[str, Any]:
        """The assistant's message, as a client sends it back later."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.calls:
            return message | {"tool_calls": self.tool_calls()}
        return message | {"content": self.content}


class Answerer(Protocol):
    """A model that answers chats; any thread's event loop may ask."""

    async def chat(self, request: ChatRequest) -> ChatReply:
        """Raises `BadRequest` where it cannot."""
        ...


def whole(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """The body of a response that is no stream."""
    choice = {
        "index": 0,
        "message": reply.message(),
        "finish_reason": reply.finish_reason,
        "logprobs": None,
    }
    return {**_head(request, reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def chunks(request: ChatRequest, reply: ChatReply) -> Iterator[dict[str, Any]]:
    """The parts of a stream. They come when the reply is whole, for only then is it known what it calls."""
    head = _head(request, reply, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]}

    yield chunk({"role": "assistant", "content": ""})
    for word in reply.content.splitlines(keepends=True):
        yield chunk({"content": word})
    for number, call in enumerate(reply.tool_calls()):
        yield chunk({"tool_calls": [{"index": number, **call}]})
    yield chunk({}, reply.finish_reason)
    if request.include_usage:
        yield {**head, "choices": [], "usage": _usage(reply)}


def _head(request: ChatRequest, reply: ChatReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": int(time.time()), "model": request.model}


def _usage(reply: ChatReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
