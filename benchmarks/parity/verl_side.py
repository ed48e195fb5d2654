"""Cases that compare verl's core algorithms with Strop."""

from __future__ import annotations

from typing import Any
from unittest import mock

import strop_side
import torch
from batches import Batch
from cases import Case, Value, with_gradient
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig, PolicyLossConfig

from strop.algorithms.advantages import gae, whiten
from strop.algorithms.algorithm import resampling_weights
from strop.algorithms.kl import AdaptiveKlController, estimate_kl
from strop.algorithms.losses.aggregation import TargetTokens, compute_importance_weights
from strop.config.schema.algorithm import RewardResamplingConfig
from strop.config.schema.policy_loss import ImportanceCorrectionConfig

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
GROUP_OF_ONE = "the peer's advantage is the reward, Strop's is 0"
LOW, HIGH, DUAL = 0.2, 0.28, 3.0
TAU_NEG, BETA, POWER = 1.5, 0.3, 1.5


def estimator(name: str, *, penalized: bool = False, gamma: float = 1.0, **options: Any) -> Value:
    """Value by verl's outcome estimator of this name in its registry."""

    def run(batch: Batch) -> torch.Tensor:
        rewards = batch.token_rewards() if penalized else batch.token_rewards() + batch.penalties
        advantages, _ = core_algos.get_adv_estimator_fn(name)(
            token_level_rewards=rewards,
            response_mask=batch.mask.double(),
            index=batch.group.numpy(),
            config=AlgoConfig(gamma=gamma),
            **options,
            **({"reward_baselines": batch.baselines} if name == "remax" else {}),
        )
        return advantages

    return run


def verl_gae(batch: Batch) -> torch.Tensor:
    """[2, N, L] GAE by verl: whitened advantages, and returns."""
    advantages, returns = core_algos.compute_gae_advantage_return(
        batch.token_rewards(), batch.values, batch.mask.double(), gamma=0.95, lam=0.9
    )
    return torch.stack([advantages * batch.mask, returns * batch.mask])


def strop_gae(batch: Batch) -> torch.Tensor:
    """[2, N, L] GAE by Strop: whitened advantages, and returns."""
    estimate = gae(batch.rollout_batch(penalized=True), batch.values[batch.mask], gamma=0.95, lam=0.9)
    advantages = strop_side.padded(batch, whiten(estimate.advantages))
    return torch.stack([advantages, strop_side.padded(batch, estimate.returns)])


def value_loss(batch: Batch) -> torch.Tensor:
    """[] Value loss by verl, with the batch's log-probs as values and its advantages as returns."""
    mask = batch.mask.double()
    return core_algos.compute_value_loss(batch.logprobs, batch.advantages, batch.old_logprobs, mask, 0.3)[0]


def policy_loss(name: str, aggregation: str) -> Value:
    """Value and gradient by verl's policy loss of this name in its registry."""

    def run(batch: Batch) -> torch.Tensor:
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio_low=LOW,
            clip_ratio_high=HIGH,
            clip_ratio_c=DUAL,
            tau_neg=TAU_NEG,
            policy_loss=PolicyLossConfig(dro_beta=BETA),
        )
        function = core_algos.get_policy_loss_fn(name)
        return with_gradient(
            batch,
            lambda logprobs: function(
                batch.old_logprobs, logprobs, batch.advantages, batch.mask.double(), aggregation, config
            )[0],
        )

    return run


def strop_loss(section: dict[str, Any], aggregation: str) -> Value:
    """Value and gradient by Strop's policy loss."""
    return lambda batch: strop_side.loss(batch, policy_loss=section, aggregation=aggregation)


def importance(level: str) -> Value:
    """Weights of truncated importance sampling by verl."""
    return lambda batch: compute_rollout_correction_weights(
        batch.old_logprobs - batch.sampler_logprobs,
        batch.mask.double(),
        rollout_is=level,
        rollout_is_threshold=1.1,
    )[0]


def strop_importance(level: str) -> Value:
    """Weights of truncated importance sampling by Strop."""
    config = ImportanceCorrectionConfig.model_validate({"level": level, "cap": 1.1})

    def run(batch: Batch) -> torch.Tensor:
        targets = TargetTokens.of(batch.micro_batch())
        weights = compute_importance_weights(
            batch.old_logprobs[batch.mask], batch.sampler_logprobs[batch.mask], targets, config
        ).weights
        return strop_side.padded(batch, weights)

    return run


