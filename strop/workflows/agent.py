"""An agent that was written against OpenAI's client, trained as it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.config.imports import Named
from strop.errors import ConfigError, MissingExtraError
from strop.inference.endpoint.request import TOO_LONG
from strop.inference.endpoint.server import Access
from strop.types import Task
from strop.workflows.chat import Chat
from strop.workflows.outcome import OutOfRoom
from strop.workflows.threads import in_thread, is_async

_LAST_WORDS = 500


class Agent:
    """A function or a command that talks to the model through the endpoint. Its calls become the turns.

    The function is called as `function(task, client, **args)` with an `openai.OpenAI` client, or, where it
    is `async`, an `openai.AsyncOpenAI`; what it returns is what a workflow may return. The command gets the
    task as JSON on standard input, and the address and the key as OPENAI_BASE_URL and OPENAI_API_KEY; what
    it prints is the answer, which the run's reward scores.
    """

    def __init__(
        self,
        function: str | None = None,
        command: Sequence[str] | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """One of `function`, a dotted path or `file.py:name`, and `command`, a program and its arguments."""
        if (function is None) == (command is None):
            raise ConfigError(
                "rollout.workflow agent: write one of `function: file.py:name` and "
                "`command: [python, agent.py]`."
            )
        if isinstance(command, str):
            raise ConfigError(f"rollout.workflow agent: write the command as a list: {command.split()}.")
        if args and command is not None:
            raise ConfigError("rollout.workflow agent: `args` are a function's; write them into the command.")
        self._command = None if command is None else tuple(map(str, command))
        self._args = dict(args or {})
        self._client: Any = None
        """Shares its connections with the clients of all rollouts: making one takes 20 ms."""
        self._function: Callable[..., Any] | None = None
        if function is not None:
            what = f"rollout.workflow agent {function!r}"
            self._function = Named(function, what, "function", (), ConfigError).load()

    async def run(self, task: Task, chat: Chat) -> Any:
        """One run of the agent."""
        with chat.serve() as access:
            if self._command is not None:
                return await _run_command(self._command, access, _task_as_json(task))
            assert self._function is not None
            return await self._call(self._function, access, task)

    async def _call(self, function: Callable[..., Any], access: Access, task: Task) -> Any:
        openai = _openai()
        try:
            if is_async(function):
                # Its connections belong to the event loop, of which each step has a new one.
                async with openai.AsyncOpenAI(
                    base_url=access.url, api_key=access.key, timeout=None
                ) as client:
                    return await function(task, client, **self._args)
            if self._client is None:
                self._client = openai.OpenAI(base_url=access.url, api_key=access.key, timeout=None)
            client = self._client.with_options(base_url=access.url, api_key=access.key)
            return await in_thread(function, task, client, **self._args)
        except openai.BadRequestError as error:
            if error.code == TOO_LONG:
                raise OutOfRoom(str(error)) from error
            raise


async def _run_command(command: Sequence[str], access: Access, given: bytes) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": access.url, "OPENAI_API_KEY": access.key},
        start_new_session=True,  # so that what it starts ends with it
    )
    try:
        said, complaints = await process.communicate(given)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        last = " ".join(complaints.decode(errors="replace").split())[-_LAST_WORDS:]
        raise RuntimeError(f"{command[0]} ended with exit code {process.returncode}: {last}")
    return said.decode(errors="replace").strip()


def _task_as_json(task: Task) -> bytes:
    """Its id, messages, answer, source and columns."""
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
            "An agent's function is given a client of the package openai. Install it: "
            "pip install 'strop[agents]'"
        ) from error
    return openai
