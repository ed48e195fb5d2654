"""Inference engine that passes requests to an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from strop.config.schema.rollout import OpenAiEngineConfig
from strop.errors import EngineLostError, InferenceError
from strop.inference.completion import effective_stop_tokens
from strop.inference.openai.vllm_server import VllmServer
from strop.inference.request_validation import refuse_prompt_logprobs, refuse_top_logprobs, validate_request
from strop.inference.server_client import ServerClient, ServerRejectionError
from strop.inference.weight_files import share_weights
from strop.protocols import EngineCapabilities, TrainerAddress
from strop.types import Completion, FloatArray, IntArray, SampleRequest, SamplingParams
from strop.workers.shared_file import SharedFile
from strop.workers.start import LOCAL
from strop.workers.threads import EventLoopThread, gather_or_cancel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


log = logging.getLogger("strop.inference")

SERVER_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=False,
    adapters=False,
    images=False,
    memory_release=False,
    token_versions=False,
)
"""Features of a server whose weights stay as they are."""
_UPDATED_SERVER_CAPABILITIES = replace(
    SERVER_CAPABILITIES,
    weight_transports=frozenset(("tensors", "path")),
    converts_weights=True,
    token_versions=True,
    prompt_logprobs=True,
)
"""Features of a server of vLLM whose weights are updated."""
_ABORT_POLL_SECONDS = 0.05
"""Interval at which requests are aborted until the server has none."""
_PROBE = SampleRequest(
    "probe",
    np.zeros(1, dtype=np.int32),
    SamplingParams(max_tokens=1),
    0,
    messages=({"role": "user", "content": "1"},),
)
_MAX_SEED = 2**63
_TOKEN_ID_PREFIX = "token_id:"
"""Prefix of a token's name in log-probs that have ids in place of texts."""
_NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop": (),
    "ignore_eos": False,
}
"""Values without an effect, which are not sent: a server may not have the parameter."""
_FILTERS = ("top_p", "top_k", "min_p")
"""Parameters without an effect on a greedy request."""


