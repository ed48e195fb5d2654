"""`openenv`: an environment of OpenEnv, with its tools, observations and rewards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from strop.config.user_code import ImportPath, construct
from strop.data.encoding.reply import ToolCall, tool_call_format
from strop.errors import ConfigError, MissingExtraError
from strop.types import Message, Task
from strop.workflows.chat import Chat
from strop.workflows.openenv_session import (
    EnvironmentSession,
    FactorySession,
    LocalServer,
    ServerOptions,
    ServerSession,
    action_schema,
    as_text,
)
from strop.workflows.result import ContextLengthExceeded, WorkflowResult
from strop.workflows.threads import run_in_thread
from strop.workflows.tool import OutputLimit

_WHERE = "rollout.workflow openenv"


class OpenEnvWorkflow:
    """Alternates between the model and an environment, until the environment or a reply ends the episode.

    An environment with tools gets the calls in a reply, one after the other, and a reply without a call ends the
    episode. Any other environment gets the text of each reply as its action.
    """

    def __init__(
        self,
        url: str | None = None,
        command: Sequence[str] | None = None,
        factory: str | None = None,
        args: Mapping[str, Any] | None = None,
        reset: Mapping[str, Any] | None = None,
        action: str | None = None,
        observation: str | None = None,
        reward: Literal["last", "sum"] = "last",
        api_key_env: str | None = None,
        max_turns: int = 16,
        max_output: int | None = 4000,
    ) -> None:
        """Exactly one of the first three.

        Args:
        url: address of a server that runs.
        command: program with arguments that starts a server on the port `{port}` of this machine.
        factory: `file.py:name` or dotted path of a factory of resource sessions, which `args` construct.
        args: arguments of the factory.
        reset: arguments of `reset`; a task's column `reset` adds to them.
        action: field of the action that gets the text of a reply.
        observation: field of the observation that the model gets; all fields without it.
        reward: `last` for the last reward of an episode, `sum` for a reward of each turn.
        api_key_env: environment variable with the server's bearer token.
        max_turns: maximum number of replies.
        max_output: maximum number of characters of an observation in the prompt; null for no limit.
        """
        if [url, command, factory].count(None) != 2:
            raise ConfigError(f"{_WHERE}: write exactly one of `url`, `command` and `factory`.")
        if reward not in ("last", "sum"):
            raise ConfigError(f"{_WHERE}: reward is {reward!r}; write last or sum.")
        if max_turns < 1:
            raise ConfigError(f"{_WHERE}: max_turns is {max_turns}; write 1 or more.")
        if args and factory is None:
            raise ConfigError(
                f"{_WHERE}: `args` are those of a factory; write `reset` for a server's environment."
            )
        self._max_turns = max_turns
        self._sums_rewards = reward == "sum"
        self._limit = OutputLimit(max_output, "right", True)
        self._factory: Any = None
        self._server: LocalServer | None = None
        if factory is not None:
            what = f"{_WHERE}: factory {factory!r}"
            make = ImportPath(factory, what, "factory", (), ConfigError).load()
            self._factory = construct(make, what, ConfigError, **dict(args or {}))
            if not callable(getattr(self._factory, "create", None)):
                raise ConfigError(
                    f"{what}: it has no method `create`. Name a class derived from openenv's ResourceSessionFactory, "
                    "or a function that returns such a factory."
                )
            return
        if find_spec("aiohttp") is None:
            raise MissingExtraError(
                f"{_WHERE}: a server needs the package aiohttp: pip install 'strop[agents]'"
            )
        self._url = "" if url is None else _address(url)
        if command is not None:
            self._server = LocalServer(_server_command(command), _WHERE)
            self._url = self._server.url()
        self._options = ServerOptions(
            dict(reset or {}), _headers(api_key_env), action, observation, self._sums_rewards
        )
        self._schema = action_schema(self._url, self._options.headers, _WHERE)
        fields = self._schema.get("properties", {})
        if action is not None and action not in fields:
            raise ConfigError(
                f"{_WHERE}: the environment's action has no field {action!r}; its fields are {', '.join(fields)}."
            )

    async def run(self, task: Task, chat: Chat) -> WorkflowResult:
        """One episode."""
        session = await self._open(chat)
        try:
            messages = await session.reset(task)
            chat = chat.start(messages, tuple(session.tools))
            rewards, last = await self._converse(chat, session)
            return await session.result(rewards, [*chat.messages, *last])
        finally:
            await session.close()

    async def _open(self, chat: Chat) -> EnvironmentSession:
        if self._factory is not None:
            return FactorySession(self._factory, chat.name)
        url = self._url if self._server is None else await run_in_thread(self._server.url)
        return ServerSession(url, self._schema, self._options)

    async def _converse(
        self, chat: Chat, session: EnvironmentSession
    ) -> tuple[list[float | None], list[Message]]:
        """The conversation; returns the reward of each turn, and the messages that the model has not replied to."""
        form = tool_call_format(chat.template) if session.tools else None
        rewards: list[float | None] = []
        new: list[Message] = []
        for _ in range(self._max_turns):
            try:
                await chat.reply(*new)
            except ContextLengthExceeded:
                return rewards, []
            rewards.append(None)
            if form is None:
                observed = await session.act(chat.content)
                new = [{"role": "user", "content": self._limit.apply(observed.text)}]
                rewards[-1], is_done = observed.reward, observed.is_done
            else:
                new, rewards[-1], is_done = await self._answer(chat.parse_calls(form).calls, session)
            if is_done:
                break
        return rewards, new

    async def _answer(
        self, calls: Sequence[ToolCall], session: EnvironmentSession
    ) -> tuple[list[Message], float | None, bool]:
        """The messages that answer a reply's calls, their reward, and whether the episode is over."""
        names = [tool["function"]["name"] for tool in session.tools]
        messages: list[Message] = []
        reward, is_done = None, not calls
        for number, call in enumerate(calls):
            if call.parse_error is not None:
                text = as_text({"error": call.parse_error})
            elif call.name not in names:
                text = as_text({"error": f"there is no tool {call.name!r}; the tools are {', '.join(names)}"})
            else:
                observed = await session.call(call.name, call.arguments)
                text, is_done = self._limit.apply(observed.text), observed.is_done
                reward = self._combined(reward, observed.reward)
            identifier = f"call{number:05d}"
            messages.append({"role": "tool", "name": call.name, "content": text, "tool_call_id": identifier})
            if is_done:
                break
        return messages, reward, is_done

    def _combined(self, earlier: float | None, reward: float | None) -> float | None:
        """Reward of a turn with another call."""
        if earlier is None or reward is None:
            return earlier if reward is None else reward
        return earlier + reward if self._sums_rewards else reward


def _address(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{_WHERE}: url is {url!r}; write an address such as http://host:8000.")
    return url.rstrip("/")


def _server_command(command: Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        raise ConfigError(f"{_WHERE}: write the command as a list: {command.split()}.")
    if not any("{port}" in str(argument) for argument in command):
        raise ConfigError(
            f"{_WHERE}: the command has no {{port}}; write it where the server reads its port, or start the server "
            "yourself and write its `url`."
        )
    return tuple(map(str, command))


def _headers(api_key_env: str | None) -> dict[str, str]:
    if api_key_env is None:
        return {}
    token = os.environ.get(api_key_env)
    if not token:
        raise ConfigError(f"{_WHERE}: the environment variable {api_key_env} of api_key_env is not set.")
    return {"Authorization": f"Bearer {token}"}
