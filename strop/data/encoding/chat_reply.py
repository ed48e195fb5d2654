"""Parsing of a reply for a client of a chat endpoint: reasoning, content and tool calls, by named parsers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from strop.data.encoding.reasoning import ReasoningParser, split_reasoning
from strop.data.encoding.tool_calls import ToolCall, ToolCallFormat, parse_reply, tool_call_format


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

    def parse(
        self, text: str, tools: Sequence[Any], template: str | None, *, in_reasoning: bool = False
    ) -> ChatReply:
        """Parse a reply. Without tools, or if a call cannot be parsed, calls stay in the content.

        `in_reasoning` says that the prompt opens the reply's reasoning.
        """
        reasoning, content = split_reasoning(text, self.reasoning, is_open=in_reasoning)
        if tools:
            form = tool_call_format(template) if self.tool_calls == "auto" else self.tool_calls
            is_open = in_reasoning and self.reasoning == "none"
            reply = parse_reply(content, form, tools, in_reasoning=is_open)
            if all(call.parse_error is None for call in reply.calls):
                return ChatReply(reasoning, reply.content, reply.calls)
        return ChatReply(reasoning, content, ())
