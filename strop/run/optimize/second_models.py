"""Models that are trained in addition to the policy: PPO's critic, PRIME's process reward model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.algorithms.losses.value_losses import ValueLoss, explained_variance
from strop.algorithms.process_rewards import implicit_rewards
from strop.algorithms.registry import ProcessRewardLossSpec
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.run import Run
from strop.errors import RewardError
from strop.protocols import EngineSnapshot, TrainingEngine
from strop.run.check.refusals import is_probability, no_probability
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience
from strop.run.optimize.logprobs import check_same_vocabulary
from strop.run.optimize.minibatches import plan_minibatches, shuffle_seed
from strop.run.optimize.policy_optimizer import learning_rate, mean_metrics
from strop.run.state.horizon import Horizon
from strop.training.backend import TrainingBackend
from strop.training.engine import CriticEngine
from strop.types import Experience, FloatArray, TrainingBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

E = TypeVar("E", CriticEngine, TrainingEngine)


class StepExperiences(NamedTuple):
    """Experiences of a step."""

    experiences: Sequence[Experience]
    """All experiences; those of a rollout are next to each other."""
    groups: Sequence[Sequence[int]]
    """Indices of the experiences of each group to train on."""
    step: int
    """Number of the step, from 1."""


class SecondModel(ABC, Generic[E]):
    """Drives a model's engine through the updates of each step. It trains from the first step on, with its own number
    of updates; what its section leaves out is taken from `trainer`."""

    name: ClassVar[str]
    """Name of its section, of its subfolder of a checkpoint, and in metrics."""

    def __init__(
        self, engine: E, section: CriticConfig | ProcessRewardConfig, run: Run, horizon: Horizon
    ) -> None:
        """`horizon` is that of the policy."""
        trainer = run.trainer
        self.engine: E = engine
        self._optimizer, self._schedule = section.optimizer, section.schedule
        self._per_update = section.tasks_per_update or trainer.tasks_per_update or trainer.tasks_per_step
        self._epochs = section.epochs_per_step or trainer.epochs_per_step
        self._shuffle_seed = shuffle_seed(trainer, run.seed) if trainer.shuffle_each_epoch else None
        updates = -(-trainer.tasks_per_step // self._per_update) * self._epochs
        self._horizon = replace(
            horizon, critic_steps=0, updates=horizon.scheduled_steps * updates, updates_per_step=updates
        )

    @abstractmethod
    def score(self, scored: RolloutBatch, trained: StepExperiences) -> tuple[RolloutBatch, dict[str, float]]:
        """The batch of the step's rollouts with what the model gives for advantages, and metrics."""

    def learn(
        self, scored: RolloutBatch, returns: torch.Tensor | None, trained: StepExperiences
    ) -> dict[str, float]:
        """Train on the returns [K], if the algorithm has any, after `score`; returns metrics."""
        return {}

    def snapshot(self) -> EngineSnapshot:
        """Weights and optimizer state, for a checkpoint."""
        return self.engine.snapshot()

    def _train(
        self, trained: StepExperiences, forward_backward: Callable[[Sequence[int]], Mapping[str, float]]
    ) -> dict[str, float]:
        """Run one step's updates; returns the means of their metrics.

        `forward_backward` adds the gradient of the experiences at some indices, and returns the loss's metrics.
        """
        batches = plan_minibatches(
            trained.groups,
            per_update=self._per_update,
            epochs=self._epochs,
            shuffle_seed=None if self._shuffle_seed is None else (self._shuffle_seed, trained.step),
        )
        first = (trained.step - 1) * self._horizon.updates_per_step
        rows = []
        for update, indices in enumerate(batches, start=first):
            lr = learning_rate(
                self._optimizer, self._schedule, self._horizon, step=trained.step, update=update
            )
            self.engine.set_lr(lr)
            metrics = {"lr": lr, **forward_backward(indices)}
            rows.append({**metrics, "grad_norm": self.engine.step()})
        return mean_metrics(rows) if rows else {}


