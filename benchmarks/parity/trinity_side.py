"""Cases that compare Trinity-RFT's algorithm modules with Strop."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import strop_side
import torch
from batches import Batch
from cases import Case, Value, with_gradient
from trinity.algorithm.advantage_fn.clipb_advantage import ClipBAdvantageFn
from trinity.algorithm.advantage_fn.grpo_advantage import GRPOGroupedAdvantage
from trinity.algorithm.advantage_fn.opmd_advantage import OPMDGroupAdvantage
from trinity.algorithm.advantage_fn.ppo_advantage import PPOAdvantageFn
from trinity.algorithm.advantage_fn.reinforce_plus_plus_advantage import REINFORCEPLUSPLUSAdvantageFn
from trinity.algorithm.advantage_fn.remax_advantage import REMAXAdvantageFn
from trinity.algorithm.advantage_fn.rloo_advantage import RLOOAdvantageFn
from trinity.algorithm.kl_fn.kl_fn import AbsFn, K1Fn, K2Fn, K3Fn
from trinity.algorithm.policy_loss_fn.chord_policy_loss import SFTISLossFn, SFTPhiLossFn
from trinity.algorithm.policy_loss_fn.cispo_policy_loss import CISPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.dpo_loss import DPOLossFn
from trinity.algorithm.policy_loss_fn.gspo_policy_loss import GSPOLossFn
from trinity.algorithm.policy_loss_fn.importance_sampling_policy_loss import ImportanceSamplingLossFn
from trinity.algorithm.policy_loss_fn.opmd_policy_loss import OPMDPolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.rec_policy_loss import RECPolicyLossFn
from trinity.algorithm.policy_loss_fn.sapo_policy_loss import SAPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.sft_loss import SFTLossFn
from trinity.algorithm.policy_loss_fn.sppo_loss_fn import sPPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.topr_policy_loss import TOPRPolicyLossFn
from verl_side import AGGREGATIONS, DUAL, GROUP_OF_ONE, HIGH, LOW, TAU_NEG, strop_gae

from strop.algorithms.kl import estimate_kl
from strop.algorithms.losses.policy_losses import clip_b
from strop.algorithms.losses.sft import SftLoss
from strop.config.schema.algorithm import TokenWeight
from strop.config.schema.preference import DpoConfig

DEVIATIONS = 1.0


def group_estimator(function: Any) -> Value:
    """Value by an estimator of Trinity-RFT that works on one group."""

    def run(batch: Batch) -> torch.Tensor:
        advantages = torch.zeros(batch.mask.shape, dtype=torch.float64)
        for number in batch.group.unique():
            indices = (batch.group == number).nonzero().squeeze(1).tolist()
            experiences = [
                SimpleNamespace(reward=float(batch.rewards[i]), action_mask=batch.mask[i].double(), index=i)
                for i in indices
            ]
            for experience in function.calculate_group_advantage(str(number), experiences)[0]:
                advantages[experience.index] = experience.advantages
        return advantages

    return run


def batch_estimator(function: Any, *, penalized: bool) -> Value:
    """Value by an estimator of Trinity-RFT that works on a padded batch."""

    def run(batch: Batch) -> torch.Tensor:
        rewards = batch.token_rewards() if penalized else batch.token_rewards() + batch.penalties
        proto = SimpleNamespace(
            batch={
                "token_level_rewards": rewards,
                "response_mask": batch.mask.double(),
                "reward_baselines": batch.baselines,
                "values": batch.values,
            },
            non_tensor_batch={"uid": batch.group.tolist()},
        )
        return function(proto)[0].batch["advantages"] * batch.mask

    return run


def policy_loss(function: Any) -> Value:
    """Value and gradient by a policy loss of Trinity-RFT."""
    return lambda batch: with_gradient(
        batch,
        lambda logprobs: function(
            logprob=logprobs,
            old_log_probs=batch.old_logprobs,
            response_mask=batch.mask.double(),
            advantages=batch.advantages,
        )[0],
    )


def clip_b_tokens(batch: Batch) -> torch.Tensor:
    """[N, L] Tokens that Trinity-RFT's Clip_B keeps; the absolute values of the critic stand for entropies."""
    batch = batch.below_one()
    proto = SimpleNamespace(
        batch={
            "token_level_rewards": batch.token_rewards() + batch.penalties,
            "response_mask": batch.mask.double(),
            "rollout_log_probs": batch.old_logprobs,
            "entropys": batch.values.abs(),
        },
        non_tensor_batch={"uid": batch.group.tolist()},
    )
    return ClipBAdvantageFn(mu=DEVIATIONS)(proto)[0].batch["response_mask"]


