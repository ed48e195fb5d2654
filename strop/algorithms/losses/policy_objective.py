"""The loss of RL algorithms: policy loss + KL penalty + distillation - entropy bonus, with its metrics."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.kl import bound_divergence, estimate_kl, sampled_divergence
from strop.algorithms.losses.aggregation import (
    ImportanceWeights,
    PolicyLossTerms,
    TargetTokens,
    compute_importance_weights,
    kept_targets,
    token_weights,
)
from strop.algorithms.losses.policy_losses import log_ratio, policy_loss_terms
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.distillation import DistillationLossConfig, SampledKlLossConfig
from strop.config.schema.policy_loss import GpgLossConfig, OpmdLossConfig
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """The objective of RL algorithms as a `LossFn`; with the clipped loss, GRPO's (arXiv 2402.03300, eq. 3).

    All terms are aggregated in the same way; `policy_loss + kl_loss + distillation_loss - entropy_bonus` is the
    loss. Other metrics are means over the targets that the update computes, and those of the old policy over the
    targets that are compared with it.
    """

    config: RolloutAlgorithmConfig
    max_response_tokens: int
    """Response limit, which `seq-mean-token-sum-norm` divides by."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Raises ValueError where the reference's log-probs, a divergence or the entropy are needed and missing."""
        targets = TargetTokens.of(micro_batch)
        logprobs = targets.take(outputs.logprobs)
        old, compared = None, None
        if micro_batch.old_logprobs is not None:
            old = targets.take(micro_batch.old_logprobs)
            compared = ~old.isnan()
            old = torch.where(compared, old, logprobs.detach())
        reference = None if micro_batch.ref_logprobs is None else targets.take(micro_batch.ref_logprobs)
        entropy = None if outputs.entropy is None else targets.take(outputs.entropy)

        ratio = log_ratio(logprobs, old)
        advantages = targets.take(micro_batch.advantages)
        terms = policy_loss_terms(self.config.policy_loss, logprobs, ratio, advantages, targets)
        current = logprobs.detach()
        start = current if old is None else old
        sampler = targets.take(micro_batch.sampler_logprobs)
        kept = self._kept(current, start, sampler, targets)
        weights = token_weights(
            targets,
            self.config.aggregation,
            counts,
            max_response_tokens=self.max_response_tokens,
            kept=kept,
        )
        correction = self._correction(current, start, sampler, targets)
        corrected = terms.loss
        if correction is not None:
            corrected = corrected * correction.weights / counts.mean_importance_weight
        parts = {"policy_loss": (weights * corrected).sum()}
        loss = parts["policy_loss"]
        if self.config.kl_loss is not None:
            exact = None if outputs.divergence is None else targets.take(outputs.divergence)
            parts["kl_loss"] = self._kl_loss(logprobs, reference, exact, ratio, weights, targets)
            loss = loss + parts["kl_loss"]
        distillation = self.config.distillation
        from_teacher = None
        if distillation is not None and distillation.loss is not None:
            from_teacher = _teacher_divergence(distillation.loss, logprobs, micro_batch, outputs, targets)
            bounded = bound_divergence(from_teacher, distillation.loss.max_divergence)
            parts["distillation_loss"] = distillation.loss.coef * (weights * bounded).sum()
            loss = loss + parts["distillation_loss"]
        if self.config.entropy_coef > 0:
            parts["entropy_bonus"] = self._entropy_bonus(entropy, weights)
            loss = loss - parts["entropy_bonus"]

        with torch.no_grad():
            of_old = _ratio_means(ratio, terms)
            if micro_batch.policy_logprobs is not None:
                of_old |= _sampler_trainer_difference(targets.take(micro_batch.policy_logprobs), start)
            if correction is not None:
                of_old["importance/mean"] = correction.weights
                of_old["importance/capped_fraction"] = correction.capped.float()
            means = {}
            if kept is not None:
                means["rejection/token_fraction"] = (~kept).float()
            if outputs.divergence is not None:
                means["kl/ref"] = targets.take(outputs.divergence)
            elif reference is not None:
                means["kl/ref"] = estimate_kl(logprobs, reference, "k3")
            if from_teacher is not None:
                means["distillation_loss/divergence"] = from_teacher
            if entropy is not None:
                means["entropy"] = entropy
            shares = {name: each.sum() / counts.measured_tokens for name, each in means.items()}
            number = counts.measured_tokens if counts.compared_tokens is None else counts.compared_tokens
            for name, each in of_old.items():
                shares[name] = (each if compared is None else each * compared).sum() / number
        return LossOutput(loss, {name: part.detach() for name, part in parts.items()} | shares)

    def _kept(
        self, current: torch.Tensor, start: torch.Tensor, sampler: torch.Tensor, targets: TargetTokens
    ) -> torch.Tensor | None:
        """[K] bool. With the sampler as the old policy, the current policy is compared with it."""
        if not self.config.rejection:
            return None
        trainer = current if self.config.old_policy == "sampler" else start
        return kept_targets(trainer, sampler, targets, self.config.rejection)

    def _correction(
        self, current: torch.Tensor, start: torch.Tensor, sampler: torch.Tensor, targets: TargetTokens
    ) -> ImportanceWeights | None:
        """The weights, of the current policy where the loss has no ratio of its own to the sampler's."""
        config = self.config.importance_correction
        if config is None:
            return None
        trainer = current if weighs_current_policy(self.config) else start
        return compute_importance_weights(trainer, sampler, targets, config)

    def _kl_loss(
        self,
        logprobs: torch.Tensor,
        reference: torch.Tensor | None,
        exact: torch.Tensor | None,
        ratio: torch.Tensor,
        weights: torch.Tensor,
        targets: TargetTokens,
    ) -> torch.Tensor:
        config = self.config.kl_loss
        assert config is not None
        if config.estimator == "full":
            if exact is None:
                raise ValueError(
                    "algorithm.kl_loss: the estimator full needs the divergence of each target, which is missing"
                )
            return config.coef * (weights * exact).sum()
        if reference is None:
            raise ValueError(
                "algorithm.kl_loss needs the reference's log-probs, which the micro-batch does not have"
            )
        estimate = estimate_kl(logprobs, reference, config.estimator)
        if config.weight_by_ratio:
            if config.ratio_level == "sequence":
                ratio = targets.sequence_sum(ratio) / targets.tokens
            weight = ratio.exp()
            estimate = estimate * (weight if config.max_ratio is None else weight.clamp(max=config.max_ratio))
        return config.coef * (weights * estimate).sum()

    def _entropy_bonus(self, entropy: torch.Tensor | None, weights: torch.Tensor) -> torch.Tensor:
        if entropy is None:
            raise ValueError("algorithm.entropy_coef needs the entropy of each target, which is missing")
        return self.config.entropy_coef * (weights * entropy).sum()