class Critic(SecondModel[CriticEngine]):
    """Value model, which predicts the return before each target, and learns from the returns."""

    name = "critic"

    def __init__(self, engine: CriticEngine, section: CriticConfig, run: Run, horizon: Horizon) -> None:
        super().__init__(engine, section, run, horizon)
        self._loss = ValueLoss(section.value_clip, section.aggregation, run.data.max_response_tokens)

    def score(self, scored: RolloutBatch, trained: StepExperiences) -> tuple[RolloutBatch, dict[str, float]]:
        values = self.engine.values(trained.experiences)
        return replace(scored, values=gather_targets(values, trained.experiences)), {}

    def learn(
        self, scored: RolloutBatch, returns: torch.Tensor | None, trained: StepExperiences
    ) -> dict[str, float]:
        assert scored.values is not None and returns is not None
        experiences = trained.experiences
        values, wanted = (split_by_experience(each, experiences) for each in (scored.values, returns))

        def forward_backward(indices: Sequence[int]) -> Mapping[str, float]:
            batch = TrainingBatch(
                [experiences[i] for i in indices],
                values=[values[i] for i in indices],
                returns=[wanted[i] for i in indices],
            )
            return self.engine.forward_backward(batch, self._loss)

        means = self._train(trained, forward_backward)
        metrics = {f"critic/{name}": value for name, value in means.items()}
        explained = explained_variance(scored.values, returns)
        if explained is not None:
            metrics["critic/explained_variance"] = explained
        return metrics | {
            "critic/values": float(scored.values.mean()),
            "critic/returns": float(returns.mean()),
        }


class ProcessRewardModel(SecondModel[TrainingEngine]):
    """Language model that rewards tokens, and learns from the outcomes of rollouts."""

    name = "process_reward"

    def __init__(
        self, engine: TrainingEngine, section: ProcessRewardConfig, run: Run, horizon: Horizon
    ) -> None:
        super().__init__(engine, section, run, horizon)
        self._section = section
        self._loss = ProcessRewardLossSpec(section.beta)

    def score(self, scored: RolloutBatch, trained: StepExperiences) -> tuple[RolloutBatch, dict[str, float]]:
        """Raises RewardError for an outcome that is not between 0 and 1."""
        experiences = trained.experiences
        for experience in experiences:
            if not is_probability(experience.reward):
                raise RewardError(no_probability(experience.task_id, experience.reward))
        reference = self.engine.token_values(experiences, "reference_logprobs")
        if self._section.update_first:
            metrics = self._update(trained, reference)
            rewards = self._rewards(scored, experiences, reference)
        else:
            rewards = self._rewards(scored, experiences, reference)
            metrics = self._update(trained, reference)
        metrics["reward"] = float(rewards.sum()) / len(scored.rewards)
        return replace(scored, process_rewards=rewards), {
            f"process_reward/{name}": value for name, value in metrics.items()
        }

    def _rewards(
        self, scored: RolloutBatch, experiences: Sequence[Experience], reference: Sequence[FloatArray]
    ) -> torch.Tensor:
        """[K] Rewards under the current weights."""
        current = gather_targets(self.engine.token_values(experiences, "logprobs"), experiences)
        return implicit_rewards(
            current - gather_targets(reference, experiences),
            scored.tokens,
            beta=self._section.beta,
            normalize=self._section.normalize,
        )

    def _update(self, trained: StepExperiences, reference: Sequence[FloatArray]) -> dict[str, float]:
        """Run one step's updates; returns the means of their metrics."""

        def forward_backward(indices: Sequence[int]) -> Mapping[str, float]:
            chosen = [trained.experiences[i] for i in indices]
            batch = TrainingBatch(
                chosen,
                ref_logprobs=[reference[i] for i in indices],
                returns=[np.full(len(e.token_ids), e.reward, dtype=np.float32) for e in chosen],
            )
            return self.engine.forward_backward(batch, self._loss)

        return self._train(trained, forward_backward)


SecondModels = Sequence[Critic | ProcessRewardModel]


def open_second_models(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    horizon: Horizon,
    checkpoint: Path | None,
) -> SecondModels:
    """The second models of a run, with a checkpoint's weights loaded.

    Raises ModelError for one that cannot be used, or has another vocabulary than the policy's.
    """
    found: list[Critic | ProcessRewardModel] = []
    for name, section in run.algorithm.trained_models.items():
        if section.model is not None:
            check_same_vocabulary(f"algorithm.{name}", section.model, tokenizer)
        if isinstance(section, CriticConfig):
            found.append(Critic(engines.critic(section), section, run, horizon))
        else:
            found.append(ProcessRewardModel(engines.process_reward(section), section, run, horizon))
        if checkpoint is not None:
            found[-1].engine.load(checkpoint / name)
    return found
