"""PRIME: rewards of tokens by an implicit process reward model, its loss, and the advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from strop.algorithms.advantages import GroupIndex, rewards_to_go, whiten
from strop.algorithms.algorithm import RolloutAlgorithm, RolloutBatch
from strop.algorithms.losses.aggregation import TargetTokens, token_weights
from strop.config.schema.algorithm import PrimeConfig
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


def implicit_rewards(
    log_ratio: torch.Tensor, tokens: torch.Tensor, *, beta: float, normalize: bool
) -> torch.Tensor:
    """[K] float64: rewards of tokens (Yuan et al., arXiv 2412.01981, proposition 3.1).

        r_t = beta log(pi_reward / pi_reference)

    The last token of a rollout has no reward, because the outcome is there. `normalize` divides by the largest
    absolute reward-to-go, as verl's recipe does.

    Args:
        log_ratio: [K] of the targets of N rollouts, end to end.
        tokens: [N] number of targets of each rollout.
        beta: factor of the log-ratio.
        normalize: whether rewards are divided by the largest absolute sum to a rollout's end.
    """
    rewards = beta * log_ratio.double()
    rewards[tokens.cumsum(0) - 1] = 0.0
    if normalize:
        rewards = rewards / (rewards_to_go(rewards, tokens, gamma=1.0).abs().max() + 1e-6)
    return rewards


def prime(scored: RolloutBatch, *, outcome_coef: float, process_coef: float) -> torch.Tensor:
    """[K] float64: whitened returns of process and outcome rewards (Cui et al., PRIME, arXiv 2502.01456, equation 5).

        A_t = whiten(sum over s >= t of process_coef (r_s - b) + outcome_coef (R - b'))

    b is the mean over the group's other rollouts of their mean process reward, and b' the mean of their outcomes. As
    in verl's recipe, r_s is first multiplied by n / (n - 1), and b is the sum of all n means divided by n - 1. A
    rollout that is alone in its group has no reward.
    """
    if scored.process_rewards is None:
        raise ValueError("prime needs RolloutBatch.process_rewards, which are missing")
    groups, process = GroupIndex.of(scored.group), scored.process_rewards.double()
    others = (groups.size - 1).clamp(min=1)
    scale, alone = groups.size / others, groups.size == 1
    rollout = scored.expand_to_tokens(torch.arange(len(scored.tokens)))
    means = process.new_zeros(len(scored.tokens)).index_add(0, rollout, process) / scored.tokens
    centered = (process * scale[rollout] - (groups.total(means) / others)[rollout]) * ~alone[rollout]
    outcomes = scored.rewards.float().double()
    outcomes = (outcomes * scale - groups.total(outcomes) / others) * ~alone
    rewards = (process_coef * centered).index_add(0, scored.tokens.cumsum(0) - 1, outcome_coef * outcomes)
    return whiten(rewards_to_go(rewards, scored.tokens, gamma=1.0))


class Prime(RolloutAlgorithm[PrimeConfig]):
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        return prime(scored, outcome_coef=self.section.outcome_coef, process_coef=self.section.process_coef)


@dataclass(frozen=True, slots=True)
class ProcessRewardLoss:
    """The cross entropy of outcomes, averaged over sequences (arXiv 2412.01981, equation 5).

        -(R log p + (1 - R) log(1 - p)),   p = sigmoid(beta sum over tokens of log(pi_reward / pi_reference))

    R is the outcome of the sequence's rollout, between 0 and 1, which the micro-batch has in `returns`.
    """

    beta: float

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError for a micro-batch without outcomes or the reference's log-probs."""
        if micro_batch.returns is None or micro_batch.ref_logprobs is None:
            raise ValueError(
                "the loss of a process reward model needs outcomes and the reference's log-probs"
            )
        targets = TargetTokens.of(micro_batch)
        ratio = targets.take(outputs.logprobs) - targets.take(micro_batch.ref_logprobs)
        logits, outcomes = self.beta * targets.sequence_sum(ratio), targets.take(micro_batch.returns)
        weights = token_weights(targets, "seq-mean-token-sum", counts, max_response_tokens=0) / targets.tokens
        loss = weights * binary_cross_entropy_with_logits(logits, outcomes, reduction="none")
        right = (logits.detach() > 0) == (outcomes > 0.5)
        return LossOutput(loss.sum(), {"accuracy": (weights * right).sum()})
