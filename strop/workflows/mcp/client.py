"""Client of MCP servers: lists their tools, and calls them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from strop.errors import ConfigError, MissingExtraError
from strop.printable import printable, shorten
from strop.workers.threads import EventLoopThread
from strop.workflows.mcp import stdio_filter
from strop.workflows.mcp.servers import McpServer, Transport

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response
    from mcp import Client
    from mcp_types import CallToolResult, Tool


_START_SECONDS = 60.0
"""Maximum time until a server has answered the handshake."""
_READ_SECONDS = 300.0
"""Maximum time between two parts of an HTTP response, which a server may hold open, and for a whole one without
events."""
_LIST_SECONDS = 60.0
"""Maximum time in which a server lists its tools."""
_CLOSE_SECONDS = 10.0
"""Maximum time in which a session ends: a server over HTTP is told so, and answers."""
_MAX_REASON_CHARACTERS = 300
_GRACE_SECONDS = 5.0
"""Time beyond a call's own limit after which the session is taken for lost."""
_MAX_PAGES = 100
_MAX_LIST_CHARACTERS = 4_000_000
"""Maximum length of the descriptions of a server's tools, which are a part of every prompt."""
_MAX_RESULT_CHARACTERS = 4_000_000
"""Maximum length of the text of a result, of which a rollout reads the beginning."""
_MAX_BYTES = 32 << 20
"""Maximum size of what a server sends over HTTP from one result to the next."""
_MAX_LINES = 30_000
"""Maximum number of lines in streams of events from one result to the next; an event has three."""
_MAX_LOG_RECORDS = 3
"""Maximum number of log records of the package mcp about one transport."""


class EndlessAnswerError(Exception):
    """A server's answer exceeds a limit."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server."""

    server: McpServer
    name: str
    """Name at the server."""
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""

    @property
    def public_name(self) -> str:
        """Name by which the model calls it."""
        return f"{self.server.prefix}{self.name}"


def require_mcp(where: str) -> None:
    """Raise MissingExtraError if the package mcp is not installed."""
    if find_spec("mcp") is None:
        raise MissingExtraError(
            f"{where}: the tools of MCP servers need the package mcp: pip install 'strop[mcp]'"
        )


def list_tools(servers: Sequence[McpServer], where: str) -> list[McpTool]:
    """The tools of all servers. Each server is started or connected for this alone.

    Raises ConfigError for a server that does not answer; `where` is the place that names the servers.
    """
    thread = EventLoopThread("mcp-tools")
    try:
        return [tool for server in servers for tool in thread.run(_tools_of(server, where))]
    finally:
        thread.close()