def strop_clip_b_tokens(batch: Batch) -> torch.Tensor:
    """[N, L] Tokens that Strop's entropy filter keeps."""
    batch = batch.below_one()
    kept = clip_b(
        batch.old_logprobs[batch.mask],
        batch.values.abs()[batch.mask],
        strop_side.advantages(batch, type="grpo")[batch.mask],
        deviations=DEVIATIONS,
    )
    return strop_side.padded(batch, kept)


def sft_loss(function: Any) -> Value:
    """Value and gradient by a loss of demonstrations of Trinity-RFT."""
    return lambda batch: with_gradient(
        batch, lambda logprobs: function(logprob=logprobs, response_mask=batch.mask.double())[0]
    )


def strop_sft_loss(token_weight: TokenWeight) -> Value:
    """Value and gradient by Strop's loss of demonstrations."""
    return lambda batch: strop_side.with_gradient(
        batch, batch.micro_batch(), SftLoss(token_weight), batch.counts()
    )


def dpo_loss(batch: Batch) -> torch.Tensor:
    """Value and gradient by Trinity-RFT's DPO loss; chosen and rejected responses alternate."""
    function = DPOLossFn(beta=0.1)
    return with_gradient(
        batch,
        lambda logprobs: function(
            logprob=logprobs, ref_log_prob=batch.ref_logprobs, response_mask=batch.mask.double()
        )[0],
    )


