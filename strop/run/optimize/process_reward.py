"""The process reward model of PRIME: trains on the outcomes of a step's rollouts, and rewards their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from strop.algorithms.loss_spec import ProcessRewardLossSpec
from strop.algorithms.process_rewards import implicit_rewards
from strop.config.schema import Run
from strop.config.schema.algorithm import PrimeConfig
from strop.config.schema.process_reward import ProcessRewardConfig
from strop.config.schema.trainer import TrainerConfig
from strop.errors import RewardError
from strop.protocols import EngineSnapshot, TrainingEngine
from strop.run.check.refusals import is_probability, no_probability
from strop.run.optimize.advantage_inputs import gather_targets
from strop.run.optimize.second_model_updates import second_model_updates
from strop.run.optimize.vocabularies import check_same_vocabulary
from strop.run.state.horizon import Horizon
from strop.training.backends.registry import TrainingBackend
from strop.types import Experience, FloatArray, TrainingBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
