"""Algorithms on demonstrations: supervised fine-tuning, and together with rollouts mix and distillation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import torch

from strop.algorithms.advantages import grpo
from strop.algorithms.algorithm import Algorithm, RolloutAlgorithm, RolloutBatch
from strop.algorithms.kl import bound_divergence
from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.schedules import imitation_weight
from strop.config.schema.algorithm import DistillationOnlyConfig, MixConfig, SftConfig, TokenWeight
from strop.config.schema.distillation import DistillationLossConfig
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, SegmentRole, TokenOutputs


@dataclass(frozen=True, slots=True)
class SftLoss:
    """Cross entropy in nats, averaged over all targets of the update; a `LossFn`.

    By default every token has the same weight, as in TRL's and verl's SFT trainers; but the mean is over the update and
    not over each micro-batch, so that the size of micro-batches changes nothing.
    """

    token_weight: TokenWeight = "none"

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts` are those of the update."""
        loss = _cross_entropy(micro_batch, outputs, self.token_weight) / counts.tokens
        return LossOutput(loss, {"sft_loss": loss.detach()})


class Sft(Algorithm[SftConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return SftLoss(self.section.token_weight)


@dataclass(frozen=True, slots=True)
class MixedLoss:
    """Rollouts and expert demonstrations in one update; a `LossFn`.

        (1 - mu) * loss of the rollouts + mu * cross entropy of the expert demonstrations

    as in Trinity-RFT's `mix`. Each term is divided by its own counts, so that the number of demonstrations
    does not change their weight. The metrics are those of the terms before the factors with mu.
    """

    mu: float
    rollout_loss: LossFn
    token_weight: TokenWeight = "none"
    """Weight of each token of a demonstration."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts.expert_tokens` must be set where there are demonstrations."""
        learned = self.rollout_loss(only_role("rl", micro_batch), outputs, counts)
        expert = only_role("sft", micro_batch)
        imitated = _cross_entropy(expert, outputs, self.token_weight) / max(1, counts.expert_tokens)
        loss = (1 - self.mu) * learned.loss + self.mu * imitated
        return LossOutput(loss, {**learned.metrics, "sft_loss": imitated.detach()})


class ExpertMix(RolloutAlgorithm[MixConfig]):
    """GRPO's advantages, and its loss together with the expert's demonstrations."""

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return grpo(
            scored.penalized_rewards(),
            scored.group,
            divide_by_std=self.section.divide_by_std,
            epsilon=self.section.std_epsilon,
        )

    def section_at(self, step: int) -> MixConfig:
        section, schedule = self.section, self.section.mu_schedule
        if schedule is None:
            return section
        mu = imitation_weight(step, peak=section.mu, schedule=schedule)
        return section.model_copy(update={"mu": mu, "mu_schedule": None})

    def loss(self, max_response_tokens: int) -> LossFn:
        return MixedLoss(self.section.mu, super().loss(max_response_tokens), self.section.expert_weight)


def _cross_entropy(micro_batch: MicroBatch, outputs: TokenOutputs, token_weight: TokenWeight) -> torch.Tensor:
    """[] Weighted sum of the cross entropy over targets, in nats.

    With the probability p of a target, without a gradient, its weight is 1, p (dynamic fine-tuning, arXiv 2508.05629,
    equation 9) or p (1 - p) (CHORD's phi, arXiv 2508.11408).
    """
    targets = TargetTokens.of(micro_batch)
    logprobs = targets.take(outputs.logprobs)
    probability = logprobs.detach().exp()
    match token_weight:
        case "none":
            weight = targets.weight
        case "p":
            weight = targets.weight * probability
        case "p_one_minus_p":
            weight = targets.weight * probability * (1 - probability)
        case _:
            assert_never(token_weight)
    return -(weight * logprobs).sum()


def only_role(role: SegmentRole, micro_batch: MicroBatch) -> MicroBatch:
    """The micro-batch with only the targets of one role."""
    chosen = np.array([each == role for each in micro_batch.role])
    targets = micro_batch.targets
    return replace(micro_batch, targets=targets[chosen[micro_batch.segment_numbers()[targets]]])


@dataclass(frozen=True, slots=True)
class DistilledMixLoss:
    """The divergence from a teacher, on rollouts and on demonstrations; a `LossFn`.

        (1 - f) * loss of the rollouts + f * mean divergence over the tokens of the demonstrations

    The expectation of generalized knowledge distillation (Agarwal et al., arXiv 2306.13649, algorithm 1), which draws
    with probability lambda = 1 - f whether a batch consists of rollouts or of demonstrations. Each term is divided by
    its own counts. The metrics are those of the terms before the factors with f.
    """

    fraction: float
    rollout_loss: LossFn
    section: DistillationLossConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts.expert_tokens` must be set where there are demonstrations.

        Raises ValueError without `TokenOutputs.teacher_divergence`.
        """
        if outputs.teacher_divergence is None:
            raise ValueError("algorithm.distillation.loss needs the teacher's divergence, which is missing")
        learned = self.rollout_loss(only_role("rl", micro_batch), outputs, counts)
        targets = TargetTokens.of(only_role("sft", micro_batch))
        bounded = bound_divergence(targets.take(outputs.teacher_divergence), self.section.max_divergence)
        mean = (targets.weight * bounded).sum() / max(1, counts.expert_tokens)
        demonstrated = self.section.coef * mean
        loss = (1 - self.fraction) * learned.loss + self.fraction * demonstrated
        return LossOutput(loss, {**learned.metrics, "demonstration_loss": demonstrated.detach()})


class Distillation(RolloutAlgorithm[DistillationOnlyConfig]):
    """On-policy distillation: advantages are only those that a teacher gives, which are added to these."""

    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return torch.zeros_like(scored.rewards, dtype=torch.float64)

    def loss(self, max_response_tokens: int) -> LossFn:
        objective, section = super().loss(max_response_tokens), self.section.distillation.loss
        if self.section.demonstration_fraction == 0:
            return objective
        assert section is not None
        return DistilledMixLoss(self.section.demonstration_fraction, objective, section)
