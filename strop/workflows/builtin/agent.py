"""`agent`: trains an agent that uses an OpenAI client, without changes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from strop.config.user_code import ImportPath
from strop.errors import ConfigError, MissingExtraError
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED
from strop.inference.endpoint.server import EndpointAccess
from strop.types import Task
from strop.workflows.agent_command import AgentCommand, AgentFailedError, CommandResult
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded
from strop.workflows.threads import is_async, run_in_thread


class AgentWorkflow:
    """Runs a function or a command that calls the model through the endpoint; its calls become the turns.

    The function is called as `function(task, client, **args)` with an `openai.OpenAI` client or, if it is
    `async`, an `openai.AsyncOpenAI`; it may return whatever a workflow may return. `AgentCommand` describes what a
    command gets.
    """

    def __init__(
        self,
        function: str | None = None,
        command: Sequence[str] | None = None,
        args: Mapping[str, Any] | None = None,
        time_limit: float | None = None,
        result: CommandResult = "text",
    ) -> None:
        """Exactly one of `function` and `command`.

        Args:
        function: dotted path or `file.py:name`, with `args`.
        command: a program with arguments.
        time_limit: seconds after which the command is ended; its calls until then are trained on. null for none.
        result: `text` if the command's standard output is the response, `reward` if its last line is the reward,
            `exit_code` if exit code 0 has reward 1, and any other 0.
        """
        if (function is None) == (command is None):
            raise ConfigError(
                "rollout.workflow agent: write exactly one of `function: file.py:name` and "
                "`command: [python, agent.py]`."
            )
        if isinstance(command, str):
            raise ConfigError(f"rollout.workflow agent: write the command as a list: {command.split()}.")
        if args and command is not None:
            raise ConfigError(
                "rollout.workflow agent: `args` applies to a function; write them into the command."
            )
        if command is None and (time_limit is not None or result != "text"):
            raise ConfigError("rollout.workflow agent: `time_limit` and `result` apply to a command.")
        if command is not None and not command:
            raise ConfigError(
                "rollout.workflow agent: the command is empty; write a program and its arguments."
            )
        if time_limit is not None and time_limit <= 0:
            raise ConfigError(f"rollout.workflow agent: time_limit is {time_limit}; write seconds above 0.")
        if result not in get_args(CommandResult):
            raise ConfigError(
                f"rollout.workflow agent: result is {result!r}; write text, reward or exit_code."
            )
        self._command = None if command is None else AgentCommand(command, time_limit, result)
        self._args = dict(args or {})
        self._clients: dict[bool, Any] = {}
        """Clients, async or not, whose connections all rollouts share: creating one takes 20 ms."""
        self._function: Callable[..., Any] | None = None
        if function is not None:
            what = f"rollout.workflow agent {function!r}"
            self._function = ImportPath(function, what, "function", (), ConfigError).load()

    async def run(self, task: Task, chat: Chat) -> Any:
        """One run of the agent."""
        with chat.serve() as access:
            if self._command is not None:
                try:
                    return await self._command.run(access, chat.policy_name, task)
                except AgentFailedError as error:
                    if chat.is_truncated:
                        raise ContextLengthExceeded(str(error)) from error
                    raise
            assert self._function is not None
            return await self._call(self._function, access, task)

    async def _call(self, function: Callable[..., Any], access: EndpointAccess, task: Task) -> Any:
        openai = _openai()
        try:
            client = self._client(openai, access, is_async(function))
            if is_async(function):
                return await function(task, client, **self._args)
            return await run_in_thread(function, task, client, **self._args)
        except openai.BadRequestError as error:
            if error.code == CONTEXT_LENGTH_EXCEEDED:
                raise ContextLengthExceeded(str(error)) from error
            raise

    def _client(self, openai: Any, access: EndpointAccess, asynchronous: bool) -> Any:
        """A client for one rollout. All rollouts of a run have one event loop, so they share connections."""
        if asynchronous not in self._clients:
            make = openai.AsyncOpenAI if asynchronous else openai.OpenAI
            self._clients[asynchronous] = make(base_url=access.url, api_key=access.api_key, timeout=None)
        return self._clients[asynchronous].with_options(base_url=access.url, api_key=access.api_key)


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError(
            "The agent workflow creates a client of the package openai. Install it: "
            "pip install 'strop[agents]'"
        ) from error
    return openai
