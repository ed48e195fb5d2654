"""HTTP client of an inference server, with retries and a limit on concurrent requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from strop.config.redact import read_secret
from strop.config.schema.rollout import ServerConnectionConfig
from strop.errors import EngineLostError, InferenceError, MissingExtraError
from strop.workers.http_fetch import FATAL_STATUSES, RETRYABLE_STATUSES, retry_wait_seconds
from strop.workers.json_text import parse_json

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_MAX_QUOTE_CHARS = 300
_MAX_REPLY_BYTES = 256_000_000


class ServerRejectionError(InferenceError):
    """The server rejects this one request, and accepts others."""


class ServerClient:
    """Client of `base_url`, for one event loop, in which `open` and `close` must be called too."""

    def __init__(self, section: ServerConnectionConfig) -> None:
        """Raises `InferenceError` if the environment variable of the API key is not set."""
        self._section = section
        self._url = section.base_url.rstrip("/")
        self._root = self._url.removesuffix("/v1")
        self._key = _api_key(section)
        self._session: ClientSession | None = None
        self._slots = asyncio.Semaphore(section.max_concurrent_requests)

    async def open(self) -> None:
        """Prepare connections. Raises `MissingExtraError` without aiohttp."""
        aiohttp = _aiohttp()
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._section.timeout_seconds),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Any:
        """Request a resource; returns the JSON of the reply. See `post`."""
        return await self._request("GET", self._url + path, None)

    async def get_root(self, path: str) -> Any:
        """Request a resource at the root of the server, outside of `/v1`. See `post`."""
        return await self._request("GET", self._root + path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body; returns the JSON of the reply.

        Raises `ServerRejectionError` if the server rejects this request only, and `EngineLostError` if it does not
        respond in any attempt or never will.
        """
        return await self._request("POST", self._url + path, body)

    async def post_root(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body to a path at the root of the server, outside of `/v1`. See `post`."""
        return await self._request("POST", self._root + path, body)

    def slot(self) -> AbstractAsyncContextManager[None]:
        """One of `max_concurrent_requests` for a completion; other requests need none, because they may end a pause in
        which completions keep theirs."""
        return self._slots

    async def _request(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        for attempt in range(self._section.retries + 1):
            try:
                return await self._attempt(method, url, body)
            except _RetryableError as error:
                cause = error
            if attempt < self._section.retries:
                backoff = self._section.backoff_seconds
                await asyncio.sleep(retry_wait_seconds(attempt, backoff, cause.retry_after))
        raise self._lost(f"did not respond in {self._section.retries + 1} attempts; the last one: {cause}")

    async def _attempt(self, method: str, url: str, body: Mapping[str, Any] | None) -> Any:
        assert self._session is not None, "open() comes first"
        aiohttp = _aiohttp()
        try:
            async with self._session.request(method, url, json=body) as reply:
                content = await self._read(reply)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _RetryableError(str(error) or type(error).__name__) from error
        if reply.status == 200:
            return self._parse(content)
        cause = f"{reply.status} {reply.reason}: {_error_message(content)}"
        if reply.status in FATAL_STATUSES:
            raise self._lost(f"responds to {reply.url.path} with {cause}")
        if reply.status in RETRYABLE_STATUSES:
            raise _RetryableError(cause, reply.headers.get("Retry-After"))
        raise ServerRejectionError(f"the server rejects the request: {cause}")

    async def _read(self, reply: ClientResponse) -> bytes:
        content = bytearray()
        async for part in reply.content.iter_any():
            content += part
            if len(content) > _MAX_REPLY_BYTES:
                raise self._lost(f"sends more than {_MAX_REPLY_BYTES // 1_000_000} MB in one reply")
        return bytes(content)

    def _parse(self, content: bytes) -> Any:
        try:
            return parse_json(content) if content else None
        except ValueError as error:
            raise self._lost(f"does not reply with JSON: {_quote(content)}") from error

    def _lost(self, what: str) -> EngineLostError:
        return EngineLostError(
            f"The server at {self._url} (rollout.engine) {what}. Start it, or correct `base_url` and the other "
            "fields under rollout.engine."
        )


class _RetryableError(Exception):
    """A failed attempt, after which another may succeed."""

    def __init__(self, cause: str, retry_after: str | None = None) -> None:
        super().__init__(cause)
        self.retry_after = retry_after


def _api_key(section: ServerConnectionConfig) -> str | None:
    if section.api_key_env is None:
        return None
    key = read_secret(section.api_key_env)
    if key is None:
        raise InferenceError(
            f"rollout.engine.api_key_env: the environment variable {section.api_key_env} is not set; it holds the "
            "server's API key. Set it, or write api_key_env: null if the server requires none."
        )
    return key


def _error_message(content: bytes) -> str:
    """Message of an error response in OpenAI's format; any other response is quoted."""
    try:
        return str(parse_json(content)["error"]["message"])[:_MAX_QUOTE_CHARS]
    except (ValueError, KeyError, TypeError):
        return _quote(content)


def _quote(content: bytes) -> str:
    return repr(content.decode(errors="replace").strip()[:_MAX_QUOTE_CHARS])


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise MissingExtraError(
            "rollout.engine is a server, and aiohttp is not installed: pip install 'strop[agents]'"
        ) from error
    return aiohttp
