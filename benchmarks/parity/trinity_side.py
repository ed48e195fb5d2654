"""Trinity-RFT's algorithm modules beside Strop's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ours
import torch
from batches import Batch
from cases import Case, Value, with_gradient
from trinity.algorithm.advantage_fn.grpo_advantage import GRPOGroupedAdvantage
from trinity.algorithm.advantage_fn.opmd_advantage import OPMDGroupAdvantage
from trinity.algorithm.advantage_fn.ppo_advantage import PPOAdvantageFn
from trinity.algorithm.advantage_fn.reinforce_plus_plus_advantage import REINFORCEPLUSPLUSAdvantageFn
from trinity.algorithm.advantage_fn.remax_advantage import REMAXAdvantageFn
from trinity.algorithm.advantage_fn.rloo_advantage import RLOOAdvantageFn
from trinity.algorithm.kl_fn.kl_fn import AbsFn, K1Fn, K2Fn, K3Fn
from trinity.algorithm.policy_loss_fn.cispo_policy_loss import CISPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.dpo_loss import DPOLossFn
from trinity.algorithm.policy_loss_fn.gspo_policy_loss import GSPOLossFn
from trinity.algorithm.policy_loss_fn.opmd_policy_loss import OPMDPolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
from verl_side import AGGREGATIONS, ALONE, DUAL, HIGH, LOW, our_generalised

from strop.algorithms.kl import divergence


def grouped(function: Any) -> Value:
    """A group estimator of Trinity's."""

    def run(batch: Batch) -> torch.Tensor:
        found = torch.zeros(batch.mask.shape, dtype=torch.float64)
        for number in batch.group.unique():
            places = (batch.group == number).nonzero().squeeze(1).tolist()
            mates = [
                SimpleNamespace(reward=float(batch.rewards[i]), action_mask=batch.mask[i].double(), place=i)
                for i in places
            ]
            for mate in function.calculate_group_advantage(str(number), mates)[0]:
                found[mate.place] = mate.advantages
        return found

    return run


def in_trainer(function: Any, *, penalised: bool) -> Value:
    """An estimator of Trinity's that works on a whole padded batch."""

    def run(batch: Batch) -> torch.Tensor:
        rewards = batch.token_rewards() if penalised else batch.token_rewards() + batch.penalties
        proto = SimpleNamespace(
            batch={
                "token_level_rewards": rewards,
                "response_mask": batch.mask.double(),
                "reward_baselines": batch.greedy,
                "values": batch.values,
            },
            non_tensor_batch={"uid": batch.group.tolist()},
        )
        return function(proto)[0].batch["advantages"] * batch.mask

    return run


def policy_loss(function: Any) -> Value:
    """A policy loss of Trinity's."""
    return lambda batch: with_gradient(
        batch,
        lambda logprobs: function(
            logprob=logprobs,
            old_log_probs=batch.old,
            response_mask=batch.mask.double(),
            advantages=batch.advantages,
        )[0],
    )


def dpo_loss(batch: Batch) -> torch.Tensor:
    """Trinity's DPO: chosen and rejected answers by turns."""
    function = DPOLossFn(beta=0.1)
    return with_gradient(
        batch,
        lambda logprobs: function(
            logprob=logprobs, ref_log_prob=batch.reference, response_mask=batch.mask.double()
        )[0],
    )


def cases() -> list[Case]:
    """Every row with Trinity-RFT."""
    rows = [
        Case(
            f"advantages: {label}",
            "Trinity-RFT",
            theirs,
            lambda b, section=section: ours.advantages(b, **section),
        )
        for label, theirs, section in (
            ("grpo", grouped(GRPOGroupedAdvantage()), {"type": "grpo"}),
            ("opmd, mean", grouped(OPMDGroupAdvantage()), {"type": "opmd"}),
            (
                "opmd, log_avg_exp, tau 0.7",
                grouped(OPMDGroupAdvantage(opmd_baseline="logavgexp", tau=0.7)),
                {"type": "opmd", "baseline": {"type": "log_avg_exp", "tau": 0.7}},
            ),
            ("rloo", in_trainer(RLOOAdvantageFn(), penalised=False), {"type": "rloo"}),
            (
                "reinforce_plus_plus, gamma 0.9",
                in_trainer(REINFORCEPLUSPLUSAdvantageFn(gamma=0.9), penalised=True),
                {"type": "reinforce_plus_plus", "gamma": 0.9, "penalised": True},
            ),
            (
                "remax",
                in_trainer(REMAXAdvantageFn(), penalised=True),
                {"type": "remax", "penalised": True},
            ),
        )
    ]
    rows.append(
        Case(
            "advantages: opmd, groups of one",
            "Trinity-RFT",
            lambda b: grouped(OPMDGroupAdvantage())(b.alone()),
            lambda b: ours.advantages(b.alone(), type="opmd"),
            ALONE,
        )
    )
    rows.append(
        Case(
            "advantages: gae",
            "Trinity-RFT",
            in_trainer(PPOAdvantageFn(gamma=0.95, lam=0.9), penalised=True),
            lambda batch: our_generalised(batch)[0],
        )
    )
    bounds = {"clip_range_low": LOW, "clip_range_high": HIGH}
    losses: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (PPOPolicyLossFn, bounds | {"clip_ratio_c": DUAL}, {"type": "clip", "dual_clip": DUAL}),
        (GSPOLossFn, bounds, {"type": "gspo"}),
        (CISPOPolicyLossFn, bounds, {"type": "cispo"}),
        (OPMDPolicyLossFn, {"tau": 0.5}, {"type": "opmd", "tau": 0.5}),
    ]
    for make, arguments, section in losses:
        if section["type"] != "opmd":
            section |= {"clip_low": LOW, "clip_high": HIGH}
        for how in AGGREGATIONS:
            norm = how == "seq-mean-token-sum-norm"
            rows.append(
                Case(
                    f"loss: {section['type']}, {how}",
                    "Trinity-RFT",
                    policy_loss(make(**arguments, loss_agg_mode=how)),
                    lambda b, section=section, how=how: ours.loss(b, policy_loss=section, aggregation=how),
                    "Trinity-RFT does not divide by the number of answers, as verl did in 2025"
                    if norm
                    else "",
                )
            )
    rows += [
        Case(
            f"loss: dpo, {label}",
            "Trinity-RFT",
            lambda b, answers=answers: dpo_loss(b.first(answers)),
            lambda b, answers=answers: ours.dpo(b.first(answers), beta=0.1),
            why,
        )
        for label, answers, why in (
            ("one pair", 2, ""),
            ("four pairs", 8, "Trinity-RFT takes one sigmoid of the sum over all pairs of a micro-batch"),
        )
    ]
    rows += [
        Case(
            f"KL: {name}",
            "Trinity-RFT",
            lambda b, function=function: function.calculate_kl(b.logprobs, b.reference) * b.mask,
            lambda b, name=name: divergence(b.logprobs, b.reference, name) * b.mask,
        )
        for name, function in {"k1": K1Fn(), "abs": AbsFn(), "k2": K2Fn(), "k3": K3Fn()}.items()
    ]
    return rows
