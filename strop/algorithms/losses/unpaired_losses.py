"""Losses on responses that are labeled desirable or undesirable: KTO, APO-zero and BCO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from strop.algorithms.log_ratios import bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.preference import BcoConfig, KtoConfig, UnpairedConfig
from strop.transfers import to_device
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class UnpairedLoss:
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
        match self.config:
            case KtoConfig(desirable_weight=desirable, undesirable_weight=undesirable):
                losses = torch.where(is_desirable, desirable, undesirable) * (-signed).sigmoid()
            case BcoConfig():
                losses = -logsigmoid(signed)
        loss = (micro_batch.weight[segments] * losses).sum() / counts.sequences
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
