"""Endpoints, and clients that send any bytes."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from strop.inference.endpoint.server import EndpointModel, EndpointServer

GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "two and two"}], "max_tokens": 2}
"""A valid request."""
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Reply:
    """A response of the endpoint."""

    status: int
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Client:
    """A client of the endpoint with a valid key."""

    port: int
    key: str

    def post(
        self, body: bytes, *, key: bytes | None = None, headers: Mapping[str, Any] | None = None
    ) -> Reply:
        """Send bytes as the body of a chat request, over a new connection."""
        bearer = b"Bearer " + (self.key.encode() if key is None else key)
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", CHAT, body, {"Authorization": bearer, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, response.read())

    def ask(self, **changes: Any) -> Reply:
        """Send a valid request with these changes."""
        return self.post(json.dumps(GOOD | changes).encode())

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def head(self, length: int) -> bytes:
        """Headers of a chat request with a valid key."""
        lines = (f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}")
        return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


@contextmanager
def open_endpoint(models: Mapping[str, EndpointModel]) -> Iterator[Client]:
    """An endpoint that serves these models."""
    with closing(EndpointServer()) as endpoint, endpoint.register(models) as access:
        port = urlsplit(access.url).port
        assert port is not None
        yield Client(port, access.api_key)
