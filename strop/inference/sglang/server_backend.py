"""An SGLang server that runs already, as the library of a serving engine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from safetensors.torch import save_file

from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import SglangServerConfig
from strop.errors import EngineLostError, InferenceError, ModelError
from strop.inference.server_client import ServerClient, ServerRejectionError
from strop.inference.sglang.library import SglangFeatures
from strop.inference.sglang.requests import is_filtered
from strop.inference.sglang.weight_loader import RequestConverter
from strop.inference.weight_files import checkpoint_weights, read_weights
from strop.types import Completion, SampleRequest
from strop.workers.shared_file import temporary_parent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SglangServerBackend(SglangFeatures):
    """Requests to an SGLang server.

    The engine marks each load of weights with its own id, which the server returns with every completion: a
    completion of another run's weights is an error.
    """

    name = "SGLang server"

    def __init__(
        self, section: SglangServerConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__()
        self._section = section
        self._model = model
        self._converter = RequestConverter(model, tokenizer)
        self._client = ServerClient(section)
        self._id = uuid4().hex
        self._loads = itertools.count()
        self._loaded = ""
        """Mark of the last load."""
        self._versions: dict[str, int] = {}
        """Version of the weights of each mark."""
        self._info: Mapping[str, Any] = {}
        """The server's description of itself."""

    async def start(self) -> None:
        """Connect, and have the server load the run's model.

        Raises `MissingExtraError` without aiohttp, `EngineLostError` for a server that does not respond, and
        `ModelError` if it cannot load the model.
        """
        await self._client.open()
        try:
            self._info = await self._client.get("/server_info")
            await self.release()  # an earlier run may have left it paused
            await self._update(self._model.path)
        except BaseException:
            await self._client.close()
            raise
        if self._info["enable_deterministic_inference"]:
            self.capabilities = replace(self.capabilities, determinism="batch_invariant")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def describe(self) -> str:
        """One line: version, address and model."""
        return (
            f"SGLang {self._info['version']} at {self._section.base_url}, {self._converter.config.model_type}"
        )

    def check(self, request: SampleRequest) -> None:
        """Raise `InferenceError` for an invalid request, and for one that the server would change."""
        # The server gives the longest prompt that it takes; a prompt has one token less than its sequence.
        self._converter.check(request, self._info["max_req_input_len"])
        vocab_size = self._converter.vocab_size
        sampling, limit = request.sampling, self._info["sampling_mask_max_tokens"]
        if is_filtered(sampling) and (sampling.top_k or vocab_size) > limit:
            raise InferenceError(
                f"request {request.id!r}: the server gives the log-probs of filtered distributions for a top_k of at "
                f"most {limit}. Write rollout.sampling.top_k, or start it with --sampling-mask-max-tokens "
                f"{vocab_size}"
            )

    async def generate(self, request: SampleRequest) -> Completion:
        """The completion of a request. A lost connection makes the server abort it."""
        async with self._client.slot():
            with self._statistics.running():
                output = await self._client.post("/generate", self._converter.arguments(request))
        info = output["meta_info"]
        if any(span["version"] not in self._versions for span in info.get("weight_versions", ())):
            raise InferenceError(
                f"The server at {self._section.base_url} has weights that this run did not load. Give each run a "
                "server of its own."
            )
        self._statistics.record(info, ())
        return self._converter.completion(request, output, self._versions.__getitem__)

    async def load_weights(self, path: Path) -> None:
        """Have the server load a folder in shared memory, a copy of this file or folder."""
        tensors = dict(checkpoint_weights(read_weights(path), self._converter.config))
        size = sum(tensor.nbytes for tensor in tensors.values())
        with TemporaryDirectory(prefix="strop-", dir=temporary_parent(size)) as folder:
            save_file(tensors, Path(folder) / "model.safetensors")
            await self._update(folder)

    async def _update(self, path: str) -> None:
        """Load a model folder; the server then discards its cache."""
        mark = f"{self._id}-{next(self._loads)}"
        try:
            await self._client.post("/update_weights_from_disk", {"model_path": path, "weight_version": mark})
        except ServerRejectionError as error:
            raise ModelError(f"{error}. The server must be able to read {path}.") from error
        self._loaded = mark
        self._versions[mark] = 0

    async def set_version(self, version: int) -> None:
        """Note the version of the weights that were loaded last."""
        self._versions[self._loaded] = version

    async def discard_cache(self) -> None:
        """Nothing to do: the server discards its cache with every load."""

    async def abort(self) -> None:
        """Abort all requests of the server."""
        await self._client.post("/abort_request", {"abort_all": True})

    async def hold(self) -> None:
        """Stop decoding after the current step; running completions keep their tokens."""
        await self._client.post("/pause_generation", {"mode": "retract"})

    async def release(self) -> None:
        """Continue decoding."""
        await self._client.post("/continue_generation", {})

    async def sleep(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("an SGLang server does not release its memory")

    async def wake_up(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError("an SGLang server does not release its memory")

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights are there after `wake_up`."""
        return True

    def lost(self, error: Exception) -> EngineLostError | None:
        """The error itself if the server does not respond."""
        return error if isinstance(error, EngineLostError) else None
