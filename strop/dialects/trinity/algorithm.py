"""Ledger rows of Trinity's `algorithm` section; defaults depend on `algorithm_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    mapped,
    never,
    not_on_page,
    only,
    refused,
    written_by,
)
from strop.dialects.ledger.value_types import BOOLEAN, INTEGER, NUMBER, nullable, one_of
from strop.dialects.trinity import distillation, later_keys, policy_loss, presets, sample_strategy
from strop.dialects.trinity.algorithm_writer import write_algorithm, write_entropy, write_kl

_KL = {"none": None, "k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
_KL_LOSS = {**_KL, "corrected_k3": "k3"}
_CORRECTED_RATIO = 2.0
"""Maximum ratio of corrected_k3."""
_ARGS = "algorithm.advantage_fn_args"
_OF_STEPS = ("step_wise_grpo", "multi_step_grpo")
"""Advantage functions of rollouts with several training sequences."""
_MIXED = "algorithm.policy_loss_fn_args.mu"


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
    if kind == "sft":
        return {"algorithm.type": "sft"}
    settings: dict[str, Any] = {"algorithm.rollouts_per_task": presets.repeat_times(foreign)}
    if kind in presets.MIXED:
        return {**settings, **_mix(foreign, advantage)}
    settings["algorithm.type"] = presets.ADVANTAGES[advantage]
    settings["algorithm.old_policy"] = _old_policy(foreign)
    match advantage:
        case "ppo":
            settings["algorithm.gamma"] = foreign[f"{_ARGS}.gamma"]
            settings["algorithm.lam"] = foreign[f"{_ARGS}.lam"]
        case "clipb":
            settings["algorithm.std_epsilon"] = foreign[f"{_ARGS}.epsilon"]
            settings["algorithm.entropy_filter.deviations"] = foreign[f"{_ARGS}.mu"]
        case "grpo" | "step_wise_grpo" | "multi_step_grpo" | "rec":
            settings["algorithm.std_epsilon"] = foreign[f"{_ARGS}.epsilon"]
            settings["algorithm.divide_by_std"] = _divides_by_std(foreign, advantage)
            settings["algorithm.std_over"] = (
                "step" if foreign[f"{_ARGS}.std_cal_level"] == "batch" else "group"
            )
            if advantage != "rec":
                settings["algorithm.min_reward_std"] = foreign[f"{_ARGS}.std_threshold"]
            if advantage in _OF_STEPS:
                settings["algorithm.divide_by_sequences"] = foreign[f"{_ARGS}.enable_step_norm"]
        case "asymre":
            settings["algorithm.baseline_shift"] = foreign[f"{_ARGS}.baseline_shift"]
        case "opmd":
            settings["algorithm.baseline"] = _baseline(foreign)
        case "reinforceplusplus":
            settings["algorithm.gamma"] = foreign[f"{_ARGS}.gamma"]
        case "on_policy_distill" | "jsd":
            settings |= distillation.read_distillation(foreign, advantage)
    return settings


def _mix(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    if advantage != "grpo":
        raise foreign.error_for(
            "algorithm.advantage_fn",
            f"algorithm.advantage_fn {advantage} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}, which uses GRPO's advantages; write advantage_fn: grpo, or remove it.",
        )
    settings = {
        "algorithm.type": "mix",
        "algorithm.std_epsilon": foreign[f"{_ARGS}.epsilon"],
        "algorithm.old_policy": _old_policy(foreign),
    }
    if presets.algorithm_type(foreign) == "mix":
        return {**settings, "algorithm.mu": foreign[_MIXED]}
    warmup, decay = foreign[f"{_MIXED}_warmup_steps"], foreign[f"{_MIXED}_decay_steps"]
    peak, final = foreign[f"{_MIXED}_peak"], foreign[f"{_MIXED}_valley"]
    if warmup == decay == 0 or (warmup == 0 and peak == final):
        settings["algorithm.mu"] = final
    else:
        settings["algorithm.mu"] = peak
        settings["algorithm.mu_schedule"] = {"warmup_steps": warmup, "decay_steps": decay, "final": final}
    phi = foreign["algorithm.policy_loss_fn_args.enable_phi_function"]
    return {**settings, "algorithm.expert_weight": "p_one_minus_p" if phi else "none"}


def _old_policy(foreign: ForeignValues) -> str:
    """Ratios are relative to the sampler's log-probs, unless they are recomputed (`bypass_mode: false`)."""
    bypass = foreign["trainer.trainer_config.algorithm.rollout_correction.bypass_mode"]
    return "sampler" if bypass else "trainer"


