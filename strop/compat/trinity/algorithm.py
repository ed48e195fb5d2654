"""Reading of Trinity's `algorithm` section: the algorithm, its KL terms and its entropy term."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, written_by
from strop.compat.trinity import distillation, presets
from strop.compat.trinity.algorithm_writer import write_algorithm, write_entropy, write_kl

KL = {"none": None, "k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
"""KL estimators by their names in Trinity."""
KL_LOSS = {**KL, "corrected_k3": "k3"}
"""KL estimators of the loss, which may also be weighted by the ratio."""
_CORRECTED_RATIO = 2.0
"""Maximum ratio of corrected_k3."""
ARGS = "algorithm.advantage_fn_args"
OF_STEPS = ("step_wise_grpo", "multi_step_grpo", "cod")
"""Advantage functions of rollouts with several training sequences."""
MIXED = "algorithm.policy_loss_fn_args.mu"


@written_by(write_algorithm)
def algorithm(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the algorithm: the type's own, or that of `advantage_fn` if it is set."""
    kind, advantage = presets.algorithm_type(foreign), presets.advantage(foreign)
    if kind == "dpo":
        args = "algorithm.policy_loss_fn_args"
        return {
            "algorithm.type": "dpo",
            "algorithm.beta": foreign[f"{args}.beta"],
            "algorithm.label_smoothing": foreign[f"{args}.label_smoothing"],
        }
    if kind in presets.SUPERVISED:
        return {"algorithm.type": "sft"}
    settings: dict[str, Any] = {"algorithm.rollouts_per_task": presets.repeat_times(foreign)}
    if kind in presets.MIXED:
        return {**settings, **_mix(foreign, advantage)}
    settings["algorithm.type"] = presets.ADVANTAGES[advantage]
    settings["algorithm.old_policy"] = _old_policy(foreign)
    match advantage:
        case "ppo":
            settings["algorithm.gamma"] = foreign[f"{ARGS}.gamma"]
            settings["algorithm.lam"] = foreign[f"{ARGS}.lam"]
        case "clipb" | "clipv":
            settings["algorithm.std_epsilon"] = foreign[f"{ARGS}.epsilon"]
            settings |= _entropy_filter(foreign, advantage)
        case "grpo" | "step_wise_grpo" | "multi_step_grpo" | "rec" | "cod":
            settings["algorithm.std_epsilon"] = foreign[f"{ARGS}.epsilon"]
            settings["algorithm.divide_by_std"] = _divides_by_std(foreign, advantage)
            settings["algorithm.std_over"] = (
                "step" if foreign[f"{ARGS}.std_cal_level"] == "batch" else "group"
            )
            if advantage != "rec":
                settings["algorithm.min_reward_std"] = foreign[f"{ARGS}.std_threshold"]
            if advantage == "grpo" and foreign[f"{ARGS}.std_threshold"] is not None:
                settings["algorithm.repeat_groups"] = bool(foreign[f"{ARGS}.duplicate_experiences"])
            if advantage in OF_STEPS:
                settings["algorithm.divide_by_sequences"] = foreign[f"{ARGS}.enable_step_norm"]
        case "gigpo":
            settings |= {
                "algorithm.turn_weight": foreign[f"{ARGS}.omega"],
                "algorithm.gamma": foreign[f"{ARGS}.gamma"],
                "algorithm.divide_by_std": foreign[f"{ARGS}.fnorm"] == "std",
                "algorithm.std_epsilon": foreign[f"{ARGS}.epsilon"],
                "algorithm.states_over": "step",
            }
        case "asymre":
            settings["algorithm.baseline_shift"] = foreign[f"{ARGS}.baseline_shift"]
        case "opmd":
            settings["algorithm.baseline"] = _baseline(foreign)
        case "reinforceplusplus":
            settings["algorithm.gamma"] = foreign[f"{ARGS}.gamma"]
        case "on_policy_distill" | "jsd":
            settings |= distillation.read_distillation(foreign, advantage)
    return settings


