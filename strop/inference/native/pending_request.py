"""Requests that the native engine has accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from strop.types import Completion, SampleRequest


class SampleCall:
    """One call of `sample`; its future resolves when the last completion is set."""

    def __init__(self, requests: int, future: asyncio.Future[list[Completion]]) -> None:
        """Expect `requests` completions."""
        self.future = future
        self.cancelled = False
        """Whether the scheduler has removed the requests of this call."""
        self._completions: list[Completion | None] = [None] * requests
        self._missing = requests

    def set_completion(self, index: int, completion: Completion) -> None:
        """Set the completion of the request at `index` of the call."""
        self._completions[index] = completion
        self._missing -= 1
        if self._missing == 0 and not self.future.done():
            self.future.set_result([each for each in self._completions if each is not None])

    def fail(self, error: Exception) -> None:
        """Raise an error in the loop that awaits the call; any thread may call."""

        def set_error() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        self.run_in_loop(set_error)

    def run_in_loop(self, function: Callable[[], None]) -> None:
        """Call a function in the loop that awaits the call; any thread may call."""
        with suppress(RuntimeError):  # the loop has been closed, and nobody awaits the call
            self.future.get_loop().call_soon_threadsafe(function)


def prompt_key(request: SampleRequest) -> bytes:
    """Identity of a request's prompt: its tokens, and the digests of its images."""
    tokens = request.prompt_ids.astype(np.int32, copy=False).tobytes()
    return tokens + "".join(image.digest for image in request.media).encode()


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """One request of a call."""

    request: SampleRequest
    call: SampleCall
    index: int
    """Index of the request in its call."""
    prompt_key: bytes = field(repr=False)
    """Identity of the prompt; requests with equal keys share one prefill."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)
