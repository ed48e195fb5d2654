"""A request on its way through the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from strop.types import Completion, SampleRequest


class Call:
    """One call of `sample`: done when its last completion is there."""

    def __init__(self, requests: int, future: asyncio.Future[list[Completion]]) -> None:
        self.future = future
        self.forgotten = False
        """Its requests were taken out of the engine."""
        self._completions: list[Completion | None] = [None] * requests
        self._left = requests

    def deliver(self, place: int, completion: Completion) -> None:
        """Put a completion in its place."""
        self._completions[place] = completion
        self._left -= 1
        if self._left == 0 and not self.future.done():
            self.future.set_result([each for each in self._completions if each is not None])


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One request of a call."""

    request: SampleRequest
    call: Call
    place: int
    """Of the request in its call."""
    prompt: bytes = field(repr=False)
    """The prompt's tokens: requests with the same ones share a prefill."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)
