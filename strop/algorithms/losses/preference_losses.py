"""Losses on pairs of a chosen and a rejected response: DPO."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from strop.algorithms.log_ratios import bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.algorithm import DpoConfig
from strop.transfers import to_device
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """Direct preference optimization (Rafailov et al., arXiv 2305.18290, equation 7); a `LossFn`.

        -log sigmoid(margin),  margin = r(chosen) - r(rejected),  r(y) = beta log(pi(y | x) / ref(y | x))

    where a response's log-prob is the sum over its targets; averaged over all pairs of the update. With
    label smoothing e the loss is (1 - e) times this plus e times -log sigmoid(-margin): conservative DPO
    (Mitchell, 2023), as in TRL.
    """

    config: DpoConfig

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without the reference's log-probs, or where a pair is split."""
        if micro_batch.ref_logprobs is None:
            raise ValueError("dpo needs the reference's log-probs, which the micro-batch does not have")
        chosen = _chosen(micro_batch)
        targets = TargetTokens.of(micro_batch)
        ratios = bound_log_ratio(targets.take(outputs.logprobs) - targets.take(micro_batch.ref_logprobs))
        rewards = self.config.beta * ratios.new_zeros(targets.num_segments).index_add(
            0, targets.segment, ratios
        )
        better, worse = rewards[chosen], rewards[chosen + 1]
        margins = better - worse
        smoothing = self.config.label_smoothing
        losses = -(1 - smoothing) * logsigmoid(margins) - smoothing * logsigmoid(-margins)
        loss = (micro_batch.weight[chosen] * losses).sum() / counts.pairs
        with torch.no_grad():
            means = {
                "dpo/margin": margins,
                "dpo/accuracy": (margins > 0).float(),
                "dpo/chosen_reward": better,
                "dpo/rejected_reward": worse,
            }
            shares = {name: each.sum() / counts.pairs for name, each in means.items()}
        return LossOutput(loss, {"dpo_loss": loss.detach(), **shares})


def _chosen(micro_batch: MicroBatch) -> torch.Tensor:
    """[pairs] int64 Segments of the chosen responses, each of which its rejected one follows."""
    chosen = [segment for segment, role in enumerate(micro_batch.role) if role == "chosen"]
    rejected = [segment for segment, role in enumerate(micro_batch.role) if role == "rejected"]
    if rejected != [segment + 1 for segment in chosen]:
        raise ValueError("a micro-batch does not hold each chosen response directly before its rejected one")
    return to_device(np.array(chosen, dtype=np.int64), micro_batch.token_ids.device)
