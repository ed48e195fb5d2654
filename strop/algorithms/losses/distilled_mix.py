"""Distillation on rollouts and on the responses of a dataset in one update (GKD)."""

from __future__ import annotations

from dataclasses import dataclass

from strop.algorithms.distillation import bound_divergence
from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.sft import only_role
from strop.config.schema.distillation import DistillationLossConfig
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


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
