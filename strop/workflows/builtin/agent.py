"""`agent`: trains an agent that uses an OpenAI client, without changes to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from strop.config.user_code import ImportPath
from strop.errors import ConfigError, MissingExtraError
from strop.inference.endpoint.request import CONTEXT_LENGTH_EXCEEDED
from strop.inference.endpoint.server import EndpointAccess
from strop.types import Task
from strop.workers.json_text import parse_json
from strop.workflows.chat import Chat
from strop.workflows.result import ContextLengthExceeded, InvalidWorkflowResult, WorkflowResult
from strop.workflows.threads import is_async, run_in_thread

_CommandResult = Literal["text", "reward", "exit_code"]
"""Meaning of a program's end: its standard output is the response, or ends with the reward, or the exit code is the
reward."""
_MAX_OUTPUT_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 2000
_STDERR_TAIL_CHARS = 500
_POLL_SECONDS = 0.05
_REST_SECONDS = 1.0
"""Time for the rest of the output after the program's end, and for the end of what it has started."""


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
        result: _CommandResult = "text",
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
        if result not in get_args(_CommandResult):
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


class AgentFailedError(RuntimeError):
    """A program has ended with an error, or was ended for it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program."""

    code: int | None
    """Exit code; None if the time limit ended the program."""
    output: str
    errors: str


class AgentCommand:
    """A program that one rollout starts.

    It gets the endpoint as OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and the task as JSON on standard input
    and in the file STROP_TASK_FILE. `{prompt}` in its arguments is the text of the task's last message, `{model}` the
    model's name, `{task_file}` the file's path.
    """

    def __init__(self, command: Sequence[str], time_limit: float | None, result: _CommandResult) -> None:
        """Raises `ConfigError` for a program that does not exist."""
        self._command = tuple(map(str, command))
        if shutil.which(self._command[0]) is None:
            raise ConfigError(
                f"rollout.workflow agent: there is no program {self._command[0]!r}. Write the name of a program on "
                "the PATH, or the path of a file that may be executed, as the first entry of `command`."
            )
        self._time_limit = time_limit
        self._result = result

    async def run(self, access: EndpointAccess, model: str, task: Task) -> WorkflowResult:
        """Run the program to its end. Raises `AgentFailedError` if it fails."""
        content = _task_as_json(task)
        with tempfile.TemporaryDirectory(prefix="strop-agent-") as folder:
            file = Path(folder) / "task.json"
            file.write_bytes(content)
            values = {"{prompt}": _prompt_text(task), "{model}": model, "{task_file}": str(file)}
            environment = {
                **os.environ,
                "OPENAI_BASE_URL": access.url,
                "OPENAI_API_KEY": access.api_key,
                "OPENAI_MODEL": model,
                "STROP_TASK_FILE": str(file),
            }
            ended = await self._execute(
                [_filled(argument, values) for argument in self._command], content, environment
            )
        return self._read(ended)

    async def _execute(self, command: Sequence[str], content: bytes, environment: Mapping[str, str]) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "strop.workers.supervised_command"),
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            start_new_session=True,
        )
        output, errors = bytearray(), bytearray()
        work = (
            _read_output(process, output),
            _read_errors(process, errors),
            _write(process, content),
            process.wait(),
        )
        tasks = [*map(asyncio.create_task, work)]
        in_time = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._time_limit):
                    while process.returncode is None:
                        await asyncio.sleep(_POLL_SECONDS)
                in_time = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()  # the supervisor kills all that the program has started
            try:
                await asyncio.wait(tasks, timeout=_REST_SECONDS)
            finally:
                for task in tasks:
                    task.cancel()
        if len(output) > _MAX_OUTPUT_BYTES:
            raise AgentFailedError(
                f"{self._command[0]} wrote more than {_MAX_OUTPUT_BYTES:,} bytes to its standard output; an agent "
                "writes its answer there, and its log to standard error"
            )
        text = output.decode(errors="replace").strip()
        last = " ".join(errors.decode(errors="replace").split())[-_STDERR_TAIL_CHARS:]
        return Ended(process.returncode if in_time else None, text, last)

    def _read(self, ended: Ended) -> WorkflowResult:
        if ended.code is None:
            reward = None if self._result == "text" else 0.0
            return WorkflowResult(
                text=ended.output, reward=reward, parts={"time_limit": 1.0} if reward == 0.0 else {}
            )
        if self._result == "exit_code":
            return WorkflowResult(text=ended.output, reward=float(ended.code == 0))
        if ended.code:
            raise AgentFailedError(f"{self._command[0]} ended with exit code {ended.code}: {ended.errors}")
        if self._result == "text":
            return WorkflowResult(text=ended.output)
        text, _, last = ended.output.rpartition("\n")
        return WorkflowResult(text=text, reward=_printed_reward(last))


def _printed_reward(line: str) -> float:
    """Reward in the last line of an output: a number, or a JSON object with `reward`."""
    with contextlib.suppress(ValueError):
        value = parse_json(line)
        value = value.get("reward") if isinstance(value, dict) else value
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    raise InvalidWorkflowResult(
        f"the last line of the agent's standard output is {line!r:.80}; with `result: reward` it is the reward, a "
        'number or {"reward": number}'
    )


def _filled(argument: str, values: Mapping[str, str]) -> str:
    """An argument with its placeholders replaced, each once: a prompt may contain the text of another."""
    for name, value in values.items():
        if name in argument:
            before, _, after = argument.partition(name)
            return _filled(before, values) + value + _filled(after, values)
    return argument


def _prompt_text(task: Task) -> str:
    content = task.messages[-1]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")


def _task_as_json(task: Task) -> bytes:
    """Id, messages, answer, source and other columns of a task."""
    columns: dict[str, Any] = {
        "id": task.id,
        "messages": list(task.messages),
        "answer": task.answer,
        "source": task.source,
        "extra": dict(task.extra),
    }
    return json.dumps(columns, ensure_ascii=False, default=str).encode()


async def _write(process: Process, content: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the program does not read its input
        process.stdin.write(content)
        await process.stdin.drain()
    process.stdin.close()


async def _read_output(process: Process, output: bytearray) -> None:
    """Read to the end; a program that writes too much is ended, and what it writes after that is dropped."""
    assert process.stdout is not None
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        if len(output) <= _MAX_OUTPUT_BYTES:
            output += chunk
        if len(output) > _MAX_OUTPUT_BYTES and process.returncode is None:
            process.terminate()


async def _read_errors(process: Process, errors: bytearray) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        errors += chunk
        del errors[:-_STDERR_TAIL_BYTES]
