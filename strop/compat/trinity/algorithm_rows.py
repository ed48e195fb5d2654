"""Ledger rows of Trinity's `algorithm` section; defaults depend on `algorithm_type`."""

from __future__ import annotations

from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    any_inactive,
    mapped,
    never,
    no_effect,
    not_on_page,
    only,
    refused,
)
from strop.compat.ledger.value_types import ANY, BOOLEAN, INTEGER, NUMBER, nullable, one_of
from strop.compat.trinity import distillation, later_keys, policy_loss, presets, sample_strategy
from strop.compat.trinity.algorithm import ARGS, KL, KL_LOSS, MIXED, OF_STEPS, algorithm, entropy, kl


def _without_duplicates(foreign: ForeignValues) -> str | None:
    if foreign[f"{ARGS}.std_threshold"] is None:
        return "advantage_fn_args.std_threshold is null, so no group is left out"
    return presets.only_advantages("grpo")(foreign)


def _held_by_itself(foreign: ForeignValues) -> str | None:
    return {
        "dpo": "algorithm_type is dpo, whose loss already includes the reference model",
        "sft": "algorithm_type is sft, which has no KL term",
        "cpt": "algorithm_type is cpt, which has no KL term",
    }.get(presets.algorithm_type(foreign))


def _no_entropy(foreign: ForeignValues) -> str | None:
    key = "algorithm.entropy_loss_fn_args.entropy_coef"
    return None if foreign[key] else f"{key} is 0"


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
        note="cpt, continued pretraining, is sft on the column data.train.text",
    ),
    mapped(
        "algorithm.repeat_times",
        None,
        "algorithm.rollouts_per_task",
        read=algorithm,
        value_type=nullable(INTEGER),
        inactive=presets.only_sampled,
        note="by algorithm_type: multi_step_grpo, gigpo, m2po, mix, mix_chord, on_policy_distill and jsd 8, ppo and "
        "raft 1, the others 2",
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
        value_type=nullable(one_of(*KL)),
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
        value_type=nullable(one_of(*KL_LOSS)),
        inactive=_held_by_itself,
        note="null means k2, except under sft; corrected_k3: k3 times the ratio, which is at most 2",
    ),
    mapped(
        "algorithm.entropy_loss_fn",
        None,
        "algorithm.entropy_coef",
        read=entropy,
        value_type=nullable(one_of("default", "mix", "none")),
        inactive=any_inactive(presets.only_sampled, _no_entropy),
    ),
)
ARGUMENTS: tuple[KeyMapping, ...] = not_on_page(
    mapped(MIXED, 0.1, "algorithm.mu", read=algorithm, inactive=presets.only_types("mix")),
    *(
        mapped(f"{MIXED}_{name}", default, field, read=algorithm, inactive=presets.only_types("mix_chord"))
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
        f"{ARGS}.std_normalize",
        None,
        "algorithm.divide_by_std",
        read=algorithm,
        value_type=nullable(BOOLEAN),
        inactive=presets.only_advantages("rec"),
        note="null means false",
    ),
    mapped(
        f"{ARGS}.std_cal_level",
        "group",
        "algorithm.std_over",
        read=algorithm,
        value_type=one_of("group", "batch", "none"),
        inactive=presets.only_advantages("grpo", *OF_STEPS),
        note="none is cod's",
    ),
    mapped(
        f"{ARGS}.std_threshold",
        None,
        "algorithm.min_reward_std",
        read=algorithm,
        value_type=nullable(NUMBER),
        inactive=presets.only_advantages("grpo", *OF_STEPS),
        note="a step trains on the groups that are left; Trinity fills the batch from later ones",
    ),
    mapped(
        f"{ARGS}.duplicate_experiences",
        False,
        "algorithm.repeat_groups",
        read=algorithm,
        value_type=nullable(BOOLEAN),
        inactive=_without_duplicates,
    ),
    mapped(
        f"{ARGS}.enable_step_norm",
        False,
        "algorithm.divide_by_sequences",
        read=algorithm,
        inactive=presets.only_advantages(*OF_STEPS),
    ),
    mapped(
        f"{ARGS}.baseline_shift",
        -0.1,
        "algorithm.baseline_shift",
        read=algorithm,
        inactive=presets.only_advantages("asymre"),
    ),
    *(
        refused(f"{ARGS}.{name}", default, why, supported=only(default, None))
        for name, default, why in (
            (
                "rank_penalty",
                None,
                "it lowers the rewards in the baseline by the rank of a response's mean log-prob within its group "
                "(arXiv 2506.02355), which Strop's advantages do not read; remove it",
            ),
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
        f"{ARGS}.epsilon",
        1e-6,
        "algorithm.std_epsilon",
        read=algorithm,
        inactive=presets.only_advantages("grpo", *OF_STEPS, "rec", "gigpo", *presets.ENTROPY_FILTERS),
    ),
    mapped(
        f"{ARGS}.mu",
        2.5,
        "algorithm.entropy_filter.deviations",
        "algorithm.entropy_filter.center",
        read=algorithm,
        inactive=presets.only_advantages(*presets.ENTROPY_FILTERS),
        note="clipv: 8.5 if not set",
    ),
    mapped(
        f"{ARGS}.max_frac",
        1e-4,
        "algorithm.entropy_filter.max_fraction",
        read=algorithm,
        inactive=presets.only_advantages("clipv"),
    ),
    *(
        refused(
            f"{ARGS}.{name}",
            default,
            "the causal advantages of cod read the rewards of the tasks of a whole trajectory, which only the "
            "workflow of its authors gives; write false, or a workflow and `algorithm.type: custom` in a run file",
            supported=only(default),
            inactive=presets.only_advantages("cod"),
        )
        for name, default in (("iterative_hint_e2e_causal", False), ("red_weight_adaptive_temp", False))
    ),
    *(
        no_effect(f"{ARGS}.{name}", UNSET, "only iterative_hint_e2e_causal reads it", value_type=ANY)
        for name in (
            *("e2e_causal_returns_style", "e2e_causal_returns_window", "e2e_causal_returns_gamma"),
            *(
                "e2e_causal_baseline",
                "mask_format_issue_exp",
                "red_weight_temp",
                "red_weight_adaptive_version",
            ),
            *("red_weight_adaptive_level", "red_weight_adv_shift"),
        )
    ),
    mapped(
        f"{ARGS}.omega",
        1.0,
        "algorithm.turn_weight",
        read=algorithm,
        inactive=presets.only_advantages("gigpo"),
    ),
    mapped(
        f"{ARGS}.fnorm",
        "none",
        "algorithm.divide_by_std",
        "algorithm.states_over",
        read=algorithm,
        value_type=one_of("none", "std"),
        inactive=presets.only_advantages("gigpo"),
        note="gigpo compares the turns of a step that begin in the same state: states_over is step",
    ),
    *(
        refused(
            f"{ARGS}.{name}",
            default,
            "the workflow gives each experience the state before it under `env_state_hash` of its `info`, and "
            "the step's reward under `step_reward`; write these names",
            supported=only(default),
            inactive=presets.only_advantages("gigpo"),
        )
        for name, default in (("step_reward_key", "step_reward"), ("env_state_hash_key", "env_state_hash"))
    ),
    mapped(
        f"{ARGS}.gamma",
        1.0,
        "algorithm.gamma",
        read=algorithm,
        inactive=presets.only_advantages("ppo", "reinforceplusplus", "gigpo"),
    ),
    mapped(f"{ARGS}.lam", 1.0, "algorithm.lam", read=algorithm, inactive=presets.only_advantages("ppo")),
    mapped(
        f"{ARGS}.opmd_baseline",
        "mean",
        "algorithm.baseline",
        read=algorithm,
        value_type=one_of("mean", "logavgexp"),
        inactive=presets.only_advantages("opmd"),
    ),
    mapped(
        f"{ARGS}.tau",
        1.0,
        "algorithm.baseline.tau",
        read=algorithm,
        inactive=presets.only_advantages("opmd"),
    ),
    *distillation.rows(algorithm),
    refused(f"{ARGS}.*", UNSET, "unknown argument of the advantage function; remove it", supported=never),
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
ROWS = (*TYPE, *FUNCTIONS, *later_keys.OPTIMIZER, *later_keys.RATIOS, *ARGUMENTS, *policy_loss.ROWS)
