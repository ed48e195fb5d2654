"""Inference engine that passes requests to an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from strop.config.schema.inference_engine import OpenAiEngineConfig
from strop.errors import InferenceError
from strop.inference.openai.requests import chat_body, completion_body, parse_reply
from strop.inference.request_validation import validate_request
from strop.inference.server_client import ServerClient
from strop.inference.stop_tokens import effective_stop_tokens
from strop.protocols import EngineCapabilities, WeightBroadcast
from strop.types import Completion, IntArray, SampleRequest, SamplingParams
from strop.workers.event_loop_thread import EventLoopThread, gather_or_cancel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SERVER_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=False,
    adapters=False,
    images=False,
    memory_release=False,
)
"""Features of a server whose weights stay as they are."""
_PROBE = SampleRequest(
    "probe",
    np.zeros(1, dtype=np.int32),
    SamplingParams(max_tokens=1),
    0,
    messages=({"role": "user", "content": "1"},),
)


class OpenAiEngine:
    """Inference engine on a server. Requests are sent from an event loop of this engine.

    A lost connection, a timeout and a busy server are retried; a request has a seed of its own, so that a retry
    repeats it. If the server does not respond in any attempt, the call raises `EngineLostError`.
    """

    capabilities = SERVER_CAPABILITIES
    device = torch.device("cpu")

    def __init__(
        self,
        section: OpenAiEngineConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
    ) -> None:
        """`eos_ids` are the end tokens of the server's model, which is the run's under `api: completions`.

        Raises `InferenceError` if the environment variable of the API key is not set.
        """
        self._section = section
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._thread = EventLoopThread("openai")
        self._client = ServerClient(section)
        self._admitting = asyncio.Event()
        """Set while new requests are sent to the server; they wait while the engine is paused."""
        self._admitting.set()
        self._started = False
        self._closed = False

    def start(self) -> None:
        """Connect, and sample one token.

        Raises `MissingExtraError` without aiohttp, and `EngineLostError` or `InferenceError` for a server that does
        not serve the model.
        """
        self._check_open()
        if not self._started:
            self._thread.run(self._client.open())
            self._thread.run(self._sample(_PROBE))
            self._started = True

    def close(self) -> None:
        """Close the connections; pending requests raise `InferenceError`."""
        if self._closed:
            return
        self._closed = True
        self._thread.run(self._client.close())
        self._thread.close()

    def describe(self) -> str:
        """One line: server, model and API."""
        section = self._section
        return f"{section.model} at {section.base_url} by its API {section.api}, with the weights that it has"

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid or rejected, and
        `EngineLostError`. When the awaiting task is cancelled, its requests are cancelled.
        """
        self._check_open()
        for request in requests:
            validate_request(request, self._vocab_size, None)
            if request.media:
                raise InferenceError(
                    f"request {request.id!r}: prompts with images cannot be sent to a server"
                )
        try:
            return await self._thread.run_async(
                gather_or_cancel([self._sample(request) for request in requests])
            )
        except asyncio.CancelledError:
            self._check_open()
            raise

    async def _sample(self, request: SampleRequest) -> Completion:
        await self._admitting.wait()
        model = self._section.model
        if self._section.api == "chat":
            reply = await self._client.post("/chat/completions", chat_body(request, model))
        else:
            ends = effective_stop_tokens(request.sampling, self._eos_ids)
            stops = sorted(token for token in ends if 0 <= token < self._vocab_size)
            reply = await self._client.post("/completions", completion_body(request, model, stops))
        return parse_reply(request, reply, self._encode, version=0)

    def _encode(self, text: str) -> IntArray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise _fixed_weights()

    def load_path(self, path: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise _fixed_weights()

    def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise _fixed_weights()

    def load_process_group(self, broadcast: WeightBroadcast, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise _fixed_weights()

    def take_statistics(self) -> None:
        """None: a server has statistics of its own."""

    def pause(self) -> None:
        """Send no new requests; the server completes those that it has."""
        self._check_open()
        self._thread.call(self._admitting.clear)

    def resume(self) -> None:
        """Send requests again."""
        self._check_open()
        self._thread.call(self._admitting.set)

    def release_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the memory of a server cannot be released")

    def restore_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the memory of a server cannot be released")

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceError("the inference engine has been closed")


def _fixed_weights() -> InferenceError:
    return InferenceError(
        "the server (rollout.engine) samples with the weights that it has; none can be loaded"
    )