def off_policy_losses() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Label, loss of Trinity-RFT, and section of Strop."""
    yield "topr", TOPRPolicyLossFn(advantage_threshold=0.2), {"type": "topr", "threshold": 0.2}
    yield "sppo", sPPOPolicyLossFn(epsilon=0.1), {"type": "sppo", "clip": 0.1}
    yield "importance_sampling", ImportanceSamplingLossFn(), {"type": "importance_sampling"}
    gate = {"type": "sapo", "tau_neg": TAU_NEG, "gate": "weight"}
    yield "sapo with the gate as weight", SAPOPolicyLossFn(tau_neg=TAU_NEG), gate
    ring = {"epsilon_low": 0.1, "epsilon_high": 0.15, "epsilon_low_prime": 0.3, "epsilon_high_prime": 0.4}
    clip = {"clip_low": 0.1, "clip_high": 0.15, "ring_low": 0.3, "ring_high": 0.4}
    for mode, clipping in (
        ("none", "none"),
        ("one-side", "one_side"),
        ("two-side", "two_sides"),
        ("ring", "ring"),
    ):
        section = {"type": "rec", "clipping": clipping, **clip}
        yield f"rec, clipping {clipping}", RECPolicyLossFn(clip_mode=mode, **ring), section
    for weight, name in (("importance_sampling", "ratio"), ("advantage", "advantage")):
        section = {"type": "rec", "weight": name, "temperature": 0.7}
        yield f"rec, weight {name}", RECPolicyLossFn(weight=weight, temp=0.7), section
    for regularizer, name in (("k2", "k2"), ("forward-kl", "forward_kl")):
        section = {"type": "rec", "regularizer": name, "regularizer_coef": 0.3}
        yield (
            f"rec, regularizer {name}",
            RECPolicyLossFn(regularizer=regularizer, regularizer_coef=0.3),
            section,
        )


def cases() -> list[Case]:
    """Return all cases with Trinity-RFT."""
    rows = [
        Case(
            f"advantages: {label}",
            "Trinity-RFT",
            peer_value,
            lambda b, section=section: strop_side.advantages(b, **section),
        )
        for label, peer_value, section in (
            ("grpo", group_estimator(GRPOGroupedAdvantage()), {"type": "grpo"}),
            ("opmd, mean", group_estimator(OPMDGroupAdvantage()), {"type": "opmd"}),
            (
                "opmd, log_avg_exp, tau 0.7",
                group_estimator(OPMDGroupAdvantage(opmd_baseline="logavgexp", tau=0.7)),
                {"type": "opmd", "baseline": {"type": "log_avg_exp", "tau": 0.7}},
            ),
            ("rloo", batch_estimator(RLOOAdvantageFn(), penalized=False), {"type": "rloo"}),
            (
                "reinforce_plus_plus, gamma 0.9",
                batch_estimator(REINFORCEPLUSPLUSAdvantageFn(gamma=0.9), penalized=True),
                {"type": "reinforce_plus_plus", "gamma": 0.9, "penalized": True},
            ),
            (
                "remax",
                batch_estimator(REMAXAdvantageFn(), penalized=True),
                {"type": "remax", "penalized": True},
            ),
        )
    ]
    rows.append(
        Case(
            "advantages: opmd, groups of one",
            "Trinity-RFT",
            lambda b: group_estimator(OPMDGroupAdvantage())(b.ungrouped()),
            lambda b: strop_side.advantages(b.ungrouped(), type="opmd"),
            GROUP_OF_ONE,
        )
    )
    rows.append(
        Case(
            "advantages: gae",
            "Trinity-RFT",
            batch_estimator(PPOAdvantageFn(gamma=0.95, lam=0.9), penalized=True),
            lambda batch: strop_gae(batch)[0],
        )
    )
    bounds = {"clip_range_low": LOW, "clip_range_high": HIGH}
    losses: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (PPOPolicyLossFn, bounds | {"clip_ratio_c": DUAL}, {"type": "clip", "dual_clip": DUAL}),
        (GSPOLossFn, bounds, {"type": "gspo"}),
        (CISPOPolicyLossFn, bounds, {"type": "cispo"}),
        (OPMDPolicyLossFn, {"tau": 0.5}, {"type": "opmd", "tau": 0.5}),
    ]
    for loss_class, arguments, section in losses:
        if section["type"] != "opmd":
            section |= {"clip_low": LOW, "clip_high": HIGH}
        for aggregation in AGGREGATIONS:
            norm = aggregation == "seq-mean-token-sum-norm"
            rows.append(
                Case(
                    f"loss: {section['type']}, {aggregation}",
                    "Trinity-RFT",
                    policy_loss(loss_class(**arguments, loss_agg_mode=aggregation)),
                    lambda b, section=section, aggregation=aggregation: strop_side.loss(
                        b, policy_loss=section, aggregation=aggregation
                    ),
                    "Trinity-RFT, like verl in 2025, does not divide by the number of responses"
                    if norm
                    else "",
                )
            )
    rows += [
        Case(
            f"loss: {label}, token-mean",
            "Trinity-RFT",
            policy_loss(function),
            lambda b, section=section: strop_side.loss(b, policy_loss=section, aggregation="token-mean"),
        )
        for label, function, section in off_policy_losses()
    ]
    weights: tuple[tuple[TokenWeight, Any], ...] = (
        ("none", SFTLossFn()),
        ("p", SFTISLossFn()),
        ("p_one_minus_p", SFTPhiLossFn()),
    )
    rows += [
        Case(f"loss: sft, token_weight {name}", "Trinity-RFT", sft_loss(function), strop_sft_loss(name))
        for name, function in weights
    ]
    rows.append(Case("entropy filter (Clip_B)", "Trinity-RFT", clip_b_tokens, strop_clip_b_tokens))
    rows += [
        Case(
            f"loss: dpo, {label}",
            "Trinity-RFT",
            lambda b, responses=responses: dpo_loss(b.first(responses)),
            lambda b, responses=responses: strop_side.pairs(b.first(responses), DpoConfig()),
            reason,
        )
        for label, responses, reason in (
            ("one pair", 2, ""),
            ("four pairs", 8, "Trinity-RFT takes one sigmoid of the sum over all pairs of a micro-batch"),
        )
    ]
    rows += [
        Case(
            f"KL: {name}",
            "Trinity-RFT",
            lambda b, function=function: function.calculate_kl(b.logprobs, b.ref_logprobs) * b.mask,
            lambda b, name=name: estimate_kl(b.logprobs, b.ref_logprobs, name) * b.mask,
        )
        for name, function in {"k1": K1Fn(), "abs": AbsFn(), "k2": K2Fn(), "k3": K3Fn()}.items()
    ]
    return rows
