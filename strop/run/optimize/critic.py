"""The critic of PPO: predicts values before a step's updates and trains on the returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from strop.algorithms.losses.value_losses import ValueLoss, explained_variance
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.critic import CriticConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.trainer import TrainerConfig
from strop.errors import ModelError
from strop.models.loading import load_tokenizer
from strop.protocols import CriticEngine, EngineSnapshot
from strop.run.optimize.advantage_inputs import gather_targets
from strop.run.optimize.lr_schedule import learning_rate
from strop.run.optimize.minibatches import plan_minibatches, shuffle_seed
from strop.run.optimize.policy_optimizer import mean_metrics
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
        seed: int,
    ) -> None:
        """`seed` is the run's; what `section` leaves out is taken from `trainer`."""
        self._engine = engine
        self._section = section
        self._per_update = section.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step
        self._epochs = section.epochs_per_step or trainer.epochs_per_step
        self._seed = shuffle_seed(trainer, seed) if trainer.shuffle_each_epoch else None
        self._loss = ValueLoss(section.value_clip)
        updates = -(-trainer.tasks_per_step // self._per_update) * self._epochs
        # The critic trains from the first step on, and has its own number of updates.
        self._horizon = replace(
            horizon, critic_steps=0, updates=horizon.scheduled_steps * updates, updates_per_step=updates
        )

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
        batches = plan_minibatches(
            groups,
            per_update=self._per_update,
            epochs=self._epochs,
            shuffle_seed=None if self._seed is None else (self._seed, step),
        )
        first = (step - 1) * self._horizon.updates_per_step
        rows = []
        for number, batch in enumerate(batches):
            picked = TrainingBatch(
                [experiences[i] for i in batch],
                values=[values[i] for i in batch],
                returns=[returns[i] for i in batch],
            )
            rows.append(self._update(picked, step, first + number))
        metrics = {f"critic/{name}": value for name, value in mean_metrics(rows).items()}
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

    def _update(self, batch: TrainingBatch, step: int, update: int) -> dict[str, float]:
        lr = learning_rate(
            self._section.optimizer, self._section.schedule, self._horizon, step=step, update=update
        )
        self._engine.set_lr(lr)
        metrics = {"lr": lr, **self._engine.forward_backward(batch, self._loss)}
        metrics["grad_norm"] = self._engine.step()
        return metrics


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
        check_vocabulary("algorithm.critic", section.model, tokenizer)
    engine = engines.critic(section)
    if checkpoint is not None:
        engine.load(checkpoint / CRITIC_FOLDER)
    return Critic(engine, section, run.trainer, horizon, seed=run.seed)


def check_vocabulary(key: str, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a second model, at `key`.model, that does not read the policy's tokens."""
    try:
        own = load_tokenizer(model)
    except ModelError as error:
        raise ModelError(f"{key}: {error}") from error
    if own.get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"{key}.model: the model reads the policy's tokens, but the tokenizer of "
            f"{model.tokenizer or model.path} has another vocabulary ({len(own)} tokens, the "
            f"policy's has {len(tokenizer)}). Name a model of the policy's family. If the tokens are the same "
            f"and only the tokenizer's files differ, set {key}.model.tokenizer to the policy's folder."
        )
