"""Parsing of a reply for a client of a chat endpoint: reasoning, content and tool calls, by named parsers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strop.data.encoding.tool_calls import (
    FORMATS_WITH_SPECIAL_TOKENS,
    ToolCall,
    ToolCallFormat,
    parse_reply,
    tool_call_format,
)

ReasoningParser = Literal["none", "deepseek_r1", "qwen3"]
"""`deepseek_r1`: everything before </think>, whose opening tag may be in the prompt; without </think> the whole reply.
`qwen3`: the text between <think> and </think>; a reply without tags has no reasoning. `none`: reasoning stays in the
content."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply, split into its parts."""

    reasoning: str | None
    """Reasoning before the content; None if the parser found none."""
    content: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ChatReplyParser:
    """The parsers of `rollout.endpoint`."""

    tool_calls: Literal["auto"] | ToolCallFormat = "auto"
    """Format of tool calls; `auto` is that of the chat template."""
    reasoning: ReasoningParser = "none"

    def keeps_special_tokens(self, template: str | None) -> bool:
        """Whether the text must be decoded with special tokens."""
        return self._format(template) in FORMATS_WITH_SPECIAL_TOKENS

    def parse(self, text: str, tools: Sequence[Any], template: str | None) -> ChatReply:
        """Parse a reply. Without tools, or if a call cannot be parsed, calls stay in the content."""
        reasoning, content = split_reasoning(text, self.reasoning)
        if tools:
            reply = parse_reply(content, self._format(template), tools)
            if all(call.parse_error is None for call in reply.calls):
                return ChatReply(reasoning, reply.content, reply.calls)
        return ChatReply(reasoning, content, ())

    def _format(self, template: str | None) -> ToolCallFormat:
        return tool_call_format(template) if self.tool_calls == "auto" else self.tool_calls


def split_reasoning(text: str, parser: ReasoningParser) -> tuple[str | None, str]:
    """Reasoning and content of a reply. A reply that ends within its reasoning has no content."""
    if parser == "none":
        return None, text
    opening, tag, opened = text.partition("<think>")
    is_open = bool(tag) and not opening.strip()
    inside = opened if is_open else text
    reasoning, end, content = inside.partition("</think>")
    if parser == "qwen3" and not is_open and not end:
        return None, text
    return reasoning.strip("\n") or None, content.lstrip("\n") if end else ""
