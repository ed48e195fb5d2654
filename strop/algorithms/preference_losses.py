"""Learning from pairs of answers, of which one was preferred."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from strop.algorithms.reduce import Targets
from strop.config.schema.algorithm import Dpo
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """Direct preference optimization (Rafailov et al., arXiv 2305.18290, equation 7); a `LossFn`.

        -log sigmoid(margin),  margin = r(chosen) - r(rejected),  r(y) = beta log(pi(y | x) / ref(y | x))

    with an answer's log-prob the sum over its targets; averaged over all pairs of the update. With
    label smoothing e it is (1 - e) times that and e times -log sigmoid(-margin): conservative DPO
    (Mitchell, 2023), as in TRL.
    """

    config: Dpo

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError without the reference's log-probs, or where a pair is not whole."""
        if micro_batch.ref_logprobs is None:
            raise ValueError("dpo needs the reference's log-probs; the micro-batch has none")
        chosen, rejected = _pairs(micro_batch)
        targets = Targets.of(micro_batch)
        ratios = targets.take(outputs.logprobs) - targets.take(micro_batch.ref_logprobs)
        rewards = self.config.beta * ratios.new_zeros(targets.segments).index_add(0, targets.segment, ratios)
        better, worse = rewards[chosen], rewards[rejected]
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


def _pairs(micro_batch: MicroBatch) -> tuple[list[int], list[int]]:
    """[pairs] each: the segments of chosen answers, and of those rejected for them."""
    chosen = [segment for segment, role in enumerate(micro_batch.role) if role == "chosen"]
    rejected = [segment for segment, role in enumerate(micro_batch.role) if role == "rejected"]
    if rejected != [segment + 1 for segment in chosen]:
        raise ValueError("a micro-batch holds a chosen answer apart from its rejected one")
    return chosen, rejected
