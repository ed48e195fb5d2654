"""What one update minimises: policy loss + KL penalty - entropy bonus, and what is measured of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.importance import Correction, correct
from strop.algorithms.kl import divergence
from strop.algorithms.policy_losses import PolicyTerms, log_ratio, policy_terms
from strop.algorithms.reduce import Targets, token_weights
from strop.config.schema.algorithm import RolloutAlgorithm
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class Objective:
    """What every algorithm minimises, as a `LossFn`; with the clipped loss GRPO's (arXiv 2402.03300, eq. 3).

    The three parts are aggregated alike, and their metrics `policy_loss + kl_loss - entropy_bonus`
    add up to the loss. What is measured beside them is a plain mean over targets.
    """

    config: RolloutAlgorithm
    max_response_tokens: int
    """The limit of an answer, for `seq-mean-token-sum-norm`."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError where the reference's log-probs or the entropy are wanted and missing."""
        targets = Targets.of(micro_batch)
        weights = token_weights(
            targets, self.config.aggregation, counts, max_response_tokens=self.max_response_tokens
        )
        logprobs = targets.take(outputs.logprobs)
        old = None if micro_batch.old_logprobs is None else targets.take(micro_batch.old_logprobs)
        reference = None if micro_batch.ref_logprobs is None else targets.take(micro_batch.ref_logprobs)
        entropy = None if outputs.entropy is None else targets.take(outputs.entropy)

        ratio = log_ratio(logprobs, old)
        advantages = targets.take(micro_batch.advantages)
        terms = policy_terms(self.config.policy_loss, logprobs, ratio, advantages, targets)
        start = logprobs.detach() if old is None else old
        correction = self._correction(start, targets.take(micro_batch.sampler_logprobs), targets)
        corrected = terms.loss if correction is None else terms.loss * correction.weights
        parts = {"policy_loss": (weights * corrected).sum()}
        loss = parts["policy_loss"]
        if self.config.kl_loss is not None:
            exact = None if outputs.divergence is None else targets.take(outputs.divergence)
            parts["kl_loss"] = self._kl_loss(logprobs, reference, exact, weights)
            loss = loss + parts["kl_loss"]
        if self.config.entropy_coef > 0:
            parts["entropy_bonus"] = self._entropy_bonus(entropy, weights)
            loss = loss - parts["entropy_bonus"]

        with torch.no_grad():
            means = _ratio_means(ratio, terms)
            means |= _sampler_difference(targets.take(micro_batch.policy_logprobs), start)
            if correction is not None:
                means["importance/mean"] = correction.weights
                means["importance/capped_share"] = correction.capped.float()
            if outputs.divergence is not None:
                means["kl/ref"] = targets.take(outputs.divergence)
            elif reference is not None:
                means["kl/ref"] = divergence(logprobs, reference, "k3")
            if entropy is not None:
                means["entropy"] = entropy
            shares = {name: each.sum() / counts.tokens for name, each in means.items()}
        return LossOutput(loss, {name: part.detach() for name, part in parts.items()} | shares)

    def _correction(
        self, trainer: torch.Tensor, sampler: torch.Tensor, targets: Targets
    ) -> Correction | None:
        config = self.config.importance_correction
        return None if config is None else correct(trainer, sampler, targets, config)

    def _kl_loss(
        self,
        logprobs: torch.Tensor,
        reference: torch.Tensor | None,
        exact: torch.Tensor | None,
        weights: torch.Tensor,
    ) -> torch.Tensor:
        config = self.config.kl_loss
        assert config is not None
        if config.estimator == "full":
            if exact is None:
                raise ValueError("algorithm.kl_loss: full needs the divergence of each target; there is none")
            return config.coef * (weights * exact).sum()
        if reference is None:
            raise ValueError("algorithm.kl_loss needs the reference's log-probs; the micro-batch has none")
        return config.coef * (weights * divergence(logprobs, reference, config.estimator)).sum()

    def _entropy_bonus(self, entropy: torch.Tensor | None, weights: torch.Tensor) -> torch.Tensor:
        if entropy is None:
            raise ValueError("algorithm.entropy_coef needs the entropy of each target; there is none")
        return self.config.entropy_coef * (weights * entropy).sum()


def _ratio_means(log_ratio: torch.Tensor, terms: PolicyTerms) -> dict[str, torch.Tensor]:
    """[K] each: how far this update's policy is from that at the step's start."""
    ratio = log_ratio.exp()
    any_bound = terms.clipped_low | terms.clipped_high | terms.clipped_dual
    return {
        "ratio/mean": ratio,
        # KL(old || new): the tokens are old's, so that r is new / old.
        "kl/old": torch.expm1(log_ratio) - log_ratio,
        "clip_fraction": any_bound.float(),
        "clip_fraction/low": terms.clipped_low.float(),
        "clip_fraction/high": terms.clipped_high.float(),
        "clip_fraction/dual": terms.clipped_dual.float(),
    }


def _sampler_difference(sampler: torch.Tensor, trainer: torch.Tensor) -> dict[str, torch.Tensor]:
    """[K] each: how far apart two log-probs are that exact arithmetic would make equal."""
    difference = sampler - trainer
    return {"logprob_diff/mean_abs": difference.abs(), "logprob_diff/mean_square": difference.square()}
