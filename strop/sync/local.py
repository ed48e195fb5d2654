"""Synchronizer of one process: the trainer's tensors, or its LoRA adapter alone, loaded into the sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from strop.protocols import InferenceEngine, TrainingEngine


class LocalSynchronizer:
    """Passes the trainer's weights to a sampler of this process, or of processes that it started."""

    def __init__(
        self,
        load: Callable[[int], None],
        check_load: Callable[[int], Mapping[str, float]] = lambda version: {},
    ) -> None:
        """
        Args:
            load: loads the trainer's current weights into the sampler, as the version that it is called with.
            check_load: called with the version after each load; returns metrics and may raise.
        """
        self._load = load
        self._check_load = check_load

    def publish(self, version: int) -> Mapping[str, float]:
        """Load the trainer's current weights into the sampler, as this version; returns the metrics of the load."""
        self._load(version)
        return self._check_load(version)


@dataclass(frozen=True, slots=True)
class TensorLoad:
    """Loads the trainer's tensors into the sampler, which copies those that it does not share."""

    trainer: TrainingEngine
    explorer: InferenceEngine

    def __call__(self, version: int) -> None:
        """Load the current weights as this version."""
        self.explorer.load(self.trainer.iter_weights(), version)


@dataclass(frozen=True, slots=True)
class InPlaceLoad:
    """Tells a sampler that reads the trainer's tensors and adapter in place that they have changed."""

    explorer: InferenceEngine

    def __call__(self, version: int) -> None:
        """Give the current weights this version."""
        self.explorer.load((), version)


class AdapterLoad:
    """Loads the trainer's LoRA adapter into the sampler, which has the base weights, through a temporary folder."""

    def __init__(self, trainer: TrainingEngine, explorer: InferenceEngine) -> None:
        self._trainer = trainer
        self._explorer = explorer
        self._folder: TemporaryDirectory[str] | None = None
        """Folder of the last version, which an engine reads again after a restart."""

    def __call__(self, version: int) -> None:
        """Load the current adapter as this version."""
        folder = TemporaryDirectory(prefix="strop-adapter-")
        self._trainer.write_adapter(Path(folder.name))
        self._explorer.load_adapter(Path(folder.name), version)
        old, self._folder = self._folder, folder
        if old is not None:
            old.cleanup()
