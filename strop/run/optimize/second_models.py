"""Models in addition to the policy: PPO's critic, PRIME's process reward model; reference point of log-ratios."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import numpy as np
import torch

from strop.algorithms.loss_spec import ProcessRewardLossSpec
from strop.algorithms.losses.policy_losses import mean_implicit_rewards
from strop.algorithms.losses.value_losses import ValueLoss, explained_variance
from strop.algorithms.process_rewards import implicit_rewards
from strop.algorithms.reference_point import RunningMean, kl_estimate, log_ratios, mismatched_pairs
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig, PrimeConfig, RolloutAlgorithmConfig
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.policy_loss import GvpoLossConfig
from strop.config.schema.preference import BcoConfig, KtoConfig, UnpairedConfig
from strop.config.schema.trainer import TrainerConfig
from strop.errors import DataError, RewardError
from strop.protocols import CriticEngine, EngineSnapshot, TrainingEngine
from strop.run.check.refusals import is_probability, no_probability
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience
from strop.run.optimize.logprobs import check_same_vocabulary
from strop.run.optimize.minibatches import plan_minibatches, shuffle_seed
from strop.run.optimize.policy_optimizer import learning_rate, mean_metrics
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import RunState
from strop.training.backends.registry import TrainingBackend
from strop.types import Experience, FloatArray, TrainingBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


PROCESS_REWARD_FOLDER = "process_reward"
"""Subfolder of a checkpoint that holds the model's state."""


