"""Sessions with a server of OpenEnv, over its WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strop.errors import ConfigError
from strop.seeds import derive_seed
from strop.types import Message, Task
from strop.workers.event_loop_thread import run_coroutine
from strop.workflows.openenv.session import (
    Observation,
    as_text,
    observation_text,
    to_reward,
    with_observation,
)
from strop.workflows.result import InvalidWorkflowResult, WorkflowResult

if TYPE_CHECKING:
    import aiohttp

_STEP_TOOL = "step"
"""Tool that executes an action of several fields."""
_DESCRIBE_SECONDS = 30.0
_PING_SECONDS = 30.0
_MAX_MESSAGE_BYTES = 32 << 20
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 2.0
_MAX_SEED = 1 << 31


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
            schema = json.loads(await response.text())["action"]
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
        return with_observation(task.messages, self._observation(answer).text)

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
        text = observation_text(observed, self._options.observation)
        return Observation(text, to_reward(answer.get("reward")), answer.get("done") is True)

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
            answer = json.loads(message.data)
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
