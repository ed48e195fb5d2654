"""vLLM's HTTP server as a sampler that is trained: exact tokens with the label of their weights, and weight updates.

The server's API for tokens reports the label of the weights that sampled each token. A run labels its weights
`<holder>:<start>:<version>`, where `start` is random. So a server that was restarted has no label, and a server that
another run updates has one of its own.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from strop.errors import EngineLostError, InferenceError
from strop.inference.server_client import ServerClient
from strop.inference.vllm.library import WORKER_EXTENSION, completed, sampling_arguments
from strop.types import Completion, SampleRequest

_UNLABELED = "default"
"""Label of the weights that a server has started with."""
_LOGPROBS_MODE = "processed_logprobs"
_START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --generation-config vllm --logprobs-mode "
    f"{_LOGPROBS_MODE} --worker-extension-cls {WORKER_EXTENSION}"
)


class VllmServer:
    """Client of one server, for one event loop. Only one run at a time may update it."""

    def __init__(self, client: ServerClient, model: str, holder: str) -> None:
        """`holder` names the run in the labels of its weights."""
        self._client = client
        self._model = model
        self._holder = holder
        self._prefix = f"{holder}:{secrets.token_hex(4)}:"
        self._version: int | None = None
        self._path: Path | None = None
        self._update = asyncio.Lock()

    async def check(self) -> None:
        """Raises `InferenceError` for a server that lacks an option, or that another run updates."""
        info = await self._client.get_root("/server_info?config_format=json")
        config = info["vllm_config"]
        mode = config["model_config"]["logprobs_mode"]
        extension = config["parallel_config"]["worker_extension_cls"]
        if mode != _LOGPROBS_MODE or extension != WORKER_EXTENSION:
            raise InferenceError(
                f"The server (rollout.engine) has --logprobs-mode {mode} and --worker-extension-cls "
                f"{extension or 'none'}, so it cannot be trained. Start it with: {_START}"
            )
        self._check_label(await self._label(), self._holder + ":")

    async def sample(self, request: SampleRequest, eos_ids: frozenset[int], vocab_size: int) -> Completion:
        """The completion of a request, by the weights of the last update.

        A server that was restarted gets them again. Raises `EngineLostError` if another run has updated the server.
        """
        body = {
            "model": self._model,
            "token_ids": request.prompt_ids.tolist(),
            "sampling_params": sampling_arguments(request, eos_ids, vocab_size),
        }
        while True:
            reply = await self._client.post_root("/inference/v1/generate", body)
            (choice,) = reply["choices"]
            labels = [str(span["version"]) for span in choice["weight_versions"]]
            foreign = [label for label in labels if not label.startswith(self._prefix)]
            if self._version is None or not foreign:
                return _completion(request, reply, "" if foreign else self._prefix)
            self._check_label(foreign[0], self._prefix)
            await self._restore()

    async def load(self, path: Path, version: int) -> None:
        """Load a safetensors file or a folder of them, which the server reads at the same path.

        Running completions continue with the new weights. The path must exist until the next load.
        """
        async with self._update:
            owned = self._holder + ":" if self._version is None else self._prefix
            self._check_label(await self._label(), owned)
            await self._push(path, version)
            self._path, self._version = path, version

    async def abort(self) -> None:
        """Abort all requests."""
        await self._post("/pause?mode=abort&clear_cache=false")
        await self.resume()

    async def pause(self) -> None:
        """Stop decoding; running requests keep their state."""
        await self._post("/pause?mode=keep&clear_cache=false")

    async def resume(self) -> None:
        """Continue decoding."""
        await self._post("/resume")

    async def release(self) -> None:
        """Remove the label, so that another run may update the server."""
        if self._version is not None:
            await self._set_label(_UNLABELED)

    async def _restore(self) -> None:
        """Load the last weights again, unless another request has done so."""
        async with self._update:
            if await self._label() == _UNLABELED:
                assert self._path is not None and self._version is not None
                await self._push(self._path, self._version)

    async def _push(self, path: Path, version: int) -> None:
        await self.pause()
        await self._post("/collective_rpc", {"method": "strop_load_weights", "args": [str(path)]})
        await self._post("/reset_prefix_cache?reset_running_requests=true")
        await self._post("/reset_mm_cache")
        await self._set_label(f"{self._prefix}{version}")
        await self.resume()

    async def _post(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        await self._client.post_root(path, body or {})

    async def _set_label(self, label: str) -> None:
        await self._post("/update_weight_version", {"new_version": label})

    async def _label(self) -> str:
        return str((await self._client.get_root("/weight_info"))["weight_version"])

    def _check_label(self, label: str, owned: str) -> None:
        """Raise `EngineLostError` for a label that does not begin with `owned`."""
        if label != _UNLABELED and not label.startswith(owned):
            raise EngineLostError(
                f"The server (rollout.engine) has weights of another run, {label.partition(':')[0]!r} (label {label}). "
                "Two runs cannot update one server. Stop the other run, which removes the label at its end; if it was "
                "killed, restart the server. Or write another `base_url`."
            )


def _completion(request: SampleRequest, reply: Mapping[str, Any], prefix: str) -> Completion:
    """The completion of a reply; without a prefix of the labels, its version is that of the initial weights."""
    (choice,), prompt_logprobs = reply["choices"], reply["prompt_logprobs"]
    spans = [
        (int(span["version"].removeprefix(prefix)) if prefix else 0, span["start"], span["end"])
        for span in choice["weight_versions"]
    ]
    logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
    completion = completed(
        request,
        np.array(choice["token_ids"], dtype=np.int32),
        np.array(logprobs, dtype=np.float32),
        choice["finish_reason"],
        spans,
    )
    if not request.prompt_logprobs:
        return completion
    given = zip(request.prompt_ids[1:].tolist(), prompt_logprobs[1:], strict=True)
    found = [position[str(token)]["logprob"] for token, position in given]
    return replace(completion, prompt_logprobs=np.array(found, dtype=np.float32))
