"""Stand-in language model behind Strop's own endpoint: scores each question in the forms that the operators ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from strop.inference.endpoint.completions import CompletionRequest, CompletionResponse
from strop.inference.endpoint.request import ChatRequest
from strop.inference.endpoint.response import ChatChoice, ChatResponse, TextCallback
from strop.inference.endpoint.server import EndpointAccess, EndpointServer

DIMENSIONS = ("accuracy", "grammar", "informativeness", "coherence")


@dataclass
class StandIn:
    """A judge whose score, from 1 to 5, is 1 plus the number of characters of the last message modulo 5."""

    asked: list[str] = field(default_factory=list)
    """The last message of each request."""

    async def chat(self, request: ChatRequest, on_text: TextCallback | None = None) -> ChatResponse:
        text = str(request.messages[-1]["content"])
        self.asked.append(text)
        score = 1 + len(text) % 5
        verdict = {
            "dimension_scores": dict.fromkeys(DIMENSIONS, score),
            "flags": [],
            "recommendation": ["keep"],
        }
        choice = ChatChoice(f"{json.dumps(verdict)}\nScore: {score}", "stop")
        return ChatResponse(f"r{len(self.asked)}", (choice,), 1, 1)

    async def complete(
        self, request: CompletionRequest, on_text: TextCallback | None = None
    ) -> CompletionResponse:
        raise NotImplementedError("the operators send messages")


@contextmanager
def stand_in_endpoint(*names: str) -> Iterator[tuple[EndpointAccess, StandIn]]:
    """The address of an endpoint that serves the stand-in under these names."""
    model = StandIn()
    with closing(EndpointServer()) as server, server.register(dict.fromkeys(names, model)) as access:
        yield access, model
