"""Interface of a serving library to `ServingEngine`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from strop.errors import EngineLostError
from strop.inference.weight_transfer.client import WeightOffer
from strop.protocols import EngineCapabilities
from strop.types import Completion, EngineStatistics, SampleRequest

SERVING_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(("tensors", "path")),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=True,
    adapters=False,
    images=False,
    memory_release=False,
    token_versions=True,
    prompt_logprobs=True,
)
"""Features of every serving library on a model without an adapter and without images; a backend adds its own."""


class ServingBackend(Protocol):
    """A serving library's engine. `ServingEngine` calls the coroutines and `take_statistics` in one event loop."""

    name: str
    """Name of the library in messages."""
    capabilities: EngineCapabilities
    """Features of the engine."""
    report_seconds: float
    """Maximum time from the failure of a call to the report of `lost` that a process has ended; 0 if it is never
    later."""

    async def start(self) -> None:
        """Start the library's processes, which load the model.

        Raises `MissingExtraError` without the library, `ConfigError` for arguments that it does not have, and
        `InferenceError` if it does not start.
        """
        ...

    async def close(self) -> None:
        """End the library's processes."""
        ...

    def describe(self) -> str:
        """One line: version, model, data type and parallel sizes."""
        ...

    def check(self, request: SampleRequest) -> None:
        """Raise `InferenceError` for a request that is invalid or that the library would change."""
        ...

    async def generate(self, request: SampleRequest) -> Completion:
        """The completion of a request, with the version of the weights of each token.

        Aborts the request when the awaiting task is cancelled.
        """
        ...

    async def load_weights(self, path: Path) -> None:
        """Load a safetensors file, or those of a folder, while decoding is held."""
        ...

    async def receivers(self) -> list[str | None]:
        """UUID of the GPU of each process that `receive_weights` receives in, None on the CPU; by rank."""
        ...

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Receive weights in each process, from `host`, while decoding is held; where `process_group` is a capability.

        Returns a reason for each process in which they have not arrived; these processes have a mixture of weights.
        """
        ...

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Load a LoRA adapter in place of the last one, while decoding is held."""
        ...

    async def discard_cache(self) -> None:
        """Discard what was computed with the old weights, the KV cache of running completions included."""
        ...

    async def set_version(self, version: int) -> None:
        """Name the weights that were loaded, for the tokens that they sample."""
        ...

    async def abort(self) -> None:
        """Abort the requests that the library has; each ends with the tokens that it has."""
        ...

    async def hold(self) -> None:
        """Stop decoding after the current step; running requests keep their state."""
        ...

    async def release(self) -> None:
        """Continue decoding."""
        ...

    async def sleep(self) -> None:
        """Free the KV cache and the weights, where `memory_release` is a capability."""
        ...

    async def wake_up(self) -> None:
        """Allocate what `sleep` freed; decoding is held."""
        ...

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights are there after `wake_up`; otherwise the next load brings all of them."""
        ...

    @property
    def processed_tokens(self) -> int | None:
        """See `InferenceEngine`."""
        ...

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call."""
        ...

    def lost(self, error: Exception) -> EngineLostError | None:
        """The error to raise instead if a process of the library has ended, otherwise None."""
        ...