def weighs_current_policy(config: RolloutAlgorithmConfig) -> bool:
    """Whether importance weights are those of the current policy, and not of the old one.

    The losses with a ratio correct for the way from the old to the current policy by that ratio. With the sampler
    as the old policy, the weights of the losses without one do.
    """
    return config.old_policy == "sampler" and isinstance(config.policy_loss, GpgLossConfig | OpmdLossConfig)


def _teacher_divergence(
    section: DistillationLossConfig,
    logprobs: torch.Tensor,
    micro_batch: MicroBatch,
    outputs: TokenOutputs,
    targets: TargetTokens,
) -> torch.Tensor:
    """[K] Divergence from the teacher at each target."""
    if not isinstance(section.divergence, SampledKlLossConfig):
        if outputs.teacher_divergence is None:
            raise ValueError("algorithm.distillation.loss needs the teacher's divergence, which is missing")
        return targets.take(outputs.teacher_divergence)
    if micro_batch.teacher_logprobs is None:
        raise ValueError(
            "algorithm.distillation.loss needs the teacher's log-probs, which the micro-batch does not have"
        )
    return sampled_divergence(logprobs, targets.take(micro_batch.teacher_logprobs), section.divergence)


def _ratio_means(log_ratio: torch.Tensor, terms: PolicyLossTerms) -> dict[str, torch.Tensor]:
    """[K] each: differences between the current policy and the policy at the start of the step."""
    ratio = log_ratio.exp()
    any_bound = terms.clipped_low | terms.clipped_high | terms.clipped_dual
    return {
        "ratio/mean": ratio,
        # KL(old || new): the tokens were sampled from the old policy, so r is new / old.
        "approx_kl": torch.expm1(log_ratio) - log_ratio,
        "clip_fraction": any_bound.float(),
        "clip_fraction/low": terms.clipped_low.float(),
        "clip_fraction/high": terms.clipped_high.float(),
        "clip_fraction/dual": terms.clipped_dual.float(),
    }


def _sampler_trainer_difference(sampler: torch.Tensor, trainer: torch.Tensor) -> dict[str, torch.Tensor]:
    """[K] each: differences between the sampler's and the trainer's log-probs, 0 in exact arithmetic."""
    difference = sampler - trainer
    return {"logprob_diff/mean_abs": difference.abs(), "logprob_diff/mean_square": difference.square()}
