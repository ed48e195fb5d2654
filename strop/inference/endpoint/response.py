"""Chat responses with their choices, as one body or as a stream of chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strop.data.encoding.reply import ToolCall
from strop.inference.endpoint.request import ChatRequest
from strop.types import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-prob, with the most likely tokens at its position."""

    token: int
    """Token id."""
    text: str
    """Text of the token by itself."""
    logprob: float | None
    """Log-prob in nats; None for the first token of a prompt."""
    top: tuple[tuple[str, float], ...] = ()
    """Texts and log-probs of the most likely tokens, in descending order."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """One of the texts with which `/v1/completions` answers."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[TokenLogprob, ...]
    """Tokens of the text; with `echo`, of the prompt and the text."""


_REPLACEMENT_CHARACTER = "\ufffd"
"""Text of a token that holds a part of a character."""


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """One of the replies to a request."""

    content: str
    """Text without the reasoning and the tool calls."""
    finish: FinishReason
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    """Reasoning before the content, where a parser splits it off."""
    tokens: tuple[TokenLogprob, ...] | None = None
    """Sampled tokens with their log-probs; None if they are not asked for."""

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason: `tool_calls`, `stop` or `length`."""
        return "tool_calls" if self.calls else self.finish

    def tool_calls(self, prefix: str) -> list[dict[str, Any]]:
        """Tool calls in OpenAI's format, with arguments as a JSON string; `prefix` begins their ids."""
        return [
            {
                "id": f"{prefix}-{number}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for number, call in enumerate(self.calls)
        ]

    def message(self, prefix: str) -> dict[str, Any]:
        """The assistant's message, as clients return it in the next request; `prefix` begins the ids of its calls."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message |= {"content": self.content or None, "tool_calls": self.tool_calls(prefix)}
        return message

    def logprobs(self) -> dict[str, Any] | None:
        """Log-probs of the tokens in OpenAI's format; None if they are not asked for."""
        if self.tokens is None:
            return None
        return {"content": [_token(each) for each in self.tokens], "refusal": None}


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A model's response to one request."""

    id: str
    choices: tuple[ChatChoice, ...]
    prompt_tokens: int
    completion_tokens: int
    """Number of sampled tokens of all choices."""

    def call_prefix(self, index: int) -> str:
        """Beginning of the ids of a choice's tool calls."""
        return f"{self.id}-{index}" if index else self.id


TextCallback = Callable[[int, str], None]
"""Called with the number of a reply and each part of its content, as soon as it is certain; in any thread."""


class ChatModel(Protocol):
    """A model that serves chat requests from event loops of any thread."""

    async def chat(self, request: ChatRequest, on_text: TextCallback | None = None) -> ChatResponse:
        """Respond to a request. Raises `BadRequest` if that is not possible."""
        ...


def chat_response_body(request: ChatRequest, response: ChatResponse) -> dict[str, Any]:
    """Body of a response without streaming."""
    choices = [
        {
            "index": index,
            "message": choice.message(response.call_prefix(index)),
            "finish_reason": choice.finish_reason,
            "logprobs": choice.logprobs(),
        }
        for index, choice in enumerate(response.choices)
    ]
    return {**_head(request, response.id, "chat.completion"), "choices": choices, "usage": _usage(response)}


class ChatStream:
    """Chunks of a streamed response: parts of replies while they grow, and the rest when all are complete."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self._head = _head(request, secrets.token_hex(8), "chat.completion.chunk")
        self._sent: dict[int, str] = {}
        """Content so far of each reply that has begun."""

    def text(self, index: int, text: str) -> Iterator[dict[str, Any]]:
        """Chunks of a part of a reply's content."""
        if index not in self._sent:
            yield self._chunk(index, {"role": "assistant", "content": ""})
        self._sent[index] = self._sent.get(index, "") + text
        yield self._chunk(index, {"content": text})

    def rest(self, response: ChatResponse) -> Iterator[dict[str, Any]]:
        """Chunks of what was not sent yet; only a complete reply shows its reasoning and its tool calls."""
        for index, choice in enumerate(response.choices):
            sent = self._sent.get(index, "")
            if not choice.content.startswith(sent):
                raise ValueError(f"reply {index} does not begin with the text that was sent")
            if index not in self._sent:
                yield self._chunk(index, {"role": "assistant", "content": ""}, logprobs=choice.logprobs())
            if choice.reasoning is not None:
                yield self._chunk(index, {"reasoning_content": choice.reasoning})
            for line in choice.content[len(sent) :].splitlines(keepends=True):
                yield self._chunk(index, {"content": line})
            for number, call in enumerate(choice.tool_calls(response.call_prefix(index))):
                yield self._chunk(index, {"tool_calls": [{"index": number, **call}]})
            yield self._chunk(index, {}, choice.finish_reason)
        if self._request.include_usage:
            yield {**self._head, "choices": [], "usage": _usage(response)}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**self._head, "choices": [choice]}


def _token(token: TokenLogprob) -> dict[str, Any]:
    top: Sequence[tuple[str, float]] = token.top
    return {
        **_named(token.text, token.logprob),
        "top_logprobs": [_named(text, logprob) for text, logprob in top],
    }


def _named(text: str, logprob: float | None) -> dict[str, Any]:
    whole = _REPLACEMENT_CHARACTER not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


def _head(request: ChatRequest, identity: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{identity}",
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