def pf_ppo(method: str) -> Value:
    """[N] Probabilities with which verl draws rollouts, seen where it draws them."""

    def run(batch: Batch) -> torch.Tensor:
        drawn_from = []

        def multinomial(weights: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
            assert replacement
            drawn_from.append(weights / weights.sum())
            return torch.arange(count)

        data = DataProto.from_dict(tensors={"token_level_scores": batch.token_rewards() + batch.penalties})
        with mock.patch.object(torch, "multinomial", multinomial):
            core_algos.compute_pf_ppo_reweight_data(data, method, POWER)
        return drawn_from[0]

    return run


def strop_pf_ppo(method: str) -> Value:
    """[N] Probabilities with which Strop draws rollouts."""
    section = RewardResamplingConfig.model_validate({"method": method, "power": POWER})
    return lambda batch: resampling_weights(batch.rewards, section)


def verl_kl_controller(batch: Batch) -> torch.Tensor:
    """[] Adaptive KL coefficient of verl after a few steps."""
    controller = core_algos.AdaptiveKLController(init_kl_coef=0.02, target_kl=0.1, horizon=500)
    for kl in batch.values[0]:
        controller.update(float(kl.abs()) / 5, 64)
    return torch.tensor(controller.value)


def strop_kl_controller(batch: Batch) -> torch.Tensor:
    """[] Adaptive KL coefficient of Strop after the same steps."""
    controller = AdaptiveKlController(0.02, target_kl=0.1, horizon=500)
    for kl in batch.values[0]:
        controller = controller.update(float(kl.abs()) / 5, 64)
    return torch.tensor(controller.coef)


def cases() -> list[Case]:
    """Return all cases with verl."""
    rows = [
        Case(
            f"advantages: {label}",
            "verl",
            peer_value,
            lambda b, section=section: strop_side.advantages(b, **section),
            reason,
        )
        for label, peer_value, section, reason in (
            ("grpo", estimator("grpo"), {"type": "grpo"}, ""),
            (
                "grpo, penalties in the reward",
                estimator("grpo", penalized=True),
                {"type": "grpo", "penalized": True},
                "",
            ),
            (
                "grpo without std",
                estimator("grpo", norm_adv_by_std_in_grpo=False),
                {"type": "grpo", "divide_by_std": False},
                "",
            ),
            ("grpo_passk", estimator("grpo_passk"), {"type": "grpo_passk"}, ""),
            ("rloo", estimator("rloo"), {"type": "rloo"}, ""),
            ("opo", estimator("opo"), {"type": "opo"}, ""),
            (
                "gpg",
                estimator("gpg"),
                {"type": "gpg"},
                "alpha: verl counts responses with reward 0, the paper responses in groups with equal rewards",
            ),
            (
                "reinforce_plus_plus, gamma 0.9",
                estimator("reinforce_plus_plus", penalized=True, gamma=0.9),
                {"type": "reinforce_plus_plus", "gamma": 0.9, "penalized": True},
                "",
            ),
            (
                "reinforce_plus_plus_baseline",
                estimator("reinforce_plus_plus_baseline"),
                {"type": "reinforce_plus_plus_baseline"},
                "",
            ),
            ("remax", estimator("remax", penalized=True), {"type": "remax", "penalized": True}, ""),
        )
    ]
    rows += [
        Case(
            f"advantages: {name}, groups of one",
            "verl",
            lambda b, name=name: estimator(name)(b.ungrouped()),
            lambda b, name=name: strop_side.advantages(b.ungrouped(), type=name),
            GROUP_OF_ONE,
        )
        for name in ("grpo", "rloo", "opo")
    ]
    rows.append(Case("advantages and returns: gae", "verl", verl_gae, strop_gae))
    rows.append(Case("value loss", "verl", value_loss, lambda b: strop_side.value_loss(b, clip=0.3)))
    losses: dict[str, dict[str, Any]] = {
        "vanilla": {"type": "clip", "clip_low": LOW, "clip_high": HIGH, "dual_clip": DUAL},
        "gspo": {"type": "gspo", "clip_low": LOW, "clip_high": HIGH},
        "cispo": {"type": "cispo", "clip_low": LOW, "clip_high": HIGH},
        "gpg": {"type": "gpg"},
        "dro": {"type": "dro", "beta": BETA},
    }
    bounds = {"divergence_low": LOW, "divergence_high": HIGH, "ratio_cap": DUAL}
    by_probability = {name: {"type": name, **bounds} for name in ("dppo_tv", "dppo_kl")}
    per_response: dict[str, dict[str, Any]] = {
        "sapo": {"type": "sapo", "tau_neg": TAU_NEG},
        "geo_mean": {"type": "gmpo", "clip_low": LOW, "clip_high": HIGH},
    }
    rows += [
        Case(
            f"loss: {section['type']}, {aggregation}",
            "verl",
            policy_loss(name, aggregation),
            strop_loss(section, aggregation),
        )
        for name, section in losses.items()
        for aggregation in AGGREGATIONS
    ]
    rows += [
        Case(
            f"loss: {name}, token-mean",
            "verl",
            lambda b, name=name: policy_loss(name, "token-mean")(b.below_one()),
            lambda b, section=section: strop_loss(section, "token-mean")(b.below_one()),
        )
        for name, section in by_probability.items()
    ]
    rows += [
        Case(
            f"loss: {section['type']}, seq-mean-token-mean, one advantage per response",
            "verl",
            lambda b, name=name: policy_loss(name, "seq-mean-token-mean")(b.with_one_advantage()),
            lambda b, section=section: strop_loss(section, "seq-mean-token-mean")(b.with_one_advantage()),
        )
        for name, section in per_response.items()
    ]
    rows += [
        Case(
            f"KL and its gradient: {name}",
            "verl",
            lambda b, name=name: with_gradient(
                b, lambda logprobs: (core_algos.kl_penalty(logprobs, b.ref_logprobs, name) * b.mask).sum()
            ),
            lambda b, name=name: with_gradient(
                b, lambda logprobs: (estimate_kl(logprobs, b.ref_logprobs, name) * b.mask).sum()
            ),
        )
        for name in ("k1+", "abs+", "k3+")
    ]
    rows += [
        Case(
            f"KL: {name}",
            "verl",
            lambda b, name=verl_name: (
                core_algos.kl_penalty_forward(b.logprobs, b.ref_logprobs, name) * b.mask
            ),
            lambda b, name=name: estimate_kl(b.logprobs, b.ref_logprobs, name) * b.mask,
        )
        for name, verl_name in KL_NAMES.items()
    ]
    rows += [
        Case(f"resampling (PF-PPO): {method}", "verl", pf_ppo(method), strop_pf_ppo(method))
        for method in ("pow", "max_min", "max_random")
    ]
    rows.append(Case("KL: adaptive coefficient", "verl", verl_kl_controller, strop_kl_controller))
    rows += [
        Case(f"importance weights: {level}", "verl", importance(level), strop_importance(level))
        for level in ("token", "sequence")
    ]
    return rows