class ProcessRewardModel:
    """Drives the model's engine through a step's updates, and computes the rewards of tokens."""

    def __init__(
        self,
        engine: TrainingEngine,
        section: ProcessRewardConfig,
        trainer: TrainerConfig,
        horizon: Horizon,
        *,
        seed: int,
    ) -> None:
        """`seed` is the run's; what `section` leaves out is taken from `trainer`."""
        self._engine = engine
        self._section = section
        self._loss = ProcessRewardLossSpec(section.beta)
        self._updates = second_model_updates(engine, section, trainer, horizon, epochs=1, seed=seed)

    def rewards(
        self, experiences: Sequence[Experience], groups: Sequence[Sequence[int]], *, step: int
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """[K] Rewards of all targets of a step, and metrics; the model also trains on the step's outcomes.

        Args:
            experiences: the step's experiences, those of a rollout next to each other.
            groups: indices of the experiences of each group to train on.
            step: number of the step, from 1.

        Raises RewardError for an outcome that is not between 0 and 1.
        """
        for experience in experiences:
            if not is_probability(experience.reward):
                raise RewardError(no_probability(experience.task_id, experience.reward))
        reference = self._engine.logprobs(experiences, reference=True)
        if self._section.update_first:
            metrics = self._update(experiences, groups, reference, step)
            rewards = self._score(experiences, reference)
        else:
            rewards = self._score(experiences, reference)
            metrics = self._update(experiences, groups, reference, step)
        metrics["reward"] = float(rewards.sum()) / len({(e.group, e.index) for e in experiences})
        return rewards, {f"process_reward/{name}": value for name, value in metrics.items()}

    def snapshot(self) -> EngineSnapshot:
        """Weights and optimizer state, for a checkpoint."""
        return self._engine.snapshot()

    def _score(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> torch.Tensor:
        """[K] Rewards under the current weights."""
        tokens: dict[tuple[str, int], int] = {}
        for each in experiences:
            rollout = (each.group, each.index)
            tokens[rollout] = tokens.get(rollout, 0) + each.response_tokens
        current = gather_targets(self._engine.logprobs(experiences), experiences)
        return implicit_rewards(
            current - gather_targets(reference, experiences),
            torch.tensor(list(tokens.values())),
            beta=self._section.beta,
            normalize=self._section.normalize,
        )

    def _update(
        self,
        experiences: Sequence[Experience],
        groups: Sequence[Sequence[int]],
        reference: Sequence[FloatArray],
        step: int,
    ) -> dict[str, float]:
        """Run one step's updates; returns the means of their metrics."""

        def forward_backward(indices: Sequence[int]) -> Mapping[str, float]:
            chosen = [experiences[i] for i in indices]
            batch = TrainingBatch(
                chosen,
                ref_logprobs=[reference[i] for i in indices],
                returns=[np.full(len(e.token_ids), e.reward, dtype=np.float32) for e in chosen],
            )
            return self._engine.forward_backward(batch, self._loss)

        return self._updates.run(groups, forward_backward, step=step)


def open_process_reward(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    horizon: Horizon,
    checkpoint: Path | None,
) -> ProcessRewardModel | None:
    """The process reward model of a PRIME run, with a checkpoint's weights loaded; None for every other algorithm.

    Raises ModelError where its model cannot be used, or has another vocabulary than the policy's.
    """
    if not isinstance(run.algorithm, PrimeConfig):
        return None
    section = run.algorithm.process_reward
    if section.model is not None:
        check_same_vocabulary("algorithm.process_reward", section.model, tokenizer)
    engine = engines.process_reward(section)
    if checkpoint is not None:
        engine.load(checkpoint / PROCESS_REWARD_FOLDER)
    return ProcessRewardModel(engine, section, run.trainer, horizon, seed=run.seed)


@dataclass(frozen=True, slots=True)
class SecondModels:
    """The second models of a run; None for those that its algorithm does not have."""

    critic: Critic | None
    process_reward: ProcessRewardModel | None

    def snapshots(self) -> Mapping[str, EngineSnapshot]:
        """State of each model, by its subfolder of a checkpoint."""
        models = {CRITIC_FOLDER: self.critic, PROCESS_REWARD_FOLDER: self.process_reward}
        return {folder: model.snapshot() for folder, model in models.items() if model is not None}


def open_second_models(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    horizon: Horizon,
    checkpoint: Path | None,
) -> SecondModels:
    """The second models of a run, with a checkpoint's weights loaded. Raises ModelError for one that cannot be used."""
    return SecondModels(
        open_critic(run, engines, tokenizer, horizon, checkpoint),
        open_process_reward(run, engines, tokenizer, horizon, checkpoint),
    )


class ReferencePoint(ABC):
    """Computes `GlobalCounts.reference_point`, in nats. All passes are without a gradient, over the whole update, so
    that the result does not depend on micro-batches and ranks."""

    @abstractmethod
    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The value for an update on these experiences, given the reference's log-probs [L] of each."""

    @abstractmethod
    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The value for an evaluation on these experiences, which changes no state."""

    def load_state(self, state: RunState) -> None:  # noqa: B027  (only a running mean has a state)
        """Continue from a saved state."""

    def save_state(self, state: RunState) -> RunState:
        """The state with this object's field set to its current value."""
        return state


class MismatchedKl(ReferencePoint):
    """KTO's estimate of the KL divergence from the reference, over mismatched pairs of prompt and response."""

    def __init__(self, engine: TrainingEngine, max_tokens: int) -> None:
        """`max_tokens` is the limit of a sequence, at which a mismatched pair is cut."""
        self._engine = engine
        self._max_tokens = max_tokens

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The estimate over the mismatched pairs of the update."""
        return self.of_evaluation(experiences)

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The estimate over the mismatched pairs of the taskset. Raises `DataError` for an experience with images."""
        if pictured := next((each.id for each in experiences if each.media), None):
            raise DataError(
                f"The row {pictured} has images, and algorithm kto estimates the KL divergence from prompts with other "
                "rows' responses, for text only. Write algorithm.loss: apo_zero_unpaired, or algorithm bco."
            )
        pairs = mismatched_pairs(experiences, self._max_tokens)
        policy = self._engine.logprobs(pairs)
        return kl_estimate(log_ratios(pairs, policy, self._engine.logprobs(pairs, reference=True)))


class MeanLogRatio(ReferencePoint):
    """BCO's running mean over the responses of all updates, the current one included."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self._mean = RunningMean()

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """The mean with the responses of the update."""
        ratios = log_ratios(experiences, self._engine.logprobs(experiences), reference)
        self._mean = self._mean.updated(ratios)
        return self._mean.mean

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """The mean so far."""
        return self._mean.mean

    def load_state(self, state: RunState) -> None:
        """Continue from a saved mean."""
        self._mean = state.mean_log_ratio or RunningMean()

    def save_state(self, state: RunState) -> RunState:
        """The state with the mean so far."""
        return replace(state, mean_log_ratio=self._mean)


class NoReferencePoint(ReferencePoint):
    """0, for APO-zero."""

    def of_update(self, experiences: Sequence[Experience], reference: Sequence[FloatArray]) -> float:
        """0"""
        return 0.0

    def of_evaluation(self, experiences: Sequence[Experience]) -> float:
        """0"""
        return 0.0


def make_reference_point(run: Run, engine: TrainingEngine) -> ReferencePoint | None:
    """The reference point of the run's algorithm; None for one without labels."""
    algorithm = run.algorithm
    if not isinstance(algorithm, UnpairedConfig):
        return None
    match algorithm:
        case KtoConfig(estimates_kl=True):
            return MismatchedKl(engine, run.data.max_prompt_tokens + run.data.max_response_tokens)
        case KtoConfig():
            return NoReferencePoint()
        case BcoConfig():
            return MeanLogRatio(engine)
        case _:
            assert_never(algorithm)


def add_implicit_rewards(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    current_logprobs: Callable[[], Sequence[FloatArray]],
) -> Sequence[FloatArray]:
    """[L] of each rollout of an update: its advantages, under GVPO plus the mean implicit reward of its group.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the old policy; None where it is the current one, so that the means are 0.
        current_logprobs: computes [L] of each, under the current weights.
    """
    loss = algorithm.policy_loss
    if not isinstance(loss, GvpoLossConfig) or old_logprobs is None or not rollouts:
        return advantages
    numbers: dict[str, int] = {}
    means = mean_implicit_rewards(
        gather_targets(current_logprobs(), rollouts) - gather_targets(old_logprobs, rollouts),
        torch.tensor([each.response_tokens for each in rollouts]),
        torch.tensor([numbers.setdefault(each.group, len(numbers)) for each in rollouts]),
        beta=loss.beta,
    )
    return [old + mean for old, mean in zip(advantages, split_by_experience(means, rollouts), strict=True)]