class OpenAiEngine:
    """Inference engine on a server. Requests are sent from an event loop of this engine.

    A lost connection, a timeout and a busy server are retried; a request has a seed of its own, so that a retry
    repeats it. If the server does not respond in any attempt, the call raises `EngineLostError`.
    """

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
        self._trained: VllmServer | None = None
        """The server, if its weights are updated."""
        if section.weight_updates == "vllm":
            self._trained = VllmServer(self._client, section.model, section.holder or "strop")
        self._weights: SharedFile | None = None
        self._keeps_special_tokens = True
        """Whether the server's chat API is asked for special tokens in the text."""
        self._has_separate_reasoning = False
        self._admitting = asyncio.Event()
        """Set while new requests are sent to the server; they wait while the engine is paused."""
        self._admitting.set()
        self._running = 0
        """Number of requests that the server has."""
        self._aborts = 0
        """Number of calls of `abort`."""
        self._started = False
        self._closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """Features of the server; weights can be loaded if it is updated."""
        return SERVER_CAPABILITIES if self._trained is None else _UPDATED_SERVER_CAPABILITIES

    def start(self) -> None:
        """Connect, and sample one token, or check the options of a server that is updated.

        Raises `MissingExtraError` without aiohttp, and `EngineLostError` or `InferenceError` for a server that does
        not serve the model.
        """
        self._check_open()
        if not self._started:
            self._thread.run(self._client.open())
            self._thread.run(self._probe() if self._trained is None else self._trained.check())
            self._started = True

    def close(self) -> None:
        """Close the connections; pending requests raise `InferenceError`."""
        if self._closed:
            return
        self._closed = True
        if self._trained is not None and self._started:
            self._release(self._trained)
        self._thread.run(self._client.close())
        self._thread.close()
        if self._weights is not None:
            self._weights.close()

    def _release(self, server: VllmServer) -> None:
        try:
            self._thread.run(server.release())
        except EngineLostError:
            log.warning(
                "The server does not answer at the end of the run, so that the label of the run's weights may still be "
                "there; a run of the same name takes the server over, and its restart removes the label."
            )

    def describe(self) -> str:
        """One line: server, model and API."""
        section = self._section
        where = f"{section.model} at {section.base_url}"
        if self._trained is not None:
            return f"{where}, updated by vLLM's HTTP API"
        return f"{where} by its API {section.api}, with the weights that it has"

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises `InferenceError` for the call as a whole if one of its requests is invalid or rejected, and
        `EngineLostError`. When the awaiting task is cancelled, its requests are cancelled.
        """
        self._check_open()
        for request in requests:
            validate_request(request, self._vocab_size, None)
            if self._trained is None:
                refuse_prompt_logprobs(request, "a server as it is")
            refuse_top_logprobs(request, "a server")
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

    async def _probe(self) -> None:
        """Sample one token. A server that rejects the parameter for special tokens is asked without it."""
        try:
            await self._sample(_PROBE)
        except ServerRejectionError:
            if self._section.api != "chat":
                raise
            self._keeps_special_tokens = False
            await self._sample(_PROBE)
            log.warning(
                "The server (rollout.engine) rejects `skip_special_tokens: false`, so that the texts of its replies "
                "lack the tokens that its tokenizer holds as special tokens, perhaps tags such as <think> or <answer>. "
                "`api: completions` gets the tokens themselves."
            )

    async def _sample(self, request: SampleRequest) -> Completion:
        await self._admitting.wait()
        async with self._client.slot():
            aborts = self._aborts
            self._running += 1
            try:
                completion = await self._request(request)
            finally:
                self._running -= 1
        if completion.finish_reason == "abort" and self._aborts == aborts:
            raise InferenceError(f"request {request.id!r}: the server aborted it")
        return completion

    async def _request(self, request: SampleRequest) -> Completion:
        if self._trained is not None:
            return await self._trained.sample(request, self._eos_ids, self._vocab_size)
        model = self._section.model
        if self._section.api == "chat":
            body = chat_body(request, model, keeps_special_tokens=self._keeps_special_tokens)
            reply = await self._client.post("/chat/completions", body)
            completion = parse_reply(request, reply, self._encode, version=0)
            self._report_separate_reasoning(reply["choices"][0]["message"])
            return completion
        ends = effective_stop_tokens(request.sampling, self._eos_ids)
        stops = sorted(token for token in ends if 0 <= token < self._vocab_size)
        reply = await self._client.post("/completions", completion_body(request, model, stops))
        return parse_reply(request, reply, self._encode, version=0)

    def _report_separate_reasoning(self, message: Mapping[str, Any]) -> None:
        """Warn once of a server that takes the reasoning out of the text."""
        found = next((key for key in ("reasoning_content", "reasoning") if message.get(key)), None)
        if found is not None and not self._has_separate_reasoning:
            self._has_separate_reasoning = True
            log.warning(
                f"The server (rollout.engine) returns the reasoning of its replies in {found}, so that their "
                "texts have no reasoning and no tags of it. Start it without a reasoning parser, or write "
                "`api: completions`."
            )

    def _encode(self, text: str) -> IntArray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load tensors through a file in shared memory; see `load_path`."""
        server = self._updated()
        shared = share_weights(weights, LOCAL)
        with shared.handle.open() as path:
            self._thread.run(server.load(path, version))
        old, self._weights = self._weights, shared
        if old is not None:
            old.close()

    def load_path(self, path: Path, version: int) -> None:
        """Load the safetensors files of a folder, which must exist until the next load.

        Running completions continue with the new weights. Raises `InferenceError` for a server whose weights are not
        updated, and `EngineLostError`.
        """
        self._thread.run(self._updated().load(path, version))

    def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("a server cannot load an adapter; merge it, and pass the tensors to load")

    def load_process_group(self, trainer: TrainerAddress, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(
            "a server cannot join a process group; receive the weights in this process and pass the tensors to load"
        )

    @property
    def processed_tokens(self) -> None:
        """None: the server's work is not seen."""
        return None

    def take_statistics(self) -> None:
        """None: a server has statistics of its own."""

    def abort(self) -> None:
        """End all requests of the server with the tokens that they have. Raises `InferenceError` for a server whose
        weights are not updated."""
        self._thread.run(self._abort(self._updated()))

    async def _abort(self, server: VllmServer) -> None:
        self._aborts += 1
        while self._running:  # a request that is on its way to the server is aborted when it has arrived
            await server.abort()
            await asyncio.sleep(_ABORT_POLL_SECONDS)

    def pause(self) -> None:
        """Send no new requests. A server that is updated stops decoding; any other completes those that it has."""
        self._check_open()
        self._thread.call(self._admitting.clear)
        if self._trained is not None:
            self._thread.run(self._trained.pause())

    def resume(self) -> None:
        """Send requests again."""
        self._check_open()
        if self._trained is not None:
            self._thread.run(self._trained.resume())
        self._thread.call(self._admitting.set)

    def release_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the memory of a server cannot be released")

    def restore_memory(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("the memory of a server cannot be released")

    def _updated(self) -> VllmServer:
        self._check_open()
        if self._trained is None:
            raise InferenceError(
                "the server (rollout.engine) samples with the weights that it has; without weight_updates none can be "
                "loaded"
            )
        return self._trained

    def _check_open(self) -> None:
        if self._closed:
            raise InferenceError("the inference engine has been closed")


def completion_body(request: SampleRequest, model: str, stop_token_ids: list[int]) -> dict[str, Any]:
    """Body for `/completions`; the prompt is sent as token ids, and the reply's are asked for."""
    return {
        "model": model,
        "prompt": request.prompt_ids.tolist(),
        "stop_token_ids": stop_token_ids,
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        **_sampling(request),
    }


def chat_body(request: SampleRequest, model: str, *, keeps_special_tokens: bool) -> dict[str, Any]:
    """Body for `/chat/completions`; `keeps_special_tokens` asks for them in the text of the reply, by a parameter that
    OpenAI's own API does not have.

    Raises `InferenceError` for a prompt that is no conversation without tools.
    """
    if not request.messages:
        raise InferenceError(
            f"request {request.id!r}: rollout.engine.api is chat, which sends conversations without tools; this "
            "prompt is plain text or has tools. Write `api: completions`, which sends its token ids."
        )
    sampling = _sampling(request)
    if request.sampling.stop_token_ids:
        sampling["stop_token_ids"] = list(request.sampling.stop_token_ids)
    if keeps_special_tokens:
        sampling["skip_special_tokens"] = False
    return {"model": model, "messages": [dict(message) for message in request.messages], **sampling}


def parse_reply(
    request: SampleRequest, reply: Any, encode: Callable[[str], IntArray], version: int
) -> Completion:
    """The completion of a reply of either API.

    Without token ids in the reply the text is encoded, and the log-probs are NaN. Raises `InferenceError` for a
    reply that is not in OpenAI's format, or that the server ended early.
    """
    try:
        (choice,) = reply["choices"]
        text = (choice["message"]["content"] if "message" in choice else choice["text"]) or ""
        finish, token_ids, logprobs = choice["finish_reason"], _token_ids(choice), _logprobs(choice)
        if token_ids is None:
            ids = encode(text.encode("utf-8", "replace").decode())
        else:
            ids = np.array(token_ids, dtype=np.int32)
        known = token_ids is not None and logprobs is not None and len(logprobs) == len(ids)
        sampler_logprobs = _float_array(logprobs if known else [np.nan] * len(ids))
        if ids.ndim != 1 or (ids < 0).any() or sampler_logprobs.shape != ids.shape:
            raise ValueError("token ids and log-probs are two lists of numbers")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InferenceError(
            f"request {request.id!r}: the server's reply is not in OpenAI's format ({error!r})"
        ) from error
    if finish not in ("stop", "length"):
        raise InferenceError(f"request {request.id!r}: the server ended it early ({finish})")
    return Completion(
        token_ids=ids,
        sampler_logprobs=sampler_logprobs,
        policy_logprobs=None,
        finish_reason=finish,
        version=version,
    )


def _sampling(request: SampleRequest) -> dict[str, Any]:
    sampling = request.sampling
    greedy = sampling.temperature == 0
    body: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
    if not greedy:
        body["seed"] = request.seed % _MAX_SEED
    for name, neutral in _NEUTRAL.items():
        value = getattr(sampling, name)
        if value != neutral and not (greedy and name in _FILTERS):
            body[name] = list(value) if isinstance(value, tuple) else value
    return body


def _token_ids(choice: Mapping[str, Any]) -> list[int] | None:
    """Sampled token ids: vLLM's field, or the names of the tokens in the log-probs; None from other servers."""
    if choice.get("token_ids") is not None:
        return list(choice["token_ids"])
    names = (choice.get("logprobs") or {}).get("tokens") or []
    if not names or not all(name.startswith(_TOKEN_ID_PREFIX) for name in names):
        return None
    return [int(name.removeprefix(_TOKEN_ID_PREFIX)) for name in names]


def _logprobs(choice: Mapping[str, Any]) -> list[float] | None:
    return (choice.get("logprobs") or {}).get("token_logprobs")


def _float_array(values: Any) -> FloatArray:
    return np.array(values, dtype=np.float32)
