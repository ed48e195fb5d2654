"""Tool calling: the model may have functions called before it gives its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from strop.config.imports import Named
from strop.data.tool_calls import ToolCall, format_of, read_reply
from strop.errors import ConfigError
from strop.types import Message, Task
from strop.workflows.calculator import calculator
from strop.workflows.chat import Chat
from strop.workflows.outcome import OutOfRoom
from strop.workflows.threads import call

BUILT_IN: dict[str, Callable[..., Any]] = {"calculator": calculator}


class ToolCalling:
    """The model is shown the tools through its chat template; what its replies call is called.

    A tool is a Python function, with or without `async`, whose annotations and docstring describe it. What
    it returns, or the error that it raises, goes back to the model as a message of the role `tool`. A
    reply without a call is the answer, which the run's reward scores. None of the tools' words is trained on.
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
        max_turns: the model speaks so often at most.
        form: how calls are written; `auto` looks at the chat template.
        max_output: characters of a tool's answer that the model is shown.
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
        """Replies and tools in turn, until a reply calls none."""
        form = format_of(chat.template) if self._form == "auto" else self._form
        chat = chat.start(task.messages, (*task.tools, *self._schemas))
        new: list[Message] = []
        for _ in range(self._max_turns):
            try:
                reply = read_reply(await chat.reply(*new), form)
            except OutOfRoom:
                return
            if not reply.calls:
                return
            new = [await self._answer(number, each) for number, each in enumerate(reply.calls)]

    async def _answer(self, number: int, asked: ToolCall) -> Message:
        try:
            output = await self._made(asked)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is what the model is told
            output = {"error": f"{type(error).__name__}: {error}"}
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
        return {
            "role": "tool",
            "name": asked.name,
            "content": text[: self._max_output],
            "tool_call_id": f"call{number:05d}",
        }

    async def _made(self, asked: ToolCall) -> Any:
        if asked.fault is not None:
            return {"error": asked.fault}
        if asked.name not in self._functions:
            return {"error": f"there is no tool {asked.name!r}; there are {', '.join(self._functions)}"}
        return await call(self._functions[asked.name], **asked.arguments)


def _find(name: str) -> Callable[..., Any]:
    what = f"rollout.workflow tools: the tool {name!r}"
    return BUILT_IN.get(name) or Named(name, what, "function", BUILT_IN, ConfigError).load()


def _schema(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Its description for chat templates, from annotations and docstring."""
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except Exception as error:
        raise ConfigError(
            f"rollout.workflow tools: the function {function.__name__} does not describe itself: {error} A "
            "tool has annotated parameters, and a docstring that says what it does and, under `Args:`, what "
            "each of them is."
        ) from error
    return schema
