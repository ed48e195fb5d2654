"""Features that SGLang's engine and server have in common, and those that both lack."""

from __future__ import annotations

from pathlib import Path

from strop.errors import InferenceError
from strop.inference.sglang.statistics import CompletionStatistics
from strop.protocols import EngineCapabilities
from strop.types import EngineStatistics

SGLANG_CAPABILITIES = EngineCapabilities(
    weight_transports=frozenset(("tensors", "path")),
    determinism="none",
    filtered_policy_logprobs=False,
    converts_weights=True,
    adapters=False,
    images=False,
    memory_release=False,
    token_versions=False,
)
"""Its kernels for adapters need a GPU; a model with one is loaded merged."""


class SglangFeatures:
    """Base of the two backends: the methods of `ServingBackend` that they share, or that neither supports."""

    name: str

    def __init__(self) -> None:
        self.capabilities = SGLANG_CAPABILITIES
        self._statistics = CompletionStatistics()

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine loads merged weights")

    async def set_version(self, version: int) -> None:
        """Nothing: a completion has the version of its start."""

    async def sleep(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine cannot release its memory")

    async def wake_up(self) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine cannot release its memory")

    @property
    def keeps_weights(self) -> bool:
        """Whether the weights are there after `wake_up`."""
        return True

    @property
    def processed_tokens(self) -> None:
        """None: SGLang reports tokens with completions only."""
        return None

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call; of a server without that of its scheduler."""
        return self._statistics.take()
