"""Endpoints, models for them, and clients that send any bytes.

`python -m tests.inference.endpoints FILES` is an endpoint process that may open few files. It prints its port and its
key, and ends when its standard input is closed.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from strop.inference.endpoint.completions import CompletionRequest, CompletionResponse
from strop.inference.endpoint.request import BadRequest, ChatRequest
from strop.inference.endpoint.response import ChatChoice, ChatResponse, TextCallback
from strop.inference.endpoint.server import EndpointAccess, EndpointModel, EndpointServer

if TYPE_CHECKING:
    pass
from strop.inference.served_model import ServedModel

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

    @staticmethod
    def of(access: EndpointAccess) -> Client:
        return Client(urlsplit(access.url).port or 0, access.api_key)

    def post(
        self,
        body: bytes,
        *,
        path: str = CHAT,
        key: bytes | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Send bytes as the body of a request, over a new connection."""
        bearer = b"Bearer " + (self.key.encode() if key is None else key)
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.request("POST", path, body, {"Authorization": bearer, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, response.read())

    def ask(self, **changes: Any) -> Reply:
        """Send a valid request with these changes."""
        return self.post(json.dumps(GOOD | changes).encode())

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def head(self, length: int) -> bytes:
        """Headers of a chat request with a valid key."""
        lines = (f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}")
        return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


@contextmanager
def open_endpoint(models: Mapping[str, EndpointModel]) -> Iterator[Client]:
    """An endpoint that serves these models."""
    with closing(EndpointServer()) as endpoint, endpoint.register(models) as access:
        yield Client.of(access)


@contextmanager
def tiny_model(folder: Path) -> Iterator[ServedModel]:
    """A model named `tiny`, which is made in a new folder."""
    import torch  # the endpoint process has no use for it

    from strop.config.schema.rollout import AuxiliaryModelConfig, NativeEngineConfig
    from strop.inference.auxiliary_model import load_auxiliary_model
    from strop.models.tiny import make_model

    make_model(folder, ["two and two is four"], vocab_size=320, hidden_size=16, layers=1, heads=2)
    engine = NativeEngineConfig(kv_cache_tokens=4096)
    section = AuxiliaryModelConfig(name="tiny", path=str(folder), max_response_tokens=2, engine=engine)
    with closing(load_auxiliary_model(section, torch.device("cpu"), seed=1)) as model:
        yield model


@dataclass(frozen=True)
class Fixed:
    """A model that always says the same."""

    text: str = "four"

    async def chat(self, request: ChatRequest, on_text: TextCallback | None = None) -> ChatResponse:
        return ChatResponse("1", (ChatChoice(self.text, "stop"),), 1, 1)

    async def complete(
        self, request: CompletionRequest, on_text: TextCallback | None = None
    ) -> CompletionResponse:
        raise BadRequest("this model chats only")


def main() -> None:
    from strop.inference.endpoint import connections

    connections.AUTHENTICATION_SECONDS = 2.0
    with open_endpoint({"tiny": Fixed()}) as client:
        client.ask()  # imports what a request needs
        lowest = os.dup(0)  # the lowest free descriptor
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + int(sys.argv[1]),) * 2)
        print(client.port, client.key, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
