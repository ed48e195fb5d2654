"""An endpoint process that may open few files: `python -m tests.inference.small_endpoint FILES`.

It prints its port and its key, and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import resource
import sys

from strop.inference.endpoint import connections
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.response import ChatResponse
from strop.inference.endpoint.token_completions import TokenRequest, TokenResponse
from tests.inference.endpoints import open_endpoint


class Fixed:
    """A model that always says the same."""

    async def chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse("1", "four", "stop", 1, 1)

    async def complete(self, request: TokenRequest) -> TokenResponse:
        raise BadRequest("this model chats only")


def main() -> None:
    connections.AUTHENTICATION_SECONDS = 0.5
    with open_endpoint({"tiny": Fixed()}) as client:
        client.ask()  # imports what a request needs
        lowest = os.dup(0)  # the lowest free descriptor
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + int(sys.argv[1]),) * 2)
        print(client.port, client.key, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
