"""Sessions with environments of OpenEnv: of a server, which a run may start, and of a Python factory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from strop.data.encoding.messages import to_messages
from strop.errors import ConfigError
from strop.seeds import derive_seed
from strop.types import Message, Task
from strop.workers.json_text import parse_json
from strop.workers.threads import run_coroutine
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult
from strop.workflows.threads import run_in_thread

if TYPE_CHECKING:
    import aiohttp

_STEP_TOOL = "step"
"""Tool that executes an action of several fields."""
_DESCRIBE_SECONDS = 30.0
_PING_SECONDS = 30.0
_MAX_MESSAGE_BYTES = 32 << 20
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 2.0
_MAX_SEED = 1 << 31
_START_SECONDS = 120.0
_PAUSE_SECONDS = 0.1
_SHOWN_CHARACTERS = 800
_CHUNK_BYTES = 1 << 16
_TRIES = 3
"""Starts on different ports. The first one is reserved, which a server may refuse; another process may take a later
one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Answer of an environment to one action."""

    text: str
    """Text that the model gets."""
    reward: float | None
    """Reward of the action; None if the environment gives none."""
    is_done: bool


class EnvironmentSession(Protocol):
    """One episode in an environment."""

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Descriptions of the actions in the format of OpenAI's `tools`; empty if a reply's text is the action."""

    async def reset(self, task: Task) -> Sequence[Message]:
        """Start the episode; returns the model's prompt."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Execute a tool call."""

    async def act(self, text: str) -> Observation:
        """Execute an action that is a text."""

    async def result(self, rewards: Sequence[float | None], messages: Sequence[Message]) -> WorkflowResult:
        """Reward of the episode; `rewards` has one per turn, and `messages` is the conversation."""

    async def close(self) -> None:
        """End the session."""


def _with_observation(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with a text at the end of the last user message, or as one."""
    if not text:
        return list(messages)
    if not messages or messages[-1]["role"] != "user" or not isinstance(messages[-1]["content"], str):
        return [*messages, {"role": "user", "content": text}]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{text}"}]


def _observation_text(observation: Mapping[str, Any], field: str | None) -> str:
    """Text of an observation: the named field; a tool's result; the only value, if it is text; or all as JSON."""
    if "tool_name" in observation:
        return _tool_text(observation)
    shown = {k: v for k, v in observation.items() if k != "metadata" and v not in (None, "", [], {})}
    if field is not None:
        if field not in observation:
            raise InvalidWorkflowResult(
                f"the environment's observation has no field {field!r}; its fields are {', '.join(observation)}"
            )
        shown = {field: observation[field]}
    return as_text(next(iter(shown.values())) if len(shown) == 1 else shown) if shown else ""


def as_text(value: Any) -> str:
    """A text as it is, nothing as the empty text, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _to_reward(value: Any) -> float | None:
    """Reward of an action. Raises `InvalidWorkflowResult` if it is no finite number."""
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidWorkflowResult(f"the environment's reward is {value!r}; a reward is a finite number")
    return float(value)


def _tool_text(observation: Mapping[str, Any]) -> str:
    """Text of a tool's result, which is the result of an MCP server, or of the error."""
    if (error := observation.get("error")) is not None:
        return as_text({"error": error.get("message") if isinstance(error, Mapping) else error})
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        parts = [part for part in result["content"] if isinstance(part, Mapping)]
        return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")
    return as_text(result)


class ServerError(RuntimeError):
    """An error that the server reports, or the loss of the connection."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a run for the environment of a server."""

    reset: Mapping[str, Any]
    """Arguments of `reset`, for all tasks."""
    headers: Mapping[str, str]
    action: str | None
    """Field of the action that is the reply's text; None to read it from the server's schema."""
    observation: str | None
    """Field of the observation that the model gets; None for all."""
    sums_rewards: bool
    """Whether the episode's reward is the sum of all actions' rewards, instead of the last one."""


def action_schema(url: str, headers: Mapping[str, str], where: str) -> Mapping[str, Any]:
    """JSON Schema of the server's actions. Raises `ConfigError` for a server that does not answer as one of OpenEnv."""
    return run_coroutine(_action_schema(url, headers, where))


async def _action_schema(url: str, headers: Mapping[str, str], where: str) -> Mapping[str, Any]:
    import aiohttp

    try:
        async with (
            asyncio.timeout(_DESCRIBE_SECONDS),
            aiohttp.ClientSession() as http,
            http.get(f"{url}/schema", headers=headers, raise_for_status=True) as response,
        ):
            schema = parse_json(await response.text())["action"]
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{where}: {url}/schema does not answer as a server of OpenEnv: {type(error).__name__}: {error}. Write "
            "the address of a server that runs, as http://host:port."
        ) from error
    return schema if isinstance(schema, dict) else {}


def text_field(schema: Mapping[str, Any]) -> str | None:
    """Name of an action's only required field, if it is text."""
    required = schema.get("required") or []
    properties = schema.get("properties") or {}
    if len(required) == 1 and properties.get(required[0], {}).get("type") == "string":
        return str(required[0])
    return None