def _divides_by_std(foreign: ForeignValues, advantage: str) -> bool:
    """Whether advantages are in units of the standard deviation: except for rec, by default."""
    written = foreign[f"{_ARGS}.std_normalize"]
    return advantage != "rec" if written is None else bool(written)


def _baseline(foreign: ForeignValues) -> dict[str, Any]:
    if foreign[f"{_ARGS}.opmd_baseline"] == "mean":
        return {"type": "mean"}
    return {"type": "log_avg_exp", "tau": foreign[f"{_ARGS}.tau"]}


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
        estimator = _KL_LOSS[name]
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


def _held_by_itself(foreign: ForeignValues) -> str | None:
    return {
        "dpo": "algorithm_type is dpo, whose loss already includes the reference model",
        "sft": "algorithm_type is sft, which has no KL term",
    }.get(presets.algorithm_type(foreign))


def _no_kl(key: str) -> Any:
    def inactive(foreign: ForeignValues) -> str | None:
        name = presets.option(
            foreign, key, presets.preset(foreign).kl_loss if key == "kl_loss_fn" else "none"
        )
        return _held_by_itself(foreign) or (f"{key} is none" if name == "none" else None)

    return inactive


TYPE: tuple[KeyMapping, ...] = (
    mapped(
        "algorithm.algorithm_type",
        "ppo",
        "algorithm.type",
        read=algorithm,
        value_type=one_of(*presets.PRESETS),
    ),
    mapped(
        "algorithm.repeat_times",
        None,
        "algorithm.rollouts_per_task",
        read=algorithm,
        value_type=nullable(INTEGER),
        inactive=presets.only_sampled,
        note="by algorithm_type: multi_step_grpo, mix, mix_chord, on_policy_distill and jsd 8, ppo and raft 1, "
        "the others 2",
    ),
)
FUNCTIONS: tuple[KeyMapping, ...] = (
    sample_strategy.STRATEGY,
    mapped(
        "algorithm.advantage_fn",
        None,
        "algorithm.type",
        read=algorithm,
        value_type=nullable(one_of(*(name for name in presets.ADVANTAGES if name != "raft"))),
        inactive=presets.only_sampled,
        note="default by algorithm_type; another value selects the algorithm with these advantages; ppo has a critic",
    ),
    mapped(
        "algorithm.kl_penalty_fn",
        None,
        "algorithm.kl_reward",
        "algorithm.kl_reward.estimator",
        read=kl,
        value_type=nullable(one_of(*_KL)),
        inactive=_held_by_itself,
        note="null means none",
    ),
    mapped(
        "algorithm.kl_loss_fn",
        None,
        "algorithm.kl_loss",
        "algorithm.kl_loss.estimator",
        "algorithm.kl_loss.weight_by_ratio",
        "algorithm.kl_loss.max_ratio",
        read=kl,
        value_type=nullable(one_of(*_KL_LOSS)),
        inactive=_held_by_itself,
        note="null means k2, except under sft; corrected_k3: k3 times the ratio, which is at most 2",
    ),
    mapped(
        "algorithm.entropy_loss_fn",
        None,
        "algorithm.entropy_coef",
        read=entropy,
        value_type=nullable(one_of("default", "mix", "none")),
        inactive=presets.only_sampled,
    ),
)
ARGUMENTS: tuple[KeyMapping, ...] = not_on_page(
    mapped(_MIXED, 0.1, "algorithm.mu", read=algorithm, inactive=presets.only_types("mix")),
    *(
        mapped(f"{_MIXED}_{name}", default, field, read=algorithm, inactive=presets.only_types("mix_chord"))
        for name, default, field in (
            ("peak", 0.1, "algorithm.mu"),
            ("valley", 0.1, "algorithm.mu_schedule.final"),
            ("warmup_steps", 0, "algorithm.mu_schedule.warmup_steps"),
            ("decay_steps", 0, "algorithm.mu_schedule.decay_steps"),
        )
    ),
    mapped(
        "algorithm.policy_loss_fn_args.enable_phi_function",
        True,
        "algorithm.expert_weight",
        read=algorithm,
        inactive=presets.only_types("mix_chord"),
    ),
    mapped(
        f"{_ARGS}.std_normalize",
        None,
        "algorithm.divide_by_std",
        read=algorithm,
        value_type=nullable(BOOLEAN),
        inactive=presets.only_advantages("rec"),
        note="null means false",
    ),
    mapped(
        f"{_ARGS}.std_cal_level",
        "group",
        "algorithm.std_over",
        read=algorithm,
        value_type=one_of("group", "batch"),
        inactive=presets.only_advantages("grpo", "step_wise_grpo", "multi_step_grpo"),
    ),
    mapped(
        f"{_ARGS}.std_threshold",
        None,
        "algorithm.min_reward_std",
        read=algorithm,
        value_type=nullable(NUMBER),
        inactive=presets.only_advantages("grpo", "step_wise_grpo", "multi_step_grpo"),
        note="a step trains on the groups that are left; Trinity fills the batch from later ones",
    ),
    mapped(
        f"{_ARGS}.enable_step_norm",
        False,
        "algorithm.divide_by_sequences",
        read=algorithm,
        inactive=presets.only_advantages(*_OF_STEPS),
    ),
    mapped(
        f"{_ARGS}.baseline_shift",
        -0.1,
        "algorithm.baseline_shift",
        read=algorithm,
        inactive=presets.only_advantages("asymre"),
    ),
    *(
        refused(f"{_ARGS}.{name}", default, why, supported=only(default, None))
        for name, default, why in (
            ("duplicate_experiences", False, "each rollout is trained on once; remove it"),
            ("rank_penalty", None, "Strop ranks no rewards; remove it"),
            ("drop", None, "all rollouts of a group are trained on; remove it"),
        )
    ),
    mapped(
        "algorithm.policy_loss_fn_args.beta",
        0.1,
        "algorithm.beta",
        read=algorithm,
        inactive=presets.only_types("dpo"),
    ),
    mapped(
        "algorithm.policy_loss_fn_args.label_smoothing",
        0.0,
        "algorithm.label_smoothing",
        read=algorithm,
        inactive=presets.only_types("dpo"),
    ),
    mapped(
        f"{_ARGS}.epsilon",
        1e-6,
        "algorithm.std_epsilon",
        read=algorithm,
        inactive=presets.only_advantages("grpo", "step_wise_grpo", "multi_step_grpo", "rec", "clipb"),
    ),
    mapped(
        f"{_ARGS}.mu",
        2.5,
        "algorithm.entropy_filter.deviations",
        read=algorithm,
        inactive=presets.only_advantages("clipb"),
    ),
    mapped(
        f"{_ARGS}.gamma",
        1.0,
        "algorithm.gamma",
        read=algorithm,
        inactive=presets.only_advantages("ppo", "reinforceplusplus"),
    ),
    mapped(f"{_ARGS}.lam", 1.0, "algorithm.lam", read=algorithm, inactive=presets.only_advantages("ppo")),
    mapped(
        f"{_ARGS}.opmd_baseline",
        "mean",
        "algorithm.baseline",
        read=algorithm,
        value_type=one_of("mean", "logavgexp"),
        inactive=presets.only_advantages("opmd"),
    ),
    mapped(
        f"{_ARGS}.tau",
        1.0,
        "algorithm.baseline.tau",
        read=algorithm,
        inactive=presets.only_advantages("opmd"),
    ),
    *distillation.rows(algorithm),
    refused(f"{_ARGS}.*", UNSET, "unknown argument of the advantage function; remove it", supported=never),
    mapped(
        "algorithm.kl_penalty_fn_args.kl_coef",
        0.001,
        "algorithm.kl_reward.coef",
        read=kl,
        inactive=_no_kl("kl_penalty_fn"),
    ),
    mapped(
        "algorithm.kl_loss_fn_args.kl_coef",
        0.001,
        "algorithm.kl_loss.coef",
        read=kl,
        inactive=_no_kl("kl_loss_fn"),
    ),
    *not_on_page(
        *(
            refused(
                f"algorithm.{name}_args.adaptive",
                False,
                "Trinity's adaptive coefficient ends with an error; write false",
                supported=only(False),
                inactive=_no_kl(name),
            )
            for name in ("kl_penalty_fn", "kl_loss_fn")
        )
    ),
    mapped(
        "algorithm.entropy_loss_fn_args.entropy_coef",
        0.0,
        "algorithm.entropy_coef",
        read=entropy,
        inactive=presets.only_sampled,
    ),
)
ROWS = (*TYPE, *FUNCTIONS, *later_keys.OPTIMIZER, *ARGUMENTS, *policy_loss.ROWS)
