"""Requests that the native engine has accepted, and the stop conditions of their completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from strop.inference.native.model.runner import TokenScores
from strop.types import Completion, SampleRequest, TopTokens

TokenCallback = Callable[[int, int], None]
"""Called with the index of a request in its call, and each token that was sampled for it."""


class SampleCall:
    """One call of `sample`; its future resolves when the last completion is set."""

    def __init__(
        self, requests: int, future: asyncio.Future[list[Completion]], on_token: TokenCallback | None = None
    ) -> None:
        """Expect `requests` completions."""
        self.future = future
        self.on_token = on_token
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
    """Identity of a request's prefill: the prompt's tokens, the digests of its images, and the scores asked for."""
    tokens = request.prompt_ids.astype(np.int32, copy=False).tobytes()
    scored = f"scored {request.top_logprobs}" if request.prompt_logprobs else ""
    return tokens + "".join((*(image.digest for image in request.media), scored)).encode()


@dataclass(slots=True)
class RequestScores:
    """Log-probs that a request has asked for in addition to those of its sampled tokens."""

    prompt: TokenScores | None = None
    """Scores of the prompt."""
    top_ids: list[torch.Tensor] = field(default_factory=list)
    """[K] Most likely tokens at each sampled token."""
    top_logprobs: list[torch.Tensor] = field(default_factory=list)
    """[K] Their log-probs."""

    def fields_of_completion(self) -> dict[str, Any]:
        """Fields of the `Completion`, on the host."""
        found: dict[str, Any] = {}
        if self.top_ids:
            found["top_tokens"] = _top_tokens(torch.stack(self.top_ids), torch.stack(self.top_logprobs))
        if self.prompt is not None:
            found["prompt_logprobs"] = self.prompt.logprobs.cpu().numpy()
            if self.prompt.top_ids.shape[1]:
                found["prompt_top_tokens"] = _top_tokens(self.prompt.top_ids, self.prompt.top_logprobs)
        return found


def _top_tokens(ids: torch.Tensor, logprobs: torch.Tensor) -> TopTokens:
    return TopTokens(ids.to("cpu", torch.int32).numpy(), logprobs.cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class PendingRequest:
    """One request of a call."""

    request: SampleRequest
    call: SampleCall
    index: int
    """Index of the request in its call."""
    prompt_key: bytes = field(repr=False)
    """Identity of the prompt; requests with equal keys share one prefill."""
    scores: RequestScores = field(default_factory=RequestScores, repr=False)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)


class TokenSetTable:
    """Sets of tokens as rows of one bool table [sets, V], so that one lookup serves rows with different sets."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._rows: dict[frozenset[int], int] = {}

    def row(self, tokens: frozenset[int]) -> int:
        """Row of this set in the table; tokens beyond the vocabulary are never sampled and are left out."""
        if tokens not in self._rows:
            new = self.table.new_zeros(1, self.table.shape[1])
            new[0, [token for token in tokens if 0 <= token < self.table.shape[1]]] = True
            self.table = torch.cat((self.table, new))
            self._rows[tokens] = len(self._rows)
        return self._rows[tokens]
