"""`tools`: tool calling; the model may call tools, and talk to a simulated user, before its final response."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

from strop.data.encoding.reply import ToolCall, ToolCallFormat, tool_call_format
from strop.errors import ConfigError
from strop.extensions import extension
from strop.types import Message, Task
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded, InvalidWorkflowResult, WorkflowResult
from strop.workflows.tool import (
    AgentData,
    Lifetime,
    OutputLimit,
    Tool,
    ToolSession,
    TruncatedSide,
    load_function_tool,
)


class ToolCallingWorkflow:
    """Describes the tools to the model through its chat template, and runs the calls in its replies.

    A tool is a Python function, with or without `async`, whose annotations and docstring describe it, or a class
    with verl's interface, from a configuration file. Its result, or the error that it raises, is returned to the
    model as a message of the role `tool`. A reply without a call is the final response, which the run's reward
    scores; with an interaction, a simulated user answers it. Only replies are trained on.
    """

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        tool_config: str | None = None,
        function_file: str | None = None,
        interaction_config: str | None = None,
        max_turns: int | None = 8,
        max_user_turns: int | None = None,
        max_calls: int | None = None,
        max_new_tokens: int | None = None,
        form: Literal["auto"] | ToolCallFormat = "auto",
        malformed: Literal["answer", "ignore"] = "answer",
        max_output: int | None = 4000,
        truncated_side: TruncatedSide = "right",
        mark_truncation: bool = False,
        lifetime: Lifetime = "rollout",
        scored: Literal["reply", "response"] = "reply",
    ) -> None:
        """Args:
        tools: `calculator`, dotted paths, or `file.py:function`; `calculator` if nothing else names a tool.
        tool_config: YAML file of tool classes, in verl's format.
        function_file: Python file whose functions are marked by verl's `@function_tool`.
        interaction_config: YAML file of interactions, in verl's format; a task names one of them.
        max_turns: maximum number of replies; null for no limit.
        max_user_turns: maximum number of times that the model gets tool messages or a user's message.
        max_calls: maximum number of calls of one reply that are executed; further calls are ignored.
        max_new_tokens: maximum number of tokens after the prompt, replies and messages together.
        form: format of calls; `auto` reads it from the chat template.
        malformed: treatment of a call that cannot be parsed: `answer` returns the error to the model, `ignore`
            takes it for text.
        max_output: maximum number of characters of a tool's output in the prompt; null for no limit.
        truncated_side: part of a longer output that is removed.
        mark_truncation: whether a text marks where something is removed.
        lifetime: lifetime of a tool class's instance, the rollout or one call.
        scored: text that the run's reward scores: the last `reply`, or the whole `response` after the prompt,
            with the messages in it.
        """
        for name, value in (("max_turns", max_turns), ("max_calls", max_calls)):
            if value is not None and value < 1:
                raise ConfigError(f"rollout.workflow tools: {name} is {value}; write 1 or more.")
        _check_choice("form", form, ("auto", *get_args(ToolCallFormat)))
        _check_choice("malformed", malformed, ("answer", "ignore"))
        _check_choice("truncated_side", truncated_side, get_args(TruncatedSide))
        _check_choice("lifetime", lifetime, get_args(Lifetime))
        _check_choice("scored", scored, ("reply", "response"))
        if tools is None:
            named = tool_config or function_file or interaction_config
            tools = () if named else ("calculator",)
        found: list[Tool] = [load_function_tool(name) for name in tools]
        self._users: dict[str, Any] = {}
        if tool_config or function_file or interaction_config:
            files = import_module(extension("verl").tool_files)
            found += [] if tool_config is None else files.load_tools(tool_config, lifetime)
            found += [] if function_file is None else files.load_function_tools(function_file)
            self._users = {} if interaction_config is None else files.load_interactions(interaction_config)
        self._tools = _by_name(found)
        self._max_turns = max_turns
        self._max_user_turns = max_user_turns
        self._max_calls = max_calls
        self._max_new_tokens = max_new_tokens
        self._form = form
        self._ignores_malformed = malformed == "ignore"
        self._output = OutputLimit(max_output, truncated_side, mark_truncation)
        self._selects_by_kwargs = lifetime == "rollout"
        self._scores_response = scored == "response"

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """Alternate between replies and the messages that answer them, until a reply is final."""
        options = TaskOptions.of(task)
        tools = self._selected(options)
        data = AgentData(chat.name, [dict(m) for m in task.messages], dict(options.tools_kwargs))
        session = ToolSession(tools, data, self._output)
        user = _select_interaction(self._users, options.interaction_kwargs, data)
        schemas = (*task.tools, *(tool.schema for tool in tools))
        chat = chat.start(task.messages, schemas, self._max_new_tokens)
        scores: dict[str, float] = {}
        try:
            await session.open()
            if user is not None:
                await user.open()
            await self._converse(chat, session, user, data)
        finally:
            try:
                scores = await session.close()
            finally:
                if user is not None:
                    await user.close()
        return WorkflowResult(
            text=chat.response if self._scores_response else None,
            parts={f"tool/{name}": value for name, value in scores.items()},
            info=_reward_info(data, scores) if self._scores_response else {},
        )

    async def _converse(
        self, chat: Chat, session: ToolSession, user: InteractionSession | None, data: AgentData
    ) -> None:
        form = tool_call_format(chat.template) if self._form == "auto" else self._form
        new: list[Message] = []
        while True:
            try:
                text = await chat.reply(*new)
            except ContextLengthExceeded:
                return
            data.assistant_turns += 1
            data.messages.append({"role": "assistant", "content": text})
            if self._is_last(chat, data):
                return
            if calls := self._calls(chat, form):
                new = await session.answer(calls[: self._max_calls])
            elif user is not None:
                message = await user.respond()
                if message.ends:
                    return
                new = [{"role": "user", "content": message.text}]
            else:
                return
            data.user_turns += 1
            data.messages += [dict(message) for message in new]

    def _is_last(self, chat: Chat, data: AgentData) -> bool:
        """Whether the limits allow no further reply, or the reply ended at one."""
        assert chat.turn is not None
        return (
            chat.turn.finish_reason == "length"
            or data.assistant_turns == self._max_turns
            or (self._max_user_turns is not None and data.user_turns >= self._max_user_turns)
        )

    def _calls(self, chat: Chat, form: ToolCallFormat) -> tuple[ToolCall, ...]:
        calls = chat.parse_calls(form).calls
        if not self._ignores_malformed:
            return calls
        return tuple(call for call in calls if call.parse_error is None)

    def _selected(self, options: TaskOptions) -> list[Tool]:
        """The tools of a task: those that it selects; with instances for the rollout, those for which it has
        options; otherwise all."""
        names = options.tool_selection
        if names is None and self._selects_by_kwargs:
            names = tuple(options.tools_kwargs) or None
        return [tool for tool in self._tools if names is None or tool.name in names]


def _reward_info(data: AgentData, scores: dict[str, float]) -> dict[str, Any]:
    """Values for reward functions, by the names that verl has in `extra_info`."""
    return {
        **data.extra_fields,
        "num_turns": data.assistant_turns + data.user_turns + 1,
        "tool_rewards": data.tool_rewards,
        "turn_scores": data.turn_scores,
        "rollout_reward_scores": {**scores, "user_turn_rewards": data.turn_scores},
    }


def _by_name(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    names = [tool.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"rollout.workflow tools: two tools have the name {twice!r}; give one another name."
        )
    return tuple(tools)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"rollout.workflow tools: {name} is {value!r}; write {', '.join(choices[:-1])} or {choices[-1]}."
        )


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of one task. Keys with null values, which Parquet adds, are removed."""

    tools_kwargs: Mapping[str, Any]
    """`create_kwargs`, `execute_kwargs`, `calc_reward_kwargs` and `release_kwargs` by tool."""
    interaction_kwargs: Mapping[str, Any]
    """`name` of the interaction, and arguments of its methods."""
    tool_selection: tuple[str, ...] | None
    """Names of the tools that the model may call; None for all tools."""

    @classmethod
    def of(cls, task: Task) -> TaskOptions:
        """Options in the column `extra_info`, or in columns of these names."""
        extra_info = task.extra.get("extra_info")
        inside = extra_info if isinstance(extra_info, Mapping) else {}

        def column(name: str) -> Any:
            return inside.get(name) or task.extra.get(name)

        selection = column("tool_selection")
        return cls(
            _without_nulls(column("tools_kwargs") or {}),
            _without_nulls(column("interaction_kwargs") or {}),
            None if selection is None else tuple(selection),
        )


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Response of a simulated user."""

    text: str
    ends: bool
    """Whether the conversation ends, without this message."""


class InteractionSession:
    """A simulated user within one rollout."""

    def __init__(self, user: Any, options: Mapping[str, Any], data: AgentData) -> None:
        """`user` is an object with verl's interface; `options` are the task's `interaction_kwargs`."""
        self._user = user
        self._options = options
        self._data = data

    async def open(self) -> None:
        """Create the instance."""
        await self._user.start_interaction(self._data.request_id, **self._options)

    async def respond(self) -> UserMessage:
        """Response to the conversation so far. Raises InvalidWorkflowResult for a value of another form."""
        messages = [dict(message) for message in self._data.messages]
        returned = await self._user.generate_response(self._data.request_id, messages, **self._options)
        if not isinstance(returned, tuple) or len(returned) != 4 or not isinstance(returned[1], str):
            raise InvalidWorkflowResult(
                f"generate_response of the interaction returned {returned!r:.80}; it must return (whether the "
                "conversation ends, text, score, dict)"
            )
        ends, text, score, _ = returned
        if score is not None:
            self._data.turn_scores.append(float(score))
        return UserMessage(text, bool(ends))

    async def close(self) -> None:
        """Release the instance."""
        finalize = getattr(self._user, "finalize_interaction", None)
        if finalize is None:
            return
        takes_id = bool(inspect.signature(finalize).parameters)
        await (finalize(self._data.request_id) if takes_id else finalize())


def _select_interaction(
    users: Mapping[str, Any], options: Mapping[str, Any], data: AgentData
) -> InteractionSession | None:
    """The interaction that a task names, or the only one there is; None for a task without options.

    Raises InvalidWorkflowResult for a name that does not exist.
    """
    if not users or not options:
        return None
    name = options.get("name", next(iter(users)) if len(users) == 1 else None)
    if name not in users:
        raise InvalidWorkflowResult(
            f"the task's extra_info.interaction_kwargs.name is {name!r}; the interactions are "
            f"{', '.join(users)}"
        )
    return InteractionSession(users[name], options, data)
