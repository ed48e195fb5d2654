"""The critic of PPO: predicts values before a step's updates and trains on the returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strop.algorithms.losses.value_losses import ValueLoss, explained_variance
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.critic import CriticConfig
from strop.config.schema.trainer import TrainerConfig
from strop.protocols import CriticEngine, EngineSnapshot
from strop.run.optimize.advantage_inputs import gather_targets
from strop.run.optimize.second_model_updates import second_model_updates
from strop.run.optimize.vocabularies import check_same_vocabulary
from strop.run.state.horizon import Horizon
from strop.training.backends.registry import TrainingBackend
from strop.types import Experience, FloatArray, TrainingBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CRITIC_FOLDER = "critic"
"""Subfolder of a checkpoint that holds the critic's state."""


class Critic:
    """Drives a value model's engine through a step's updates."""

    def __init__(
        self,
        engine: CriticEngine,
        section: CriticConfig,
        trainer: TrainerConfig,
        horizon: Horizon,
        *,
        max_response_tokens: int,
        seed: int,
    ) -> None:
        """`max_response_tokens` and `seed` are the run's; what `section` leaves out is taken from `trainer`."""
        self._engine = engine
        self._loss = ValueLoss(section.value_clip, section.aggregation, max_response_tokens)
        epochs = section.epochs_per_step or trainer.epochs_per_step
        self._updates = second_model_updates(engine, section, trainer, horizon, epochs=epochs, seed=seed)

    def values(self, experiences: Sequence[Experience]) -> list[FloatArray]:
        """[L] of each: the predicted return before each target, 0 elsewhere."""
        return self._engine.values(experiences)

    def update(
        self,
        experiences: Sequence[Experience],
        groups: Sequence[Sequence[int]],
        values: Sequence[FloatArray],
        returns: Sequence[FloatArray],
        *,
        step: int,
    ) -> dict[str, float]:
        """Run one step's updates; returns their metrics.

        Args:
            experiences: the step's experiences.
            groups: indices of the experiences of each group to train on.
            values: [L] per experience: the predictions before the updates.
            returns: [L] per experience: the targets.
            step: number of the step, from 1.
        """
        predicted, targets = gather_targets(values, experiences), gather_targets(returns, experiences)

        def forward_backward(indices: Sequence[int]) -> Mapping[str, float]:
            batch = TrainingBatch(
                [experiences[i] for i in indices],
                values=[values[i] for i in indices],
                returns=[returns[i] for i in indices],
            )
            return self._engine.forward_backward(batch, self._loss)

        means = self._updates.run(groups, forward_backward, step=step)
        metrics = {f"critic/{name}": value for name, value in means.items()}
        explained = explained_variance(predicted, targets)
        if explained is not None:
            metrics["critic/explained_variance"] = explained
        return metrics | {
            "critic/values": float(predicted.mean()),
            "critic/returns": float(targets.mean()),
        }

    def snapshot(self) -> EngineSnapshot:
        """Weights and optimizer state, for a checkpoint."""
        return self._engine.snapshot()


def open_critic(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    horizon: Horizon,
    checkpoint: Path | None,
) -> Critic | None:
    """The critic of a PPO run, with a checkpoint's weights loaded; None for every other algorithm.

    Raises ModelError where its model cannot be used, or has another vocabulary than the policy's.
    """
    if not isinstance(run.algorithm, PpoConfig):
        return None
    section = run.algorithm.critic
    if section.model is not None:
        check_same_vocabulary("algorithm.critic", section.model, tokenizer)
    engine = engines.critic(section)
    if checkpoint is not None:
        engine.load(checkpoint / CRITIC_FOLDER)
    return Critic(
        engine,
        section,
        run.trainer,
        horizon,
        max_response_tokens=run.data.max_response_tokens,
        seed=run.seed,
    )