class ServerSession:
    """One episode over one connection."""

    def __init__(self, url: str, schema: Mapping[str, Any], options: ServerOptions) -> None:
        self._url = url
        self._schema = schema
        self._options = options
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._mcp_tools: list[Mapping[str, Any]] = []

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The environment's MCP tools, or a tool whose parameters are the fields of an action."""
        if self._mcp_tools or self._text_field is not None:
            return self._mcp_tools
        fields = {k: v for k, v in self._schema.get("properties", {}).items() if k != "metadata"}
        parameters = {"type": "object", "properties": fields, "required": self._schema.get("required", [])}
        if "$defs" in self._schema:
            parameters["$defs"] = self._schema["$defs"]
        description = self._schema.get("description") or "Execute an action in the environment."
        return [_tool(_STEP_TOOL, description, parameters)]

    @property
    def _text_field(self) -> str | None:
        return self._options.action or text_field(self._schema)

    async def reset(self, task: Task) -> Sequence[Message]:
        """Connect, and start the task's episode: the task's column `reset` adds to the arguments of the run file, and
        all rollouts of a task have the same seed."""
        own = task.extra.get("reset") or {}
        if not isinstance(own, Mapping):
            raise InvalidWorkflowResult(
                f"the column `reset` of the task {task.id} is {own!r:.80}; write a mapping"
            )
        arguments = {"seed": derive_seed(0, task.id) % _MAX_SEED, **self._options.reset, **own}
        answer = await self._connect(arguments)
        self._mcp_tools = await self._list_tools()
        return _with_observation(task.messages, self._observation(answer).text)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call an MCP tool, or execute an action whose fields are the arguments."""
        if self._mcp_tools:
            return await self._step({"type": "call_tool", "tool_name": name, "arguments": dict(arguments)})
        return await self._step(dict(arguments))

    async def act(self, text: str) -> Observation:
        """Execute the action whose text is the reply."""
        assert self._text_field is not None
        return await self._step({self._text_field: text})

    async def result(self, rewards: Sequence[float | None], messages: Sequence[Message]) -> WorkflowResult:
        """The last reward, or one for each turn; none if the environment gave none."""
        given = [reward for reward in rewards if reward is not None]
        if not given:
            return WorkflowResult()
        if self._options.sums_rewards:
            return WorkflowResult(turn_rewards=[reward or 0.0 for reward in rewards])
        return WorkflowResult(reward=given[-1])

    async def close(self) -> None:
        """End the session at the server."""
        if self._socket is not None and not self._socket.closed:
            await self._socket.send_json({"type": "close"})
            await self._socket.close()
        if self._http is not None:
            await self._http.close()

    async def _connect(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Connect and reset. A server with as many sessions as it allows is asked again."""
        import aiohttp

        self._http = aiohttp.ClientSession(headers=self._options.headers)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._socket = await self._http.ws_connect(
                    f"{self._url}/ws", heartbeat=_PING_SECONDS, max_msg_size=_MAX_MESSAGE_BYTES
                )
            except aiohttp.ClientError as error:
                raise ServerError(f"the server {self._url} cannot be reached: {error}") from error
            try:
                return await self._request("reset", arguments)
            except ServerError as error:
                if error.code != "CAPACITY_REACHED":
                    raise
            await self._socket.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _list_tools(self) -> list[Mapping[str, Any]]:
        answer = await self._request("mcp", {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1})
        result = answer.get("result")
        if not isinstance(result, Mapping):  # the environment has no MCP tools
            return []
        return [
            _tool(
                str(tool["name"]),
                str(tool.get("description") or ""),
                tool.get("inputSchema") or tool.get("input_schema") or {"type": "object", "properties": {}},
            )
            for tool in result.get("tools", [])
        ]

    async def _step(self, action: Mapping[str, Any]) -> Observation:
        try:
            return self._observation(await self._request("step", action))
        except ServerError as error:
            if error.code != "VALIDATION_ERROR":
                raise
            return Observation(as_text({"error": str(error)}), None, False)

    def _observation(self, answer: Mapping[str, Any]) -> Observation:
        observed = answer.get("observation")
        if not isinstance(observed, Mapping):
            raise InvalidWorkflowResult(
                f"the server {self._url} answered without an observation: {answer!r:.200}"
            )
        text = _observation_text(observed, self._options.observation)
        return Observation(text, _to_reward(answer.get("reward")), answer.get("done") is True)

    async def _request(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a message; returns the data of the answer. Raises `ServerError`."""
        import aiohttp

        assert self._socket is not None
        try:
            await self._socket.send_json({"type": kind, "data": data})
            message = await self._socket.receive()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ServerError(f"the connection to the server {self._url} is lost: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            reason = message.extra or message.data or message.type.name
            raise ServerError(f"the server {self._url} has closed the connection ({kind}): {reason}")
        try:
            answer = parse_json(message.data)
            content = answer["data"]
            failed = answer["type"] == "error"
        except (ValueError, KeyError, TypeError):
            raise ServerError(
                f"the server {self._url} does not speak OpenEnv: {message.data!r:.200}"
            ) from None
        if not isinstance(content, Mapping):
            raise ServerError(f"the server {self._url} does not speak OpenEnv: {message.data!r:.200}")
        if failed:
            details = f" {as_text(content['errors'])}" if content.get("errors") else ""
            raise ServerError(f"{content.get('message')}{details}", str(content.get("code", "")))
        return content


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


class FactorySession:
    """A `ResourceSession`, whose methods block and run in threads; its `verify` gives the reward."""

    def __init__(self, factory: Any, name: str) -> None:
        self._factory = factory
        self._name = name
        self._session: Any = None
        self.tools: Sequence[Mapping[str, Any]] = ()

    async def reset(self, task: Task) -> Sequence[Message]:
        """Create the session from the task's prompt, with the same seed for all rollouts of a task."""
        seed = derive_seed(0, task.id) % _MAX_SEED
        self._session = await run_in_thread(
            self._factory.create, task.prompt_value, seed=seed, episode_id=self._name
        )
        self.tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in await run_in_thread(self._session.list_tools)
        ]
        return to_messages(
            await run_in_thread(self._session.initial_messages), "The session's initial messages"
        )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool of the session."""
        result = await run_in_thread(self._session.call_tool, name, dict(arguments))
        text = as_text({"error": result.error} if result.data is None and result.error else result.data)
        return Observation(text, None, bool(result.done))

    async def act(self, text: str) -> Observation:
        """A session without tools ends with the first reply."""
        return Observation("", None, True)

    async def result(self, rewards: Sequence[float | None], messages: Sequence[Message]) -> WorkflowResult:
        """Reward and metrics of `verify`."""
        verified = await run_in_thread(self._session.verify, [dict(message) for message in messages])
        numbers = {k: v for k, v in (verified.metrics or {}).items() if isinstance(v, Real)}
        parts = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
        return WorkflowResult(reward=_to_reward(verified.env_reward), parts=parts)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await run_in_thread(self._session.close)


class LocalServer:
    """A server in a process of its own, which starts again if it has ended. It ends with this object or its process.

    `command` has `{port}` where the server reads its port.
    """

    def __init__(self, command: Sequence[str], where: str) -> None:
        """Start the server. Raises `ConfigError` if it does not answer; `where` is the place that names it."""
        self._command = command
        self._where = where
        self._lock = threading.Lock()
        self._start()

    def url(self) -> str:
        """Address of the server, which starts if it has ended; blocks until it answers. Raises `ConfigError`."""
        with self._lock:
            if self._process.poll() is not None:
                self._start()
            return self._url

    def close(self) -> None:
        """End the server."""
        self._end()

    def _start(self) -> None:
        for attempt in range(_TRIES):
            with socket.socket() as reserved:
                if attempt == 0:  # a server without SO_REUSEADDR, as most have it, gets a free port next time
                    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    reserved.bind(("127.0.0.1", 0))
                    port = reserved.getsockname()[1]
                else:
                    port = _free_port()
                self._url = f"http://127.0.0.1:{port}"
                command = [argument.replace("{port}", str(port)) for argument in self._command]
                started: Future[subprocess.Popen[bytes]] = Future()
                output: deque[bytes] = deque(maxlen=2)
                reader = threading.Thread(target=_run, args=(command, started, output), daemon=True)
                reader.start()
                self._process = started.result()
                self._end = weakref.finalize(self, _terminate, self._process)
                if self._answers():
                    return
            ended = self._process.poll()
            self._end()
            reader.join()
            shown = " ".join(b"".join(output).decode(errors="replace").split())[-_SHOWN_CHARACTERS:]
            if ended is None or "in use" not in shown or attempt == _TRIES - 1:
                what = f"has not answered within {_START_SECONDS:.0f} s" if ended is None else "ended"
                code = "" if ended is None else f" with exit code {ended}"
                raise ConfigError(f"{self._where}: the server {command[0]} {what}{code}. Its output: {shown}")

    def _answers(self) -> bool:
        """Whether the server answers before it ends, within the time limit."""
        opener = build_opener(ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(URLError, OSError), opener.open(f"{self._url}/health", timeout=5):
                return True
            time.sleep(_PAUSE_SECONDS)
        return False


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # the supervisor kills all descendants
    process.wait()


def _run(command: Sequence[str], started: Future[subprocess.Popen[bytes]], output: deque[bytes]) -> None:
    """Start a server and read its output to the end: the thread that starts it has to live as long as the server."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "strop.workers.supervised_command", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        started.set_exception(error)
        return
    started.set_result(process)
    assert process.stdout is not None
    with process.stdout as pipe:
        while chunk := pipe.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
            output.append(chunk)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
