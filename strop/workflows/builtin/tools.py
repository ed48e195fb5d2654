"""`tools`: tool calling; the model may call functions before its final response."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from strop.config.user_code import ImportPath
from strop.data.encoding.tool_calls import ToolCall, parse_reply, tool_call_format
from strop.errors import ConfigError
from strop.types import Message, Task
from strop.workflows.builtin.calculator import calculator
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded
from strop.workflows.threads import call_sync_or_async

BUILTIN_TOOLS: dict[str, Callable[..., Any]] = {"calculator": calculator}


class ToolCallingWorkflow:
    """Describes the tools to the model through its chat template, and runs the calls in its replies.

    A tool is a Python function, with or without `async`, whose annotations and docstring describe it. Its
    result, or the error that it raises, is returned to the model as a message of the role `tool`. A reply
    without a call is the final response, which the run's reward scores. Tool messages are not trained on.
    """

    def __init__(
        self,
        tools: Sequence[str] = ("calculator",),
        max_turns: int = 8,
        form: Literal["auto", "hermes", "json"] = "auto",
        max_output: int = 4000,
    ) -> None:
        """Args:
        tools: `calculator`, dotted paths, or `file.py:function`.
        max_turns: maximum number of replies.
        form: format of calls; `auto` reads it from the chat template.
        max_output: maximum number of characters of a tool's output in the prompt.
        """
        if max_turns < 1:
            raise ConfigError(f"rollout.workflow tools: max_turns is {max_turns}; write 1 or more.")
        if form not in ("auto", "hermes", "json"):
            raise ConfigError(f"rollout.workflow tools: form is {form!r}; write auto, hermes or json.")
        found = [_find(name) for name in tools]
        self._functions = {function.__name__: function for function in found}
        self._schemas = tuple(_schema(function) for function in found)
        self._max_turns = max_turns
        self._form = form
        self._max_output = max_output

    async def run(self, task: Task, chat: Chat) -> None:
        """Alternate between replies and tool calls, until a reply has no call."""
        form = tool_call_format(chat.template) if self._form == "auto" else self._form
        chat = chat.start(task.messages, (*task.tools, *self._schemas))
        new: list[Message] = []
        for _ in range(self._max_turns):
            try:
                reply = parse_reply(await chat.reply(*new), form)
            except ContextLengthExceeded:
                return
            if not reply.calls:
                return
            new = [await self._run_call(number, each) for number, each in enumerate(reply.calls)]

    async def _run_call(self, number: int, call: ToolCall) -> Message:
        try:
            output = await self._output(call)
        except Exception as error:  # noqa: BLE001 - the model gets whatever error a tool raises
            output = {"error": f"{type(error).__name__}: {error}"}
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
        return {
            "role": "tool",
            "name": call.name,
            "content": text[: self._max_output],
            "tool_call_id": f"call{number:05d}",
        }

    async def _output(self, call: ToolCall) -> Any:
        if call.parse_error is not None:
            return {"error": call.parse_error}
        if call.name not in self._functions:
            return {"error": f"there is no tool {call.name!r}; the tools are {', '.join(self._functions)}"}
        return await call_sync_or_async(self._functions[call.name], **call.arguments)


def _find(name: str) -> Callable[..., Any]:
    what = f"rollout.workflow tools: the tool {name!r}"
    return BUILTIN_TOOLS.get(name) or ImportPath(name, what, "function", BUILTIN_TOOLS, ConfigError).load()


def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Description of a function for chat templates, from its annotations and docstring."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except Exception as error:
        raise ConfigError(
            f"rollout.workflow tools: the function {function.__name__} has no complete description: {error} A "
            "tool has annotated parameters, and a docstring that describes it and, under `Args:`, each of them."
        ) from error
    return schema
