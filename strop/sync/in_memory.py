"""Weights go from trainer to sampler inside one process."""

from __future__ import annotations

from strop.protocols import InferenceEngine, TrainingEngine


class InMemorySynchronizer:
    """Hands the trainer's tensors to the sampler, which copies only what it does not share already."""

    def __init__(self, trainer: TrainingEngine, explorer: InferenceEngine) -> None:
        self._trainer = trainer
        self._explorer = explorer

    def publish(self, version: int) -> None:
        """After this, rollouts are drawn from the trainer's weights of step `version`."""
        self._explorer.load(self._trainer.iter_weights(), version)
