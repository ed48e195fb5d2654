"""Registry of algorithms, by `algorithm.type`; their losses as data, from which each rank builds the same function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strop.algorithms import advantages
from strop.algorithms.algorithm import (
    AdvantageEstimate,
    Algorithm,
    RolloutAlgorithm,
    RolloutBatch,
    add_overlong_penalty,
)
from strop.algorithms.custom import Custom
from strop.algorithms.losses.preference_losses import Bco, Cpo, Dpo, Kto, Orpo
from strop.algorithms.losses.reward_modeling import RewardModeling
from strop.algorithms.losses.sft import Distillation, ExpertMix, Sft
from strop.algorithms.process_rewards import Prime, ProcessRewardLoss
from strop.config.schema import Run
from strop.config.schema.algorithm import AlgorithmConfig, RolloutAlgorithmConfig
from strop.config.schema.distillation import DivergenceConfig
from strop.protocols import LossFn

ROLLOUT_ALGORITHMS: Mapping[str, type[RolloutAlgorithm[Any]]] = {
    "grpo": advantages.Grpo,
    "grpo_passk": advantages.GrpoPassk,
    "rloo": advantages.Rloo,
    "opo": advantages.Opo,
    "gdpo": advantages.Gdpo,
    "gigpo": advantages.Gigpo,
    "optimal_token_baseline": advantages.OptimalTokenBaseline,
    "gpg": advantages.Gpg,
    "opmd": advantages.Opmd,
    "reinforce_plus_plus": advantages.ReinforcePlusPlus,
    "reinforce_plus_plus_baseline": advantages.ReinforcePlusPlusBaseline,
    "remax": advantages.Remax,
    "prime": Prime,
    "reinforce": advantages.Reinforce,
    "raft": advantages.Raft,
    "asymre": advantages.AsymRe,
    "self_play": advantages.SelfPlay,
    "online_dpo": advantages.OnlineDpo,
    "distillation": Distillation,
    "mix": ExpertMix,
    "custom": Custom,
    "ppo": advantages.Ppo,
}
"""Algorithms that learn from sampled rollouts, by `algorithm.type`."""
OFFLINE_ALGORITHMS: Mapping[str, type[Algorithm[Any]]] = {
    "sft": Sft,
    "dpo": Dpo,
    "cpo": Cpo,
    "orpo": Orpo,
    "kto": Kto,
    "bco": Bco,
    "reward_model": RewardModeling,
}
"""Algorithms that learn from given responses."""


def make_algorithm(section: AlgorithmConfig) -> Algorithm[Any]:
    """The algorithm of a section."""
    return {**ROLLOUT_ALGORITHMS, **OFFLINE_ALGORITHMS}[section.type](section)


def make_rollout_algorithm(section: RolloutAlgorithmConfig) -> RolloutAlgorithm[Any]:
    """The algorithm of a section, for a run that trains on rollouts."""
    return ROLLOUT_ALGORITHMS[section.type](section)


def make_loss_fn(section: AlgorithmConfig, *, max_response_tokens: int) -> LossFn:
    """The loss of an algorithm. `max_response_tokens` is `data.max_response_tokens`."""
    return make_algorithm(section).loss(max_response_tokens)


def compute_advantages(
    section: RolloutAlgorithmConfig, scored: RolloutBatch, *, max_response_tokens: int
) -> AdvantageEstimate:
    """Advantages of all targets, in the order of `scored`.

    `max_response_tokens` is `data.max_response_tokens`, which the overlong penalty refers to.
    """
    penalized = add_overlong_penalty(section, scored, max_response_tokens)
    return make_rollout_algorithm(section).estimate(penalized)


@dataclass(frozen=True, slots=True)
class LossSpec:
    """The loss of one algorithm section."""

    algorithm: AlgorithmConfig
    max_response_tokens: int
    """`data.max_response_tokens`: the response limit, which `seq-mean-token-sum-norm` divides by."""

    @classmethod
    def of(cls, run: Run) -> LossSpec:
        """The loss of a run's algorithm."""
        return cls(run.algorithm, run.data.max_response_tokens)

    def at_step(self, step: int) -> LossSpec:
        """The loss of one trainer step, counted from 1."""
        return replace(self, algorithm=make_algorithm(self.algorithm).section_at(step))

    def build(self) -> LossFn:
        """The loss function."""
        return make_loss_fn(self.algorithm, max_response_tokens=self.max_response_tokens)

    @property
    def needs_entropy(self) -> bool:
        """Whether the loss reads `TokenOutputs.entropy`."""
        return self.algorithm.needs_entropy

    @property
    def needs_divergence(self) -> bool:
        """Whether the loss reads `TokenOutputs.divergence`."""
        return self.algorithm.needs_divergence

    @property
    def teacher_divergence(self) -> DivergenceConfig | None:
        """The divergence that the loss reads as `TokenOutputs.teacher_divergence`; None for none."""
        return self.algorithm.teacher_divergence


@dataclass(frozen=True, slots=True)
class ProcessRewardLossSpec:
    """The loss of a process reward model."""

    beta: float
    needs_entropy: bool = False
    needs_divergence: bool = False
    teacher_divergence: DivergenceConfig | None = None

    def build(self) -> LossFn:
        """The loss function."""
        return ProcessRewardLoss(self.beta)


AnyLossSpec = LossSpec | ProcessRewardLossSpec
"""The loss of an update of a language model."""
