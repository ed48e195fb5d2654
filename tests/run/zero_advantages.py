"""One step of updates on groups of which some have no gradient, with and without `trainer.skip_zero_advantages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.trainer import TrainerConfig
from strop.protocols import TrainingEngine
from strop.run.optimize.policy_optimizer import PolicyOptimizer, StepBatch
from strop.run.optimize.rollout_updater import RolloutUpdater
from strop.run.state.horizon import Horizon
from strop.types import ExperienceGroup
from tests.training.test_local_engine import experiences

REWARDS = ((0.0, 1.0, 0.5, 0.5), (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.0))
"""Rewards of three groups of four; 2 rollouts of the first and all of the second have the advantage 0 under GRPO."""
ZERO_ADVANTAGES = 6


def groups(*, known: bool = True) -> list[ExperienceGroup]:
    """Rollouts whose sampler was near the model: its log-probs are about -log(vocabulary). `known` is whether it gave
    those of its policy."""
    random = np.random.default_rng(0)
    found = []
    for number, rewards in enumerate(REWARDS):
        members = [e for e in experiences() if e.group == str(number)]
        scored = []
        for reward, each in zip(rewards, members, strict=True):
            sampler = random.normal(-5.6, 0.2, len(each.token_ids)).astype(np.float32)
            policy = sampler if known else None
            scored.append(replace(each, reward=reward, sampler_logprobs=sampler, policy_logprobs=policy))
        found.append(ExperienceGroup(str(number), tuple(scored)))
    return found


def rollout_updater(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, trainer: TrainerConfig
) -> RolloutUpdater:
    """An updater with a constant learning rate."""
    rate = cast(Any, SimpleNamespace(lr=lambda step, update: 0.01, weight_decay=lambda step, update: None))
    horizon = Horizon(steps=9, updates=99, steps_per_epoch=9, updates_per_step=6)
    optimizer = PolicyOptimizer(engine, LossSpec(algorithm, 16), rate)
    return RolloutUpdater(optimizer, algorithm, trainer, horizon, max_response_tokens=16, seed=1)


def update_on_groups(
    engine: TrainingEngine, run: Run, *, skip: bool, known: bool = True
) -> Mapping[str, float]:
    """Train two steps on `groups`; returns the metrics of the second."""
    sizes = {"tasks_per_step": len(REWARDS), "tasks_per_update": 1, "skip_zero_advantages": skip}
    updater = rollout_updater(engine, cast(Any, run.algorithm), run.trainer.model_copy(update=sizes))
    updater.update(StepBatch(groups(known=known)), step=1, updates_done=0)
    return updater.update(StepBatch(groups(known=known)), step=2, updates_done=6).metrics
