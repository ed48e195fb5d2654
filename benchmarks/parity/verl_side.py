"""verl's core algorithms beside Strop's."""

from __future__ import annotations

from typing import Any

import ours
import torch
from batches import Batch
from cases import Case, Value, with_gradient
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig

from strop.algorithms.importance import correct
from strop.algorithms.kl import AdaptiveCoef, divergence
from strop.algorithms.reduce import Targets
from strop.algorithms.returns import gae, whiten
from strop.config.schema.algorithm import ImportanceCorrection

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
ALONE = "it has nothing to be compared with: its advantage is its whole reward there, and 0 in Strop"
LOW, HIGH, DUAL = 0.2, 0.28, 3.0


def estimator(name: str, *, penalised: bool = False, gamma: float = 1.0, **options: Any) -> Value:
    """An outcome estimator of verl's, by the name in its registry."""

    def run(batch: Batch) -> torch.Tensor:
        rewards = batch.token_rewards() if penalised else batch.token_rewards() + batch.penalties
        advantages, _ = core_algos.get_adv_estimator_fn(name)(
            token_level_rewards=rewards,
            response_mask=batch.mask.double(),
            index=batch.group.numpy(),
            config=AlgoConfig(gamma=gamma),
            **options,
            **({"reward_baselines": batch.greedy} if name == "remax" else {}),
        )
        return advantages

    return run


def generalised(batch: Batch) -> torch.Tensor:
    """verl's GAE: whitened advantages, and returns."""
    advantages, returns = core_algos.compute_gae_advantage_return(
        batch.token_rewards(), batch.values, batch.mask.double(), gamma=0.95, lam=0.9
    )
    return torch.stack([advantages * batch.mask, returns * batch.mask])


def our_generalised(batch: Batch) -> torch.Tensor:
    """The same of Strop's."""
    found = gae(batch.scored(penalised=True), batch.values[batch.mask], gamma=0.95, lam=0.9)
    return torch.stack([ours.padded(batch, whiten(found.advantages)), ours.padded(batch, found.returns)])


def value_loss(batch: Batch) -> torch.Tensor:
    """verl's value loss, of any numbers."""
    mask = batch.mask.double()
    return core_algos.compute_value_loss(batch.logprobs, batch.advantages, batch.old, mask, 0.3)[0]


def policy_loss(name: str, aggregation: str) -> Value:
    """A policy loss of verl's, by the name in its registry."""

    def run(batch: Batch) -> torch.Tensor:
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio_low=LOW,
            clip_ratio_high=HIGH,
            clip_ratio_c=DUAL,
        )
        function = core_algos.get_policy_loss_fn(name)
        return with_gradient(
            batch,
            lambda logprobs: function(
                batch.old, logprobs, batch.advantages, batch.mask.double(), aggregation, config
            )[0],
        )

    return run


def our_loss(section: dict[str, Any], aggregation: str) -> Value:
    """Strop's, with the same bounds."""
    return lambda batch: ours.loss(batch, policy_loss=section, aggregation=aggregation)


def importance(level: str) -> Value:
    """verl's weights of truncated importance sampling."""
    return lambda batch: compute_rollout_correction_weights(
        batch.old - batch.sampler, batch.mask.double(), rollout_is=level, rollout_is_threshold=1.1
    )[0]


def our_importance(level: str) -> Value:
    """Strop's."""
    config = ImportanceCorrection.model_validate({"level": level, "cap": 1.1})

    def run(batch: Batch) -> torch.Tensor:
        targets = Targets.of(batch.micro_batch())
        weights = correct(batch.old[batch.mask], batch.sampler[batch.mask], targets, config).weights
        return ours.padded(batch, weights)

    return run


def controller(batch: Batch) -> torch.Tensor:
    """verl's adaptive coefficient after a few steps."""
    theirs = core_algos.AdaptiveKLController(init_kl_coef=0.02, target_kl=0.1, horizon=500)
    for kl in batch.values[0]:
        theirs.update(float(kl.abs()) / 5, 64)
    return torch.tensor(theirs.value)


def our_controller(batch: Batch) -> torch.Tensor:
    """Strop's."""
    coef = AdaptiveCoef(0.02, target_kl=0.1, horizon=500)
    for kl in batch.values[0]:
        coef = coef.update(float(kl.abs()) / 5, 64)
    return torch.tensor(coef.coef)


def cases() -> list[Case]:
    """Every row with verl."""
    rows = [
        Case(
            f"advantages: {label}",
            "verl",
            theirs,
            lambda b, section=section: ours.advantages(b, **section),
            why,
        )
        for label, theirs, section, why in (
            ("grpo", estimator("grpo"), {"type": "grpo"}, ""),
            (
                "grpo, penalties in the reward",
                estimator("grpo", penalised=True),
                {"type": "grpo", "penalised": True},
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
                "alpha: verl counts answers with reward 0, the paper those in groups of equal rewards",
            ),
            (
                "reinforce_plus_plus, gamma 0.9",
                estimator("reinforce_plus_plus", penalised=True, gamma=0.9),
                {"type": "reinforce_plus_plus", "gamma": 0.9, "penalised": True},
                "",
            ),
            (
                "reinforce_plus_plus_baseline",
                estimator("reinforce_plus_plus_baseline"),
                {"type": "reinforce_plus_plus_baseline"},
                "",
            ),
            ("remax", estimator("remax", penalised=True), {"type": "remax", "penalised": True}, ""),
        )
    ]
    rows += [
        Case(
            f"advantages: {name}, groups of one",
            "verl",
            lambda b, name=name: estimator(name)(b.alone()),
            lambda b, name=name: ours.advantages(b.alone(), type=name),
            ALONE,
        )
        for name in ("grpo", "rloo", "opo")
    ]
    rows.append(Case("advantages and returns: gae", "verl", generalised, our_generalised))
    rows.append(Case("value loss", "verl", value_loss, lambda batch: ours.value_loss(batch, clip=0.3)))
    losses: dict[str, dict[str, Any]] = {
        "vanilla": {"type": "clip", "clip_low": LOW, "clip_high": HIGH, "dual_clip": DUAL},
        "gspo": {"type": "gspo", "clip_low": LOW, "clip_high": HIGH},
        "cispo": {"type": "cispo", "clip_low": LOW, "clip_high": HIGH},
        "gpg": {"type": "gpg"},
    }
    rows += [
        Case(f"loss: {section['type']}, {how}", "verl", policy_loss(name, how), our_loss(section, how))
        for name, section in losses.items()
        for how in AGGREGATIONS
    ]
    rows += [
        Case(
            f"KL: {ours_}",
            "verl",
            lambda b, name=name: core_algos.kl_penalty_forward(b.logprobs, b.reference, name) * b.mask,
            lambda b, name=ours_: divergence(b.logprobs, b.reference, name) * b.mask,
        )
        for ours_, name in KL.items()
    ]
    rows.append(Case("KL: the adaptive coefficient", "verl", controller, our_controller))
    rows += [
        Case(f"importance weights: {level}", "verl", importance(level), our_importance(level))
        for level in ("token", "sequence")
    ]
    return rows