class McpClient:
    """Sessions with servers, one for each server, which all rollouts share.

    A session opens with the first call, in the event loop of the caller, and ends with that loop. One that is lost
    opens again with the next call.
    """

    def __init__(self, calls_per_second: float) -> None:
        self._limit = RateLimit(calls_per_second)
        self._sessions: dict[str, _Session] = {}

    async def call(self, tool: McpTool, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        """Call a tool, within `seconds` after the server has started. Raises what the server or the client raises."""
        await self._limit.wait()
        session = self._sessions.get(tool.server.name)
        if session is None or not session.is_usable:
            session = self._sessions[tool.server.name] = _Session(tool.server)
        return await session.call(tool.name, arguments, seconds)


class _Session:
    """One connection, which a task holds from its handshake to its end."""

    def __init__(self, server: McpServer) -> None:
        self._received = ReceivedData()
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._opened: asyncio.Future[Client] = self._loop.create_future()
        self._task = self._loop.create_task(self._hold(server))

    @property
    def is_usable(self) -> bool:
        """Whether calls of the running event loop can use it."""
        alive = not self._lost.is_set() and not self._task.done()
        return alive and self._loop is asyncio.get_running_loop()

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> CallToolResult:
        client = await asyncio.shield(self._opened)
        from mcp import MCPError

        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                result = await client.call_tool(name, dict(arguments), read_timeout_seconds=seconds)
            self._received.reset()
            return bounded_result(result)
        except EndlessAnswerError:
            raise
        except MCPError as error:
            if self._received.fault is not None:
                self._lost.set()
                raise self._received.fault from None
            if _is_lost(error):
                self._lost.set()
            if len(str(error)) > _MAX_RESULT_CHARACTERS:
                raise EndlessAnswerError(f"the error has {len(str(error)):,} characters") from None
            raise
        except Exception:
            self._lost.set()
            raise

    async def _hold(self, server: McpServer) -> None:
        try:
            async with _connect(server, self._received) as client:
                self._opened.set_result(client)
                await self._lost.wait()
        except Exception as error:  # noqa: BLE001 - every call that waits for the session raises it
            if not self._opened.done():
                self._opened.set_exception(_first_error(error))
        finally:
            self._opened.cancel()


async def _tools_of(server: McpServer, where: str) -> list[McpTool]:
    found: list[Tool] | None = None
    received = ReceivedData()
    try:
        async with _connect(server, received) as client, asyncio.timeout(_LIST_SECONDS):
            found = await listed_tools(client)
    except Exception as error:
        if found is not None:  # only the end of the session failed
            return _as_tools(server, found)
        named = f"{where}: the MCP server {server.name!r} ({server.url or server.command})"
        reason = received.fault or _first_error(error)
        if isinstance(reason, EndlessAnswerError):
            raise ConfigError(f"{named} {reason}. Ask a server with fewer tools, or remove it.") from None
        if isinstance(reason, TimeoutError):
            raise ConfigError(
                f"{named} does not answer within {_START_SECONDS:.0f} s of its start, or {_LIST_SECONDS:.0f} s of the "
                "question for its tools."
            ) from error
        text = shorten(" ".join(str(reason).split()).rstrip("."), _MAX_REASON_CHARACTERS)
        raise ConfigError(f"{named} does not answer: {type(reason).__name__}: {text}.") from error
    return _as_tools(server, found)


def _as_tools(server: McpServer, found: Sequence[Tool]) -> list[McpTool]:
    return [McpTool(server, tool.name, tool.description or "", tool.input_schema) for tool in found]


async def listed_tools(client: Any) -> list[Tool]:
    """The tools on all pages of a server's list. Raises EndlessAnswerError for a list without an end."""
    found: list[Tool] = []
    size, cursor = 0, None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        size += sum(len(tool.model_dump_json()) for tool in page.tools)
        if size > _MAX_LIST_CHARACTERS:
            raise EndlessAnswerError(f"describes its tools in more than {_MAX_LIST_CHARACTERS:,} characters")
        if page.next_cursor is None:
            return found
        cursor = page.next_cursor
    raise EndlessAnswerError(f"lists its tools on more than {_MAX_PAGES} pages")


def bounded_result(result: CallToolResult) -> CallToolResult:
    """The result of a call. Raises EndlessAnswerError for more text than a rollout could use."""
    size = sum(len(getattr(part, "text", "")) for part in result.content)
    if size > _MAX_RESULT_CHARACTERS:
        raise EndlessAnswerError(
            f"the result has {size:,} characters; the limit is {_MAX_RESULT_CHARACTERS:,}"
        )
    return result


@asynccontextmanager
async def _connect(server: McpServer, received: ReceivedData) -> AsyncIterator[Client]:
    """A client after its handshake. Raises TimeoutError if the server takes too long to start or to end."""
    from mcp import Client, StdioServerParameters
    from mcp.client.sse import sse_client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    _limit_log(server.transport)
    async with asyncio.timeout(None) as closing, AsyncExitStack() as opened:
        try:
            async with asyncio.timeout(None) as received.session, asyncio.timeout(_START_SECONDS) as start:
                if server.transport == "stdio":
                    _require_program(server)
                    # -I: neither the server's variables nor its folder change what the filter imports.
                    process = StdioServerParameters(
                        command=sys.executable,
                        args=["-I", stdio_filter.__file__, server.command, *server.args],
                        env=dict(server.env),
                        cwd=server.cwd,
                    )
                    transport = stdio_client(process)
                elif server.transport == "sse":

                    def make_client(*_: Any, **__: Any) -> AsyncClient:
                        return _http_client(server, received)

                    transport = sse_client(server.url, httpx_client_factory=make_client)
                else:
                    http_client = await opened.enter_async_context(_http_client(server, received))
                    transport = streamable_http_client(server.url, http_client=http_client)
                client = await opened.enter_async_context(
                    Client(transport, read_timeout_seconds=_START_SECONDS)
                )
                start.reschedule(None)
                yield client
        finally:
            closing.reschedule(asyncio.get_running_loop().time() + _CLOSE_SECONDS)


def _http_client(server: McpServer, received: ReceivedData) -> AsyncClient:
    """A client whose responses count as received. The package mcp follows a redirect to the same host only."""
    from httpx2 import AsyncClient, Timeout

    return AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=Timeout(_START_SECONDS, read=_READ_SECONDS),
        event_hooks={"response": [received.limit]},
    )