def _entropy_filter(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    """The tokens that are left out, and the bound, whose default differs between the two functions."""
    bound = foreign[f"{ARGS}.mu"] if foreign.is_set(f"{ARGS}.mu") else presets.ENTROPY_FILTERS[advantage]
    at = "algorithm.entropy_filter"
    if advantage == "clipb":
        return {f"{at}.deviations": bound}
    fraction = foreign[f"{ARGS}.max_frac"]
    return {f"{at}.center": "vocabulary", f"{at}.deviations": bound, f"{at}.max_fraction": fraction}


def _mix(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    if advantage != "grpo":
        raise foreign.error_for(
            "algorithm.advantage_fn",
            f"algorithm.advantage_fn {advantage} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}, which uses GRPO's advantages; write advantage_fn: grpo, or remove it.",
        )
    settings = {
        "algorithm.type": "mix",
        "algorithm.std_epsilon": foreign[f"{ARGS}.epsilon"],
        "algorithm.old_policy": _old_policy(foreign),
    }
    if presets.algorithm_type(foreign) == "mix":
        return {**settings, "algorithm.mu": foreign[MIXED]}
    warmup, decay = foreign[f"{MIXED}_warmup_steps"], foreign[f"{MIXED}_decay_steps"]
    peak, final = foreign[f"{MIXED}_peak"], foreign[f"{MIXED}_valley"]
    if warmup == decay == 0 or (warmup == 0 and peak == final):
        settings["algorithm.mu"] = final
    else:
        settings["algorithm.mu"] = peak
        settings["algorithm.mu_schedule"] = {"warmup_steps": warmup, "decay_steps": decay, "final": final}
    phi = foreign["algorithm.policy_loss_fn_args.enable_phi_function"]
    return {**settings, "algorithm.expert_weight": "p_one_minus_p" if phi else "none"}


def _old_policy(foreign: ForeignValues) -> str:
    """Ratios are relative to the sampler's log-probs, unless they are recomputed: `bypass_mode` is false, or in 0.6
    `bypass_old_logprobs`."""
    bypass = foreign["trainer.trainer_config.algorithm.rollout_correction.bypass_mode"]
    return "sampler" if bypass and foreign["algorithm.bypass_old_logprobs"] else "trainer"


def _divides_by_std(foreign: ForeignValues, advantage: str) -> bool:
    """Whether advantages are in units of the standard deviation: except for rec, by default."""
    if advantage == "cod":
        return bool(foreign[f"{ARGS}.std_cal_level"] != "none")
    written = foreign[f"{ARGS}.std_normalize"]
    return advantage != "rec" if written is None else bool(written)


def _baseline(foreign: ForeignValues) -> dict[str, Any]:
    if foreign[f"{ARGS}.opmd_baseline"] == "mean":
        return {"type": "mean"}
    return {"type": "log_avg_exp", "tau": foreign[f"{ARGS}.tau"]}


@written_by(write_kl)
def kl(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL terms: `kl_loss_fn` is in the loss, `kl_penalty_fn` in the reward."""
    if presets.is_offline(foreign):
        return {}
    settings: dict[str, Any] = {}
    for place, key, default in (
        ("kl_loss", "kl_loss_fn", presets.preset(foreign).kl_loss),
        ("kl_reward", "kl_penalty_fn", "none"),
    ):
        name = presets.option(foreign, key, default)
        estimator = KL_LOSS[name]
        if name == "corrected_k3":
            settings |= {
                "algorithm.kl_loss.weight_by_ratio": True,
                "algorithm.kl_loss.max_ratio": _CORRECTED_RATIO,
            }
        if estimator is not None:
            settings[f"algorithm.{place}.estimator"] = estimator
            settings[f"algorithm.{place}.coef"] = foreign[f"algorithm.{key}_args.kl_coef"]
    return settings


@written_by(write_entropy)
def entropy(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the entropy coefficient: `none` has no entropy term, and `mix` takes the entropy of rollouts
    only."""
    name = presets.option(foreign, "entropy_loss_fn", presets.preset(foreign).entropy)
    coef = foreign["algorithm.entropy_loss_fn_args.entropy_coef"]
    if presets.is_offline(foreign) or name == "none":
        return {}
    if presets.algorithm_type(foreign) in presets.MIXED and name == "default" and coef != 0:
        raise foreign.error_for(
            "algorithm.entropy_loss_fn",
            "algorithm.entropy_loss_fn default includes the entropy of the expert's responses, which the "
            "model did not sample; write entropy_loss_fn: mix.",
        )
    return {"algorithm.entropy_coef": coef}
