"""Losses of a reward model: Bradley-Terry on pairs, squared error on scores; and measures of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from strop.algorithms.algorithm import Algorithm
from strop.config.schema.preference import RewardModelingConfig
from strop.protocols import LossFn
from strop.transfers import to_device
from strop.types import (
    FloatArray,
    GlobalCounts,
    IndexArray,
    LossOutput,
    MicroBatch,
    SegmentRole,
    TokenOutputs,
)

_CALIBRATION_BINS = 10
"""Number of bins of `calibration_error`, as in Guo et al., arXiv 1706.04599, which has 15."""


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    """[P] -log sigmoid(r_chosen - r_rejected - margin) of the rewards of P pairs.

    Ouyang et al., arXiv 2203.02155, equation 1; the margin as in Llama 2, arXiv 2307.09288, equation 2.
    """
    return -logsigmoid(chosen - rejected - margin)


def centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """[P] (r_chosen + r_rejected)^2, which is 0 for rewards with the mean 0 (Eisenstein et al., arXiv 2312.09244,
    equation 2)."""
    return (chosen + rejected).square()


@dataclass(frozen=True, slots=True)
class RewardModelLoss:
    """The loss of a reward model, averaged over the pairs or sequences of the update; a `LossFn`.

    What it learns stands in `returns`: the score of a sequence, and of a pair two numbers whose difference is its
    margin.
    """

    config: RewardModelingConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without scores and targets, or where a pair is split."""
        if outputs.scores is None or micro_batch.returns is None:
            raise ValueError(
                "the loss of a reward model needs a classifier's scores, and the targets of them"
            )
        scores, targets = (
            _of_sequences(each, micro_batch.last_targets()) for each in (outputs.scores, micro_batch.returns)
        )
        if self.config.loss == "squared_error":
            chosen = _segments(micro_batch, "scored")
            weight, values, wanted = micro_batch.weight[chosen], scores[chosen], targets[chosen]
            loss = (weight * (values - wanted).square()).sum() / counts.sequences
            means = {
                "reward_model/score": values.detach() / counts.sequences,
                "reward_model/score_error": (values.detach() - wanted).abs() / counts.sequences,
            }
            return LossOutput(loss, {name: each.sum() for name, each in means.items()})
        chosen, rejected = _segments(micro_batch, "chosen"), _segments(micro_batch, "rejected")
        if not torch.equal(rejected, chosen + 1):
            raise ValueError(
                "a micro-batch does not hold each chosen response directly before its rejected one"
            )
        weight, better, worse = micro_batch.weight[chosen], scores[chosen], scores[rejected]
        losses = bradley_terry(better, worse, targets[chosen] - targets[rejected])
        compared = (weight * losses).sum() / counts.pairs
        metrics = {"preference_loss": compared.detach()}
        loss = compared
        if self.config.centering_coef:
            centered = (weight * centering(better, worse)).sum() / counts.pairs
            loss = loss + self.config.centering_coef * centered
            metrics["centering_loss"] = centered.detach()
        with torch.no_grad():
            of_pairs = {
                "pairs/margin": better - worse,
                "pairs/accuracy": (better > worse).float(),
                "pairs/chosen_reward": better,
                "pairs/rejected_reward": worse,
            }
            metrics |= {name: each.sum() / counts.pairs for name, each in of_pairs.items()}
        return LossOutput(loss, metrics)


class RewardModeling(Algorithm[RewardModelingConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return RewardModelLoss(self.section)


def _of_sequences(values: Tensor, last_targets: IndexArray) -> Tensor:
    """[S] Value of [T] at the last target of each sequence; 0 for one without targets."""
    segments = np.flatnonzero(last_targets >= 0)
    at_ends = values.index_select(0, to_device(last_targets[segments], values.device))
    return values.new_zeros(len(last_targets)).index_copy(0, to_device(segments, values.device), at_ends)


def _segments(micro_batch: MicroBatch, role: SegmentRole) -> Tensor:
    """[P] int64 Numbers of the segments of a role."""
    numbers = np.array([number for number, each in enumerate(micro_batch.role) if each == role], np.int64)
    return to_device(numbers, micro_batch.token_ids.device)


def held_out_pairs(
    config: RewardModelingConfig, chosen: FloatArray, rejected: FloatArray, margin: FloatArray
) -> dict[str, float]:
    """Loss, accuracy and calibration on pairs, from the rewards [P] of their responses and their margins [P]."""
    better, worse, wanted = (torch.from_numpy(each).double() for each in (chosen, rejected, margin))
    loss = bradley_terry(better, worse, wanted) + config.centering_coef * centering(better, worse)
    difference = better - worse
    return {
        "loss": float(loss.mean()),
        "pairs/margin": float(difference.mean()),
        "pairs/margin_std": float(difference.std(correction=0)),
        "pairs/accuracy": float((difference > 0).double().mean()),
        "pairs/calibration_error": calibration_error(difference.sigmoid()),
    }


def held_out_scores(rewards: FloatArray, scores: FloatArray) -> dict[str, float]:
    """Squared error, absolute error and correlation on rows with a score, all [N]."""
    found, wanted = (torch.from_numpy(each).double() for each in (rewards, scores))
    deviations = found - found.mean(), wanted - wanted.mean()
    norm = deviations[0].norm() * deviations[1].norm()
    metrics = {
        "loss": float((found - wanted).square().mean()),
        "reward_model/score_error": float((found - wanted).abs().mean()),
    }
    if norm > 0:
        metrics["reward_model/score_correlation"] = float((deviations[0] * deviations[1]).sum() / norm)
    return metrics


def calibration_error(probability: Tensor) -> float:
    """Expected calibration error of the probabilities [P] that the chosen response is preferred, which it always is.

    A prediction is the response with the higher probability, and its confidence is that probability. Over bins of equal
    width between 1/2 and 1, the error is the mean of |accuracy - mean confidence|, weighted by the number of pairs
    (Guo et al., arXiv 1706.04599, equation 3).
    """
    confidence = torch.maximum(probability, 1 - probability)
    bins = ((confidence - 0.5) * 2 * _CALIBRATION_BINS).long().clamp(max=_CALIBRATION_BINS - 1)
    gaps = (probability > 0.5).double() - confidence
    totals = torch.zeros(_CALIBRATION_BINS, dtype=torch.float64).index_add(0, bins, gaps)
    return float(totals.abs().sum() / len(probability))
