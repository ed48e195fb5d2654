"""Features that SGLang's engine and server have in common, and those that both lack."""

from __future__ import annotations

from pathlib import Path

from strop.errors import InferenceError
from strop.inference.serving.backend import SERVING_CAPABILITIES
from strop.inference.sglang.statistics import CompletionStatistics
from strop.inference.weight_transfer.client import WeightOffer
from strop.protocols import EngineCapabilities
from strop.types import EngineStatistics


class SglangFeatures:
    """Base of the two backends: the methods of `ServingBackend` that they share, or that neither supports."""

    name: str
    report_seconds = 0.0

    def __init__(self) -> None:
        self.capabilities: EngineCapabilities = SERVING_CAPABILITIES
        self._statistics = CompletionStatistics()

    async def receivers(self) -> list[str | None]:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine receives no weights over a process group")

    async def receive_weights(self, offer: WeightOffer, host: str) -> list[str]:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine receives no weights over a process group")

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Raise `InferenceError`: not supported."""
        raise InferenceError(f"the {self.name} engine loads merged weights")

    @property
    def processed_tokens(self) -> int | None:
        """None: a server reports tokens with completions only."""
        return None

    def take_statistics(self) -> EngineStatistics:
        """Load since the last call; of a server without that of its scheduler."""
        return self._statistics.take()
