"""Losses of a reward model: Bradley-Terry on pairs, squared error on scores, cross entropy on steps; and measures of
held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from strop.algorithms.algorithm import Algorithm
from strop.config.schema.preference import RewardModelingConfig
from strop.protocols import LossFn
from strop.transfers import to_device
from strop.types import (
    Experience,
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

    What it learns stands in `returns`: the score of a sequence, of a pair two numbers whose difference is its margin,
    or the label of each step at its last token.
    """

    config: RewardModelingConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without scores and targets, or where a pair is split."""
        if outputs.scores is None or micro_batch.returns is None:
            raise ValueError(
                "the loss of a reward model needs a classifier's scores, and the targets of them"
            )
        if self.config.loss == "cross_entropy":
            return _of_steps(micro_batch, outputs.scores, micro_batch.returns, counts)
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


def _of_steps(micro_batch: MicroBatch, scores: Tensor, labels: Tensor, counts: GlobalCounts) -> LossOutput:
    """Binary cross entropy of the labels [T] under the scores [T], averaged over the steps of the update (Lightman et
    al., arXiv 2305.20050, section 2.6)."""
    targets = to_device(micro_batch.targets, scores.device)
    weight = micro_batch.weight[micro_batch.segment_of_token()[targets]]
    found, wanted = scores[targets], labels[targets]
    losses = binary_cross_entropy_with_logits(found, wanted, reduction="none")
    right = (found.detach() > 0) == (wanted > 0.5)
    return LossOutput(
        (weight * losses).sum() / counts.tokens,
        {
            "reward_model/score": (weight * found.detach()).sum() / counts.tokens,
            "reward_model/step_accuracy": (weight * right).sum() / counts.tokens,
        },
    )


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


def reward_targets(experience: Experience) -> float | FloatArray:
    """Targets of a reward model for a sequence: its reward, or [L] the labels of its steps."""
    if experience.role != "stepwise":
        return experience.reward
    labels = np.zeros(len(experience.token_ids), dtype=np.float32)
    labels[experience.turn_ends] = experience.turn_rewards
    return labels


def held_out_steps(scores: FloatArray, labels: FloatArray) -> dict[str, float]:
    """Cross entropy, accuracy and calibration on labeled steps, from their scores [N] and labels [N]."""
    found, wanted = torch.from_numpy(scores).double(), torch.from_numpy(labels).double()
    of_label = torch.where(wanted > 0.5, found, -found)
    return {
        "loss": float(-logsigmoid(of_label).mean()),
        "reward_model/step_accuracy": float((of_label > 0).double().mean()),
        "reward_model/calibration_error": calibration_error(of_label.sigmoid()),
    }


def calibration_error(probability: Tensor) -> float:
    """Expected calibration error of the probabilities [P] of what is true: that the chosen response is preferred, or
    the label of a step.

    A prediction is the outcome with the higher probability, and its confidence is that probability. Over bins of equal
    width between 1/2 and 1, the error is the mean of |accuracy - mean confidence|, weighted by the number of pairs
    (Guo et al., arXiv 1706.04599, equation 3).
    """
    confidence = torch.maximum(probability, 1 - probability)
    bins = ((confidence - 0.5) * 2 * _CALIBRATION_BINS).long().clamp(max=_CALIBRATION_BINS - 1)
    gaps = (probability > 0.5).double() - confidence
    totals = torch.zeros(_CALIBRATION_BINS, dtype=torch.float64).index_add(0, bins, gaps)
    return float(totals.abs().sum() / len(probability))
