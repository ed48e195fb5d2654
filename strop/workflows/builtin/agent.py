"""`agent`: trains an agent that uses an OpenAI client, without changes to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.config.user_code import ImportPath
from strop.errors import ConfigError, MissingExtraError
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED
from strop.inference.endpoint.server import EndpointAccess
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded
from strop.workflows.threads import is_async, run_in_thread

_STDERR_TAIL_CHARS = 500


class AgentWorkflow:
    """Runs a function or a command that calls the model through the endpoint; its calls become the turns.

    The function is called as `function(task, client, **args)` with an `openai.OpenAI` client or, if it is
    `async`, an `openai.AsyncOpenAI`; it may return whatever a workflow may return. The command gets the task as
    JSON on standard input, and the address and the key as OPENAI_BASE_URL and OPENAI_API_KEY; its standard
    output is the response, which the run's reward scores.
    """

    def __init__(
        self,
        function: str | None = None,
        command: Sequence[str] | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Exactly one of `function`, a dotted path or `file.py:name`, and `command`, a program with arguments."""
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
        self._command = None if command is None else tuple(map(str, command))
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
                return await _run_command(self._command, access, _task_as_json(task))
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


async def _run_command(command: Sequence[str], access: EndpointAccess, task: bytes) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": access.url, "OPENAI_API_KEY": access.api_key},
        start_new_session=True,  # so that its own child processes end with it
    )
    try:
        output, errors = await process.communicate(task)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        last = " ".join(errors.decode(errors="replace").split())[-_STDERR_TAIL_CHARS:]
        raise RuntimeError(f"{command[0]} ended with exit code {process.returncode}: {last}")
    return output.decode(errors="replace").strip()


def _task_as_json(task: Task) -> bytes:
    """Id, messages, answer, source and other columns of a task."""
    columns = {
        "id": task.id,
        "messages": list(task.messages),
        "answer": task.answer,
        "source": task.source,
        "extra": dict(task.extra),
    }
    return json.dumps(columns, ensure_ascii=False, default=str).encode()


def _openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError(
            "The agent workflow creates a client of the package openai. Install it: "
            "pip install 'strop[agents]'"
        ) from error
    return openai