_LOGGERS = {"stdio": "stdio", "sse": "sse", "http": "streamable_http"}


def _limit_log(transport: Transport) -> None:
    """Shorten what the package mcp logs about a transport: each message that it cannot read, as the server wrote it and
    with a traceback. It raises the error, too."""
    logger = logging.getLogger(f"mcp.client.{_LOGGERS[transport]}")
    if not any(isinstance(each, _FirstRecords) for each in logger.filters):
        logger.addFilter(_FirstRecords())


class _FirstRecords(logging.Filter):
    """Passes the first warnings and errors, each as one line."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = " ".join(record.getMessage().split())
        record.msg, record.args = shorten(printable(text), _MAX_REASON_CHARACTERS), ()
        record.exc_info = record.exc_text = None
        self._passed += 1
        return self._passed <= _MAX_LOG_RECORDS


def _require_program(server: McpServer) -> None:
    """Raise FileNotFoundError if there is no such program, on the path that the server's process will have."""
    path = server.env.get("PATH", os.environ.get("PATH"))
    folder = Path(server.cwd or ".")
    named = server.command if os.sep not in server.command else str(folder / server.command)
    if shutil.which(named, path=path) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program", server.command)


class ReceivedData:
    """Data that a server has sent over HTTP since its last result, within limits."""

    def __init__(self) -> None:
        self.fault: EndlessAnswerError | None = None
        """The limit that the server has exceeded."""
        self.session = asyncio.timeout(None)
        """Ends the session at a fault."""
        self._bytes = 0
        self._lines = 0

    def reset(self) -> None:
        """Count from here on, after a result."""
        self._bytes = self._lines = 0

    async def limit(self, response: Response) -> None:
        """Let the body of a response end with an error beyond a limit; for httpx's hook of responses."""
        from httpx2 import AsyncByteStream

        if self.fault is not None:
            raise self.fault
        if response.headers.get("content-encoding", "identity") != "identity":
            self._exceeds("sends a compressed response, which it was not asked for")
        assert isinstance(response.stream, AsyncByteStream)
        body, add = response.stream, self._add
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        ends_at = None if is_stream else time.monotonic() + _READ_SECONDS

        class Limited(AsyncByteStream):
            """The body, with limits."""

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for part in body:
                    add(part, ends_at)
                    yield part

            async def aclose(self) -> None:
                await body.aclose()

        response.stream = Limited()

    def _add(self, part: bytes, ends_at: float | None) -> None:
        self._bytes += len(part)
        if self._bytes > _MAX_BYTES:
            self._exceeds(f"sends more than {_MAX_BYTES:,} bytes without a result")
        if ends_at is None:
            self._lines += part.count(b"\n") + part.count(b"\r")
            if self._lines > _MAX_LINES:
                self._exceeds(f"sends more than {_MAX_LINES:,} lines of events without a result")
        elif time.monotonic() > ends_at:
            self._exceeds(f"has not sent the whole of a response within {_READ_SECONDS:g} s")

    def _exceeds(self, text: str) -> NoReturn:
        self.fault = EndlessAnswerError(text)
        self.session.reschedule(asyncio.get_running_loop().time())
        raise self.fault


def _is_lost(error: Any) -> bool:
    from mcp_types import CONNECTION_CLOSED

    return bool(error.code == CONNECTION_CLOSED)


def _first_error(error: BaseException) -> BaseException:
    """The first error of a group of errors, which task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class RateLimit:
    """At most `per_second` calls per second, after a first burst of as many."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._capacity = max(1.0, per_second)
        self._tokens = self._capacity
        self._updated: float | None = None

    async def wait(self) -> None:
        """Wait until the next call is allowed; callers are served in their order."""
        await asyncio.sleep(self.reserve(time.monotonic()))

    def reserve(self, now: float) -> float:
        """Take one token at the time `now`, in seconds; returns the seconds until it is there."""
        elapsed = 0.0 if self._updated is None else now - self._updated
        self._tokens = min(self._capacity, self._tokens + elapsed * self._rate) - 1
        self._updated = now
        return max(0.0, -self._tokens / self._rate)
