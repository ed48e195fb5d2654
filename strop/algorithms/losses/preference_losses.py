"""Algorithms on pairs (DPO, CPO, SimPO, ORPO) and on labeled responses (KTO, APO-zero, BCO)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, relu

from strop.algorithms.algorithm import Algorithm
from strop.algorithms.kl import bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.reference_point import MeanLogRatio, MismatchedKl, NoReferencePoint, ReferencePoint
from strop.config.schema.preference import (
    BcoConfig,
    CpoConfig,
    DpoConfig,
    DpoLossName,
    KtoConfig,
    OrpoConfig,
    PreferenceConfig,
    UnpairedConfig,
)
from strop.protocols import LossFn, TrainingEngine
from strop.transfers import to_device
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs

_MAX_EXPONENT = 80.0
"""Largest exponent of e that is finite in float32, with room for a factor."""
_MAX_MEAN_LOGPROB = -1e-6
"""Largest mean log-prob whose odds are computed: of a certain response they are infinite."""


@dataclass(frozen=True)
class PreferenceLoss(ABC):
    """The loss of an algorithm on pairs, averaged over all pairs of the update; a `LossFn`.

    A cross entropy of the chosen responses (`sft`, `sft_weight`, ORPO's) is averaged over all their tokens in the
    update. Neither depends on the split into micro-batches, where TRL's means over micro-batches do.
    """

    config: PreferenceConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without the reference's log-probs where the loss reads them, or where a pair is split."""
        targets, chosen = TargetTokens.of(micro_batch), _chosen(micro_batch)
        pairs, losses, sft_weight = self.compare(micro_batch, outputs, targets, chosen)
        loss = (micro_batch.weight[chosen] * losses).sum() / counts.pairs
        metrics = {"preference_loss": loss.detach()}
        if sft_weight:
            imitated = _cross_entropy_of_chosen(micro_batch, outputs, targets, chosen) / counts.chosen_tokens
            loss = loss + sft_weight * imitated
            metrics["sft_loss"] = imitated.detach()
        with torch.no_grad():
            better, worse = self.config.beta * pairs.chosen, self.config.beta * pairs.rejected
            means = {
                "pairs/margin": better - worse,
                "pairs/accuracy": (better > worse).float(),
                "pairs/chosen_reward": better,
                "pairs/rejected_reward": worse,
            }
            metrics |= {name: each.sum() / counts.pairs for name, each in means.items()}
        return LossOutput(loss, metrics)

    @abstractmethod
    def compare(
        self, micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
    ) -> tuple[_Pairs, Tensor, float]:
        """The compared quantities, their losses [P], and the weight of the chosen responses' cross entropy."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The compared quantities, [P] each: log-ratios to the reference, or log-probs without one."""

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor


def _against_reference(
    config: DpoConfig, micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
) -> _Pairs:
    """log(policy / reference) of each response, summed over its targets."""
    if micro_batch.ref_logprobs is None:
        raise ValueError("dpo needs the reference's log-probs, which the micro-batch does not have")
    ratios = bound_log_ratio(targets.take(outputs.logprobs) - targets.take(micro_batch.ref_logprobs))
    if config.excess_token_weight != 1.0:
        ratios = ratios * _excess_weights(micro_batch, targets, chosen, config.excess_token_weight)
    return _pairs(ratios, targets, chosen)


def _without_reference(
    micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor, *, mean: bool
) -> _Pairs:
    """Log-prob of each response, as a sum over its targets or their mean."""
    pairs = _pairs(targets.take(outputs.logprobs), targets, chosen)
    if not mean:
        return pairs
    return _Pairs(
        pairs.chosen / pairs.chosen_tokens,
        pairs.rejected / pairs.rejected_tokens,
        pairs.chosen_tokens,
        pairs.rejected_tokens,
    )


def _pairs(values: Tensor, targets: TargetTokens, chosen: Tensor) -> _Pairs:
    """Sums over the targets of each response, from [K] values."""
    sums = values.new_zeros(targets.num_segments).index_add(0, targets.segment, values)
    tokens = torch.bincount(targets.segment, minlength=targets.num_segments).clamp(min=1)
    return _Pairs(sums[chosen], sums[chosen + 1], tokens[chosen], tokens[chosen + 1])


def _excess_weights(micro_batch: MicroBatch, targets: TargetTokens, chosen: Tensor, weight: float) -> Tensor:
    """[K] 1 for a response's first tokens, as many as the other response of its pair has, and `weight` for the rest."""
    tokens = torch.bincount(targets.segment, minlength=targets.num_segments)
    shorter = tokens.clone()
    shorter[chosen] = shorter[chosen + 1] = torch.minimum(tokens[chosen], tokens[chosen + 1])
    first = tokens.cumsum(0) - tokens
    position = torch.arange(len(targets.segment), device=targets.segment.device) - first[targets.segment]
    return torch.where(position < shorter[targets.segment], 1.0, weight)


def _score(log_ratio: Tensor, config: DpoConfig) -> Tensor:
    """f'(policy / reference) of the divergence, up to a constant: for the reverse KL divergence the log-ratio itself
    (Wang et al., arXiv 2309.16240, table 1)."""
    power = config.divergence_alpha - 1
    match config.divergence:
        case "forward_kl":
            return 1 - (-log_ratio).clamp(max=_MAX_EXPONENT).exp()
        case "jsd":
            return math.log(2) + logsigmoid(log_ratio)
        case "alpha" if abs(power) > 1e-6:
            return ((power * log_ratio).clamp(max=_MAX_EXPONENT).exp() - 1) / power
        case _:
            return log_ratio


def _margin(pairs: _Pairs, config: DpoConfig) -> Tensor:
    return config.beta * (_score(pairs.chosen, config) - _score(pairs.rejected, config))


def _mean_score_difference(pairs: _Pairs, config: DpoConfig) -> Tensor:
    """Difference between the scores per token of the two responses."""
    better, worse = _score(pairs.chosen, config), _score(pairs.rejected, config)
    return better / pairs.chosen_tokens - worse / pairs.rejected_tokens


def _smoothed(margin: Tensor, smoothing: float) -> Tensor:
    """-log sigmoid(margin), with the weight `smoothing` for swapped labels (conservative DPO, Mitchell 2023)."""
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def _robust(pairs: _Pairs, config: DpoConfig) -> Tensor:
    margin, e = _margin(pairs, config), config.label_smoothing
    return (-(1 - e) * logsigmoid(margin) + e * logsigmoid(-margin)) / (1 - 2 * e)


def _exo_pair(pairs: _Pairs, config: DpoConfig) -> Tensor:
    margin, e = _margin(pairs, config), config.label_smoothing
    of_chosen = margin.sigmoid() * (logsigmoid(margin) - math.log1p(-e))
    return of_chosen + (-margin).sigmoid() * (logsigmoid(-margin) - math.log(e))


def _nca_pair(pairs: _Pairs, config: DpoConfig) -> Tensor:
    better, worse = config.beta * pairs.chosen, config.beta * pairs.rejected
    return -logsigmoid(better) - 0.5 * logsigmoid(-better) - 0.5 * logsigmoid(-worse)


def _discopop(pairs: _Pairs, config: DpoConfig) -> Tensor:
    margin = _margin(pairs, config)
    share = (margin / config.discopop_temperature).sigmoid()
    return -logsigmoid(margin) * (1 - share) + (-margin).clamp(max=_MAX_EXPONENT).exp() * share


_DPO_LOSSES: Mapping[DpoLossName, Callable[[_Pairs, DpoConfig], Tensor]] = {
    # Rafailov et al., arXiv 2305.18290, equation 7
    "sigmoid": lambda pairs, config: _smoothed(_margin(pairs, config), config.label_smoothing),
    # the same per token: Meng et al., arXiv 2405.14734, and Lambert et al., arXiv 2411.15124
    "sigmoid_norm": lambda pairs, config: _smoothed(
        config.beta * _mean_score_difference(pairs, config), config.label_smoothing
    ),
    # Zhao et al., arXiv 2305.10425
    "hinge": lambda pairs, config: relu(1 - _margin(pairs, config)),
    # Azar et al., arXiv 2310.12036, equation 17, per token as its authors and TRL compute it
    "ipo": lambda pairs, config: (_mean_score_difference(pairs, config) - 1 / (2 * config.beta)).square(),
    # Chowdhury et al., arXiv 2403.00409
    "robust": _robust,
    # Ji et al., arXiv 2402.00856, equation 16
    "exo_pair": _exo_pair,
    # Chen et al., arXiv 2402.05369
    "nca_pair": _nca_pair,
    # Jung et al., arXiv 2404.04656, without its shift of the reward
    "bco_pair": lambda pairs, config: (
        -logsigmoid(config.beta * pairs.chosen) - logsigmoid(-config.beta * pairs.rejected)
    ),
    # Wu et al., arXiv 2405.00675, equation 4.7 with certain preferences
    "sppo_hard": lambda pairs, config: (
        (pairs.chosen - 0.5 / config.beta).square() + (pairs.rejected + 0.5 / config.beta).square()
    ),
    # D'Oosterlinck et al., arXiv 2408.06266, equations 7 and 8
    "apo_zero": lambda pairs, config: (
        1 - (config.beta * pairs.chosen).sigmoid() + (config.beta * pairs.rejected).sigmoid()
    ),
    "apo_down": lambda pairs, config: (
        (config.beta * pairs.chosen).sigmoid() + 1 - (config.beta * (pairs.chosen - pairs.rejected)).sigmoid()
    ),
    # Lu et al., arXiv 2406.08414, equation 5
    "discopop": _discopop,
}


class DpoLoss(PreferenceLoss):
    """Weighted sum of DPO's losses."""

    config: DpoConfig

    def compare(
        self, micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
    ) -> tuple[_Pairs, Tensor, float]:
        config = self.config
        pairs = _against_reference(config, micro_batch, outputs, targets, chosen)
        weights = {name: weight for name, weight in config.losses.items() if name != "sft"}
        losses = sum(
            (weight * _DPO_LOSSES[name](pairs, config) for name, weight in weights.items()),
            torch.zeros_like(pairs.chosen),
        )
        return pairs, losses, config.losses.get("sft", 0.0)


class Dpo(Algorithm[DpoConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return DpoLoss(self.section)


@torch.no_grad()
def sync_reference(reference: nn.Module, policy: nn.Module, policy_weight: float) -> None:
    """Set each weight of the reference to policy_weight * policy + (1 - policy_weight) * reference.

    The soft update of Gorbatovski et al., arXiv 2404.09656, with policy_weight as alpha. The modules have the same
    parameters; the result has the dtype of the reference.
    """
    own = dict(policy.named_parameters())
    for name, weight in reference.named_parameters():
        weight.lerp_(own[name].to(weight.dtype), policy_weight)


def _cpo(pairs: _Pairs, config: CpoConfig) -> Tensor:
    """Xu et al., arXiv 2401.08417, equation 3; SimPO, arXiv 2405.14734, equation 6; others as under DPO."""
    difference = _shaped(pairs.chosen, config) - _shaped(pairs.rejected, config)
    match config.loss:
        case "hinge":
            return relu(1 - config.beta * difference)
        case "ipo":
            return (difference - 1 / (2 * config.beta)).square()
        case "simpo":
            return _smoothed(config.beta * difference - config.margin, config.label_smoothing)
        case "sigmoid":
            return _smoothed(config.beta * difference, config.label_smoothing)


class CpoLoss(PreferenceLoss):
    """CPO, SimPO and AlphaPO."""

    config: CpoConfig

    def compare(
        self, micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
    ) -> tuple[_Pairs, Tensor, float]:
        mean = self.config.loss in ("ipo", "simpo")
        pairs = _without_reference(micro_batch, outputs, targets, chosen, mean=mean)
        return pairs, _cpo(pairs, self.config), self.config.sft_weight


class Cpo(Algorithm[CpoConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return CpoLoss(self.section)


def _shaped(logprob: Tensor, config: CpoConfig) -> Tensor:
    """AlphaPO's reward of a response (Gupta et al., arXiv 2501.03884)."""
    if config.reward_shape == 0:
        return logprob
    return (1 - (-config.reward_shape * logprob).clamp(max=_MAX_EXPONENT).exp()) / config.reward_shape


def _log_odds(mean_logprob: Tensor) -> Tensor:
    """log(p / (1 - p)) of the mean probability p per token (Hong et al., arXiv 2403.07691, equation 4)."""
    logprob = mean_logprob.clamp(max=_MAX_MEAN_LOGPROB)
    return logprob - (-torch.expm1(logprob)).log()


class OrpoLoss(PreferenceLoss):
    """Odds ratio of the two responses, and the cross entropy of the chosen one."""

    config: OrpoConfig

    def compare(
        self, micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
    ) -> tuple[_Pairs, Tensor, float]:
        pairs = _without_reference(micro_batch, outputs, targets, chosen, mean=True)
        difference = _log_odds(pairs.chosen) - _log_odds(pairs.rejected)
        return pairs, -self.config.beta * logsigmoid(difference), 1.0


class Orpo(Algorithm[OrpoConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return OrpoLoss(self.section)


def _cross_entropy_of_chosen(
    micro_batch: MicroBatch, outputs: TokenOutputs, targets: TargetTokens, chosen: Tensor
) -> Tensor:
    """Sum over the targets of the chosen responses, in nats."""
    logprobs = targets.take(outputs.logprobs)
    sums = logprobs.new_zeros(targets.num_segments).index_add(0, targets.segment, logprobs)
    return -(micro_batch.weight[chosen] * sums[chosen]).sum()


def _chosen(micro_batch: MicroBatch) -> Tensor:
    """[P] int64 Segments of the chosen responses, each of which its rejected one follows."""
    chosen = [segment for segment, role in enumerate(micro_batch.role) if role == "chosen"]
    rejected = [segment for segment, role in enumerate(micro_batch.role) if role == "rejected"]
    if rejected != [segment + 1 for segment in chosen]:
        raise ValueError("a micro-batch does not hold each chosen response directly before its rejected one")
    return to_device(np.array(chosen, dtype=np.int64), micro_batch.token_ids.device)


@dataclass(frozen=True)
class UnpairedLoss(ABC):
    """Mean over all labeled responses of the update; a `LossFn`.

    With u the log-ratio of a response to the reference, summed over its tokens, u_0 `GlobalCounts.reference_point`, and
    s = 1 for a desirable and -1 for an undesirable response, and w the weight of its label:

        kto   w * (1 - sigmoid(s * beta * (u - u_0)))    Ethayarajh et al., arXiv 2402.01306, equation 7
        bco   -log sigmoid(s * beta * (u - u_0))         Jung et al., arXiv 2404.04656

    With u_0 = 0, the first is the unpaired APO-zero (D'Oosterlinck et al., arXiv 2408.06266, equation 7).
    """

    config: UnpairedConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without the reference's log-probs, or for a sequence without a label."""
        if micro_batch.ref_logprobs is None:
            raise ValueError(
                f"{self.config.type} needs the reference's log-probs, which the micro-batch does not have"
            )
        targets = TargetTokens.of(micro_batch)
        segments, is_desirable = _labeled(micro_batch)
        ratios = bound_log_ratio(targets.take(outputs.logprobs) - targets.take(micro_batch.ref_logprobs))
        ratios = ratios.new_zeros(targets.num_segments).index_add(0, targets.segment, ratios)[segments]
        sign = torch.where(is_desirable, 1.0, -1.0)
        signed = sign * self.config.beta * (ratios - counts.reference_point)
        loss = (micro_batch.weight[segments] * self.losses(signed, is_desirable)).sum() / counts.sequences
        with torch.no_grad():
            metrics = {
                "preference_loss": loss.detach(),
                "labels/accuracy": (signed > 0).sum() / counts.sequences,
                "labels/reference_point": signed.new_tensor(
                    counts.reference_point * len(segments) / counts.sequences
                ),
            }
            metrics |= _mean_rewards(self.config.beta * ratios, is_desirable, counts)
        return LossOutput(loss, metrics)

    @abstractmethod
    def losses(self, signed: Tensor, is_desirable: Tensor) -> Tensor:
        """[N] of s * beta * (u - u_0)."""


class KtoLoss(UnpairedLoss):
    """KTO, and with a reference point of 0 APO-zero."""

    config: KtoConfig

    def losses(self, signed: Tensor, is_desirable: Tensor) -> Tensor:
        weight = torch.where(is_desirable, self.config.desirable_weight, self.config.undesirable_weight)
        return weight * (-signed).sigmoid()


class Kto(Algorithm[KtoConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return KtoLoss(self.section)

    def reference_point(self, engine: TrainingEngine, max_tokens: int) -> ReferencePoint:
        return MismatchedKl(engine, max_tokens) if self.section.estimates_kl else NoReferencePoint()


class BcoLoss(UnpairedLoss):
    """BCO."""

    config: BcoConfig

    def losses(self, signed: Tensor, is_desirable: Tensor) -> Tensor:
        return -logsigmoid(signed)


class Bco(Algorithm[BcoConfig]):
    def loss(self, max_response_tokens: int) -> LossFn:
        return BcoLoss(self.section)

    def reference_point(self, engine: TrainingEngine, max_tokens: int) -> ReferencePoint:
        return MeanLogRatio(engine)


def _mean_rewards(rewards: Tensor, is_desirable: Tensor, counts: GlobalCounts) -> dict[str, Tensor]:
    """Mean implied reward of each label that the update has, and their difference if it has both."""
    found: dict[str, Tensor] = {}
    if counts.desirable:
        found["labels/desirable_reward"] = (rewards * is_desirable).sum() / counts.desirable
    if counts.undesirable:
        found["labels/undesirable_reward"] = (rewards * ~is_desirable).sum() / counts.undesirable
    if counts.desirable and counts.undesirable:
        found["labels/margin"] = found["labels/desirable_reward"] - found["labels/undesirable_reward"]
    return found


def _labeled(micro_batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """[N] int64: segments of the responses; [N] bool: whether each is desirable."""
    roles = {segment: role for segment, role in enumerate(micro_batch.role) if role is not None}
    if other := set(roles.values()) - {"desirable", "undesirable"}:
        raise ValueError(f"a micro-batch of labeled responses holds a sequence with the role {other.pop()}")
    device = micro_batch.token_ids.device
    segments = to_device(np.array(list(roles), dtype=np.int64), device)
    return segments, to_device(np.array([role == "desirable" for role in roles.values()]), device)
