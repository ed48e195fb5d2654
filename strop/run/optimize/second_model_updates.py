"""Optimizer updates of a model that is trained on the same rollouts as the policy: a critic, a process reward model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from strop.config.schema.critic import CriticConfig
from strop.config.schema.process_reward import ProcessRewardConfig
from strop.config.schema.trainer import TrainerConfig
from strop.protocols import CriticEngine, TrainingEngine
from strop.run.optimize.lr_schedule import learning_rate
from strop.run.optimize.minibatches import plan_minibatches, shuffle_seed
from strop.run.optimize.policy_optimizer import mean_metrics
from strop.run.state.horizon import Horizon


@dataclass(frozen=True, slots=True)
class SecondModelUpdates:
    """A step's updates of a second model. It trains from the first step on, with its own number of updates."""

    engine: CriticEngine | TrainingEngine
    section: CriticConfig | ProcessRewardConfig
    per_update: int
    """Number of groups in one update."""
    epochs: int
    """Epochs over a step's rollouts."""
    seed: int | None
    """Seed of the order of the groups; None for the order of the step."""
    horizon: Horizon
    """Length of the run in updates of this model."""

    def run(
        self,
        groups: Sequence[Sequence[int]],
        forward_backward: Callable[[Sequence[int]], Mapping[str, float]],
        *,
        step: int,
    ) -> dict[str, float]:
        """Run one step's updates; returns the means of their metrics.

        Args:
            groups: indices of the experiences of each group to train on.
            forward_backward: adds the gradient of the experiences at some indices, and returns the loss's metrics.
            step: number of the step, from 1.
        """
        batches = plan_minibatches(
            groups,
            per_update=self.per_update,
            epochs=self.epochs,
            shuffle_seed=None if self.seed is None else (self.seed, step),
        )
        first = (step - 1) * self.horizon.updates_per_step
        rows = []
        for update, indices in enumerate(batches, start=first):
            lr = learning_rate(
                self.section.optimizer, self.section.schedule, self.horizon, step=step, update=update
            )
            self.engine.set_lr(lr)
            metrics = {"lr": lr, **forward_backward(indices)}
            rows.append({**metrics, "grad_norm": self.engine.step()})
        return mean_metrics(rows) if rows else {}


def second_model_updates(
    engine: CriticEngine | TrainingEngine,
    section: CriticConfig | ProcessRewardConfig,
    trainer: TrainerConfig,
    horizon: Horizon,
    *,
    epochs: int,
    seed: int,
) -> SecondModelUpdates:
    """The updates of a run, whose `horizon` and `seed` these are; `trainer` has what `section` leaves out."""
    per_update = section.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step
    updates = -(-trainer.tasks_per_step // per_update) * epochs
    return SecondModelUpdates(
        engine,
        section,
        per_update,
        epochs,
        shuffle_seed(trainer, seed) if trainer.shuffle_each_epoch else None,
        replace(horizon, critic_steps=0, updates=horizon.scheduled_steps * updates, updates_per_step=updates),
    )
