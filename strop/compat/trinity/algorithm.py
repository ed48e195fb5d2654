"""Ledger rows of Trinity's `algorithm` section; defaults depend on `algorithm_type`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBER_LIST,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ValueType,
    any_inactive,
    mapped,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    refused,
    versions,
    written_by,
)
from strop.compat.trinity import presets
from strop.compat.trinity.embedded_verl import PREFIX, newer_row
from strop.compat.trinity.policy_loss import LOSS_ARGS
from strop.compat.trinity.presets import (
    ADVANTAGE_NAMES,
    PRESETS,
    algorithm_type_of,
    only_advantages,
    only_sampled,
    only_types,
)
from strop.config.schema import Run
from strop.config.schema.algorithm import (
    DistillationOnlyConfig,
    GigpoConfig,
    GrpoConfig,
    LogAvgExpBaselineConfig,
    MeanBaselineConfig,
    MixConfig,
    OfflineAlgorithmConfig,
    OpmdConfig,
    SftConfig,
)
from strop.config.schema.distillation import SampledJsdConfig
from strop.config.schema.policy_gradient import KlLossConfig
from strop.config.schema.preference import DpoConfig, PreferenceConfig, RewardModelingConfig, UnpairedConfig
from strop.errors import ConfigError

ARGS = "algorithm.advantage_fn_args"
_OF_STEPS = ("step_wise_grpo", "multi_step_grpo", "cod")
"""Advantage functions of rollouts with several training sequences."""
_MU = f"{LOSS_ARGS}.mu"
_BYPASS = "trainer.trainer_config.algorithm.rollout_correction.bypass_mode"
_TEACHER = "explorer.auxiliary_models.0.model_path"
_WORKFLOW_ARGS = "buffer.explorer_input.taskset.workflow_args"


def write_algorithm(run: Run) -> Mapping[str, Any]:
    """Write the type, and `advantage_fn` where it differs from the type's own."""
    section = run.algorithm
    if isinstance(section, UnpairedConfig):
        raise ConfigError(f"Trinity has no algorithm {section.type}: its rows have no labels.")
    if isinstance(section, RewardModelingConfig):
        raise ConfigError("Trinity trains no reward model; write the run file for Strop.")
    if isinstance(section, PreferenceConfig):
        if not isinstance(section, DpoConfig) or section != DpoConfig(
            beta=section.beta, label_smoothing=section.label_smoothing
        ):
            raise ConfigError(
                f"Of the losses on pairs Trinity has DPO's sigmoid alone, and not {section.type}'s here."
            )
        return {
            "algorithm.algorithm_type": "dpo",
            f"{LOSS_ARGS}.beta": section.beta,
            f"{LOSS_ARGS}.label_smoothing": section.label_smoothing,
        }
    if isinstance(section, SftConfig):
        return {"algorithm.algorithm_type": "sft" if run.data.train.text is None else "cpt"}
    kind = algorithm_type_of(section)
    own = isinstance(section, MixConfig | DistillationOnlyConfig)
    advantage = PRESETS[kind].advantage if own else ADVANTAGE_NAMES[section.type]
    values: dict[str, Any] = {
        "algorithm.algorithm_type": kind,
        "algorithm.repeat_times": section.rollouts_per_task,
        "algorithm.advantage_fn": None if advantage == PRESETS[kind].advantage else advantage,
    }
    names = {"epsilon": "std_epsilon"} | {name: name for name in ("gamma", "lam", "baseline_shift")}
    for name, field in names.items():
        if hasattr(section, field):
            values[f"{ARGS}.{name}"] = getattr(section, field)
    values[_BYPASS] = section.old_policy == "sampler"
    if isinstance(section, GrpoConfig):
        values |= _write_std(section)
        if section.entropy_filter is not None:
            by_step = section.entropy_filter.center == "step"
            values |= {
                "algorithm.algorithm_type": "grpo_verl",
                "algorithm.advantage_fn": "clipb" if by_step else "clipv",
                f"{ARGS}.mu": section.entropy_filter.deviations,
                **({} if by_step else {f"{ARGS}.max_frac": section.entropy_filter.max_fraction or 1.0}),
            }
    if isinstance(section, GigpoConfig):
        fnorm = "std" if section.divide_by_std else "none"
        over_step = section.states_over == "step"
        values |= {f"{ARGS}.omega": section.turn_weight, f"{ARGS}.fnorm": fnorm if over_step else None}
    if isinstance(section, MixConfig):
        values |= _write_mu(section)
    if isinstance(section, DistillationOnlyConfig):
        values |= _write_distillation(section)
    if isinstance(section, OpmdConfig):
        by_mean = isinstance(section.baseline, MeanBaselineConfig)
        values[f"{ARGS}.opmd_baseline"] = "mean" if by_mean else "logavgexp"
        if isinstance(section.baseline, LogAvgExpBaselineConfig):
            values[f"{ARGS}.tau"] = section.baseline.tau
    return values


def _write_std(section: GrpoConfig) -> dict[str, Any]:
    """Options of GRPO's advantages; those without a standard deviation are those of `rec`."""
    if not section.divide_by_std:
        return {"algorithm.advantage_fn": "rec"}
    values: dict[str, Any] = {f"{ARGS}.std_cal_level": "batch" if section.std_over == "step" else "group"}
    if section.min_reward_std is not None:
        values[f"{ARGS}.std_threshold"] = section.min_reward_std
    if section.repeat_groups:
        values[f"{ARGS}.duplicate_experiences"] = True
    if section.divide_by_sequences:
        values |= {"algorithm.advantage_fn": "step_wise_grpo", f"{ARGS}.enable_step_norm": True}
    return values


def _write_mu(section: MixConfig) -> dict[str, Any]:
    if algorithm_type_of(section) == "mix":
        return {f"{LOSS_ARGS}.mu": section.mu}
    schedule = section.mu_schedule
    return {
        f"{LOSS_ARGS}.mu_peak": section.mu,
        f"{LOSS_ARGS}.mu_valley": section.mu if schedule is None else schedule.final,
        f"{LOSS_ARGS}.mu_warmup_steps": 0 if schedule is None else schedule.warmup_steps,
        f"{LOSS_ARGS}.mu_decay_steps": 0 if schedule is None else schedule.decay_steps,
        f"{LOSS_ARGS}.enable_phi_function": section.expert_weight != "none",
    }


def _write_distillation(section: DistillationOnlyConfig) -> dict[str, Any]:
    """The arguments of the advantage function; none where the divergence is in the loss."""
    reward = section.distillation.reward
    if reward is None:
        return {}
    values: dict[str, Any] = {f"{ARGS}.kl_coef": reward.coef}
    if isinstance(reward.divergence, SampledJsdConfig):
        values[f"{ARGS}.lambda_coef"] = reward.divergence.beta
    return values


@written_by(write_algorithm)
def algorithm(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the algorithm: the type's own, or that of `advantage_fn` if it is set."""
    kind, advantage = presets.algorithm_type(foreign), presets.advantage(foreign)
    if kind == "dpo":
        own = {name: foreign[f"{LOSS_ARGS}.{name}"] for name in ("beta", "label_smoothing")}
        settings = {"type": "dpo", **own}
    elif kind in presets.SUPERVISED:
        settings = {"type": "sft"}
    else:
        own = _mix(foreign, advantage) if kind in presets.MIXED else _by_advantage(foreign, advantage)
        settings = {
            "rollouts_per_task": presets.repeat_times(foreign),
            "old_policy": _old_policy(foreign),
            **own,
        }
    return {f"algorithm.{name}": value for name, value in settings.items()}


def _by_advantage(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    """The algorithm that has the advantages of a function, with the function's arguments."""

    def arg(name: str) -> Any:
        return foreign[f"{ARGS}.{name}"]

    settings: dict[str, Any] = {"type": presets.ADVANTAGES[advantage]}
    match advantage:
        case "ppo":
            settings |= {"gamma": arg("gamma"), "lam": arg("lam")}
        case "clipb":
            settings["std_epsilon"] = arg("epsilon")
            settings["entropy_filter.deviations"] = _entropy_bound(foreign, advantage)
        case "clipv":
            settings["std_epsilon"] = arg("epsilon")
            settings["entropy_filter.center"] = "vocabulary"
            settings["entropy_filter.deviations"] = _entropy_bound(foreign, advantage)
            settings["entropy_filter.max_fraction"] = arg("max_frac")
        case "grpo" | "step_wise_grpo" | "multi_step_grpo" | "rec" | "cod":
            settings["std_epsilon"] = arg("epsilon")
            settings["divide_by_std"] = _divides_by_std(foreign, advantage)
            settings["std_over"] = "step" if arg("std_cal_level") == "batch" else "group"
            if advantage != "rec":
                settings["min_reward_std"] = arg("std_threshold")
            if advantage == "grpo" and arg("std_threshold") is not None:
                settings["repeat_groups"] = bool(arg("duplicate_experiences"))
            if advantage in _OF_STEPS:
                settings["divide_by_sequences"] = arg("enable_step_norm")
        case "gigpo":
            settings |= {
                "turn_weight": arg("omega"),
                "gamma": arg("gamma"),
                "divide_by_std": arg("fnorm") == "std",
                "std_epsilon": arg("epsilon"),
                "states_over": "step",
            }
        case "asymre":
            settings["baseline_shift"] = arg("baseline_shift")
        case "opmd":
            by_mean = arg("opmd_baseline") == "mean"
            settings["baseline"] = {"type": "mean"} if by_mean else {"type": "log_avg_exp", "tau": arg("tau")}
        case "reinforceplusplus":
            settings["gamma"] = arg("gamma")
        case "on_policy_distill" | "jsd":
            settings |= _distillation(foreign, advantage)
    return settings


def _entropy_bound(foreign: ForeignValues, advantage: str) -> float:
    """The bound of the tokens that are left out, whose default differs between the two functions."""
    return foreign[f"{ARGS}.mu"] if foreign.is_set(f"{ARGS}.mu") else presets.ENTROPY_FILTERS[advantage]


def _mix(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    if advantage != "grpo":
        raise foreign.error_for(
            "algorithm.advantage_fn",
            f"algorithm.advantage_fn {advantage} is incompatible with algorithm_type "
            f"{presets.algorithm_type(foreign)}, which uses GRPO's advantages; write advantage_fn: grpo, or remove it.",
        )
    settings = {"type": "mix", "std_epsilon": foreign[f"{ARGS}.epsilon"]}
    if presets.algorithm_type(foreign) == "mix":
        return {**settings, "mu": foreign[_MU]}
    warmup, decay = foreign[f"{_MU}_warmup_steps"], foreign[f"{_MU}_decay_steps"]
    peak, final = foreign[f"{_MU}_peak"], foreign[f"{_MU}_valley"]
    if warmup == decay == 0 or (warmup == 0 and peak == final):
        settings["mu"] = final
    else:
        settings["mu"] = peak
        settings["mu_schedule"] = {"warmup_steps": warmup, "decay_steps": decay, "final": final}
    phi = foreign[f"{LOSS_ARGS}.enable_phi_function"]
    return {**settings, "expert_weight": "p_one_minus_p" if phi else "none"}


def _old_policy(foreign: ForeignValues) -> str:
    """Ratios are relative to the sampler's log-probs, unless they are recomputed: `bypass_mode` is false, or in 0.6
    `bypass_old_logprobs`."""
    return "sampler" if foreign[_BYPASS] and foreign["algorithm.bypass_old_logprobs"] else "trainer"


def _divides_by_std(foreign: ForeignValues, advantage: str) -> bool:
    """Whether advantages are in units of the standard deviation: except for rec, by default."""
    if advantage == "cod":
        return bool(foreign[f"{ARGS}.std_cal_level"] != "none")
    written = foreign[f"{ARGS}.std_normalize"]
    return advantage != "rec" if written is None else bool(written)


def _distillation(foreign: ForeignValues, advantage: str) -> dict[str, Any]:
    """The teacher is the first auxiliary model, and the workflow's `temperature` divides its logits.

    The divergence of the sampled tokens is a reward of each token: that of `on_policy_distill` is log p - log q.
    """
    path = foreign[_TEACHER] if foreign["explorer.auxiliary_models"] else None
    if not path:
        raise foreign.error_for(
            _TEACHER,
            f"{_TEACHER} is missing: the advantages {advantage} are a divergence from a teacher, which is the "
            "first auxiliary model.",
        )
    divergence: dict[str, Any] = {"type": "sampled_kl", "estimator": "k1"}
    if advantage == "jsd":
        divergence = {"type": "sampled_jsd", "beta": foreign[f"{ARGS}.lambda_coef"]}
    return {
        "distillation.teachers": [{"path": path}],
        "distillation.reward": {"divergence": divergence, "coef": foreign[f"{ARGS}.kl_coef"]},
        "distillation.temperature": (foreign[_WORKFLOW_ARGS] or {}).get("temperature", 1.0),
    }


_KL = {"none": None, "k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
"""KL estimators by their names in Trinity."""
_KL_LOSS = {**_KL, "corrected_k3": "k3"}
"""KL estimators of the loss, which may also be weighted by the ratio."""
_CORRECTED_RATIO = 2.0
"""Maximum ratio of corrected_k3."""


def write_kl(run: Run) -> Mapping[str, Any]:
    """Write the KL terms. `none` is written for a loss without one, because most types have one by
    default."""
    values: dict[str, Any] = {}
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return values
    for term, key in ((run.algorithm.kl_loss, "kl_loss_fn"), (run.algorithm.kl_reward, "kl_penalty_fn")):
        if term is not None:
            corrected = isinstance(term, KlLossConfig) and term.weight_by_ratio
            values |= {
                f"algorithm.{key}": "corrected_k3" if corrected else term.estimator,
                f"algorithm.{key}_args.kl_coef": term.coef,
            }
        elif key == "kl_loss_fn":
            values[f"algorithm.{key}"] = "none"
    return values


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


def write_entropy(run: Run) -> Mapping[str, Any]:
    """Write the entropy coefficient of the type's own entropy function."""
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {}
    return {"algorithm.entropy_loss_fn_args.entropy_coef": run.algorithm.entropy_coef}


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


def _no_entropy(foreign: ForeignValues) -> str | None:
    key = "algorithm.entropy_loss_fn_args.entropy_coef"
    return None if foreign[key] else f"{key} is 0"


def _held_by_itself(foreign: ForeignValues) -> str | None:
    return {
        "dpo": "algorithm_type is dpo, whose loss already includes the reference model",
        "sft": "algorithm_type is sft, which has no KL term",
        "cpt": "algorithm_type is cpt, which has no KL term",
    }.get(presets.algorithm_type(foreign))


def _no_kl(key: str) -> InactiveCheck:
    def inactive(foreign: ForeignValues) -> str | None:
        default = presets.preset(foreign).kl_loss if key == "kl_loss_fn" else "none"
        is_none = presets.option(foreign, key, default) == "none"
        return _held_by_itself(foreign) or (f"{key} is none" if is_none else None)

    return inactive


_algorithm_row = partial(mapped, read=algorithm)
_kl_row = partial(mapped, read=kl)
_FUNCTIONS = (
    _algorithm_row(
        "algorithm.algorithm_type",
        "ppo",
        "algorithm.type",
        value_type=one_of(*PRESETS),
        note="cpt, continued pretraining, is sft on the column data.train.text",
    ),
    _algorithm_row(
        "algorithm.repeat_times",
        None,
        "algorithm.rollouts_per_task",
        value_type=nullable(INTEGER),
        inactive=only_sampled,
        note="by algorithm_type: multi_step_grpo, gigpo, m2po, mix, mix_chord, on_policy_distill and jsd 8, ppo and "
        "raft 1, the others 2",
    ),
    _algorithm_row(
        "algorithm.advantage_fn",
        None,
        "algorithm.type",
        value_type=nullable(one_of(*(name for name in presets.ADVANTAGES if name != "raft"))),
        inactive=only_sampled,
        note="default by algorithm_type; another value selects the algorithm with these advantages; ppo has a critic",
    ),
    _kl_row(
        "algorithm.kl_penalty_fn",
        None,
        "algorithm.kl_reward",
        "algorithm.kl_reward.estimator",
        value_type=nullable(one_of(*_KL)),
        inactive=_held_by_itself,
        note="null means none",
    ),
    _kl_row(
        "algorithm.kl_loss_fn",
        None,
        "algorithm.kl_loss",
        "algorithm.kl_loss.estimator",
        "algorithm.kl_loss.weight_by_ratio",
        "algorithm.kl_loss.max_ratio",
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
        inactive=any_inactive(only_sampled, _no_entropy),
    ),
)


def _row(
    key: str,
    default: Any,
    *fields: str,
    inactive: InactiveCheck,
    value_type: ValueType | None = None,
    note: str = "",
) -> KeyMapping:
    """The row of an argument of an advantage function or a policy loss that decides fields of the algorithm."""
    names = tuple(f"algorithm.{field}" for field in fields)
    return mapped(key, default, *names, read=algorithm, value_type=value_type, inactive=inactive, note=note)


def _arg(
    name: str,
    default: Any,
    field: str,
    of: tuple[str, ...],
    value_type: ValueType | None = None,
    note: str = "",
) -> KeyMapping:
    """The row of an argument that some advantage functions have."""
    inactive = only_advantages(*of)
    return _row(f"{ARGS}.{name}", default, field, inactive=inactive, value_type=value_type, note=note)


def _without_duplicates(foreign: ForeignValues) -> str | None:
    if foreign[f"{ARGS}.std_threshold"] is None:
        return "advantage_fn_args.std_threshold is null, so no group is left out"
    return only_advantages("grpo")(foreign)


_OF_WORKFLOW = (
    "the causal advantages of cod read the rewards of the tasks of a whole trajectory, which only the workflow of its "
    "authors gives; write false, or a workflow and `algorithm.type: custom` in a run file"
)
_OF_EXPERIENCES = (
    "the workflow gives each experience the state before it under `env_state_hash` of its `info`, and the step's "
    "reward under `step_reward`; write these names"
)
_RANKS = (
    "it lowers the rewards in the baseline by the rank of a response's mean log-prob within its group (arXiv "
    "2506.02355), which Strop's advantages do not read; remove it"
)
_CHORD = only_types("mix_chord")
_COD, _GIGPO = only_advantages("cod"), only_advantages("gigpo")
_STD = ("grpo", *_OF_STEPS)
_ARGUMENTS = not_on_page(
    _row(_MU, 0.1, "mu", inactive=only_types("mix")),
    _row(f"{_MU}_peak", 0.1, "mu", inactive=_CHORD),
    _row(f"{_MU}_valley", 0.1, "mu_schedule.final", inactive=_CHORD),
    _row(f"{_MU}_warmup_steps", 0, "mu_schedule.warmup_steps", inactive=_CHORD),
    _row(f"{_MU}_decay_steps", 0, "mu_schedule.decay_steps", inactive=_CHORD),
    _row(f"{LOSS_ARGS}.enable_phi_function", True, "expert_weight", inactive=_CHORD),
    _row(f"{LOSS_ARGS}.beta", 0.1, "beta", inactive=only_types("dpo")),
    _row(f"{LOSS_ARGS}.label_smoothing", 0.0, "label_smoothing", inactive=only_types("dpo")),
    _arg("epsilon", 1e-6, "std_epsilon", (*_STD, "rec", "gigpo", *presets.ENTROPY_FILTERS)),
    _arg("std_normalize", None, "divide_by_std", ("rec",), nullable(BOOLEAN), "null means false"),
    _arg("std_cal_level", "group", "std_over", _STD, one_of("group", "batch", "none"), "none is cod's"),
    _arg(
        "std_threshold",
        None,
        "min_reward_std",
        _STD,
        nullable(NUMBER),
        "a step trains on the groups that are left; Trinity fills the batch from later ones",
    ),
    _row(
        f"{ARGS}.duplicate_experiences",
        False,
        "repeat_groups",
        inactive=_without_duplicates,
        value_type=nullable(BOOLEAN),
    ),
    _arg("enable_step_norm", False, "divide_by_sequences", _OF_STEPS),
    refused(f"{ARGS}.rank_penalty", None, _RANKS),
    refused(f"{ARGS}.drop", None, "all rollouts of a group are trained on; remove it"),
    _arg("baseline_shift", -0.1, "baseline_shift", ("asymre",)),
    _row(
        f"{ARGS}.mu",
        2.5,
        "entropy_filter.deviations",
        "entropy_filter.center",
        inactive=only_advantages(*presets.ENTROPY_FILTERS),
        note="clipv: 8.5 if not set",
    ),
    _arg("max_frac", 1e-4, "entropy_filter.max_fraction", ("clipv",)),
    refused(f"{ARGS}.iterative_hint_e2e_causal", False, _OF_WORKFLOW, inactive=_COD),
    refused(f"{ARGS}.red_weight_adaptive_temp", False, _OF_WORKFLOW, inactive=_COD),
    *no_effects(
        ARGS,
        (
            *("e2e_causal_returns_style", "e2e_causal_returns_window", "e2e_causal_returns_gamma"),
            *(
                "e2e_causal_baseline",
                "mask_format_issue_exp",
                "red_weight_temp",
                "red_weight_adaptive_version",
            ),
            *("red_weight_adaptive_level", "red_weight_adv_shift"),
        ),
        "only iterative_hint_e2e_causal reads it",
    ),
    _arg("omega", 1.0, "turn_weight", ("gigpo",)),
    _row(
        f"{ARGS}.fnorm",
        "none",
        "divide_by_std",
        "states_over",
        inactive=_GIGPO,
        value_type=one_of("none", "std"),
        note="gigpo compares the turns of a step that begin in the same state: states_over is step",
    ),
    refused(f"{ARGS}.step_reward_key", "step_reward", _OF_EXPERIENCES, inactive=_GIGPO),
    refused(f"{ARGS}.env_state_hash_key", "env_state_hash", _OF_EXPERIENCES, inactive=_GIGPO),
    _arg("gamma", 1.0, "gamma", ("ppo", "reinforceplusplus", "gigpo")),
    _arg("lam", 1.0, "lam", ("ppo",)),
    _arg("opmd_baseline", "mean", "baseline", ("opmd",), one_of("mean", "logavgexp")),
    _arg("tau", 1.0, "baseline.tau", ("opmd",)),
    _arg("kl_coef", 1.0, "distillation.reward.coef", presets.DISTILLED),
    _arg("lambda_coef", 0.5, "distillation.reward.divergence.beta", ("jsd",)),
    refused(f"{ARGS}.*", UNSET, "unknown argument of the advantage function; remove it"),
    *(
        _kl_row(f"algorithm.{name}_args.kl_coef", 0.001, f"algorithm.{field}.coef", inactive=_no_kl(name))
        for name, field in (("kl_penalty_fn", "kl_reward"), ("kl_loss_fn", "kl_loss"))
    ),
    *(
        refused(
            f"algorithm.{name}_args.adaptive",
            False,
            "Trinity's adaptive coefficient ends with an error; write false",
            inactive=_no_kl(name),
        )
        for name in ("kl_penalty_fn", "kl_loss_fn")
    ),
    mapped(
        "algorithm.entropy_loss_fn_args.entropy_coef",
        0.0,
        "algorithm.entropy_coef",
        read=entropy,
        inactive=only_sampled,
    ),
)
_SCHEDULES = nullable(one_of("constant", "cosine"))


def _last_rate(foreign: ForeignValues) -> str | None:
    """Trinity-RFT 0.6 has another default of the last rate than the versions before."""
    at = "algorithm.optimizer"
    ratios = (f"{at}.min_lr_ratio", f"{PREFIX}actor_rollout_ref.actor.optim.min_lr_ratio")
    kinds = (foreign[f"{at}.{name}"] for name in ("lr_scheduler_type", "warmup_style"))
    if "cosine" not in kinds or any(map(foreign.is_set, ratios)):
        return None
    return (
        f"the rate falls to 0, as in Trinity-RFT 0.4 and 0.5; in 0.6 to 0.01 of lr: write {at}.min_lr_ratio"
    )


_OPTIMIZER = (
    newer_row("algorithm.optimizer.lr", 1e-6, "0.4"),
    newer_row("algorithm.optimizer.lr_warmup_steps", -1, "0.4", value_type=nullable(INTEGER)),
    newer_row("algorithm.optimizer.lr_warmup_steps_ratio", 0.0, "0.4"),
    newer_row("algorithm.optimizer.min_lr_ratio", 0.0, "0.4", value_type=nullable(NUMBER)),
    newer_row(
        "algorithm.optimizer.lr_scheduler_type", "constant", "0.5", value_type=_SCHEDULES, warn=_last_rate
    ),
    newer_row(
        "algorithm.optimizer.warmup_style",
        None,
        "0.4",
        value_type=_SCHEDULES,
        deprecated="write algorithm.optimizer.lr_scheduler_type",
    ),
    newer_row("algorithm.optimizer.betas", [0.9, 0.999], "0.4", value_type=NUMBER_LIST),
    newer_row("algorithm.optimizer.weight_decay", 0.01, "0.4"),
    newer_row("algorithm.optimizer.clip_grad", 1.0, "0.4"),
    newer_row("algorithm.optimizer.lr_warmup_init", 0.0, "0.4", value_type=ANY, until="0.4"),
    newer_row("algorithm.optimizer.lr_decay_style", "constant", "0.4", value_type=ANY, until="0.4"),
    newer_row("algorithm.optimizer.min_lr", 0.0, "0.4", value_type=ANY, until="0.4"),
    newer_row("algorithm.optimizer.lr_decay_steps", None, "0.4", value_type=nullable(INTEGER), until="0.4"),
    *versions(
        refused(
            "algorithm.optimizer.optimizer_type",
            "adam",
            "Trinity's FSDP trainers use AdamW; write adam",
            supported=only("adam", "adamw", None),
        ),
        since="0.4",
    ),
)
_OLD_POLICY = versions(
    _algorithm_row(
        "algorithm.bypass_old_logprobs",
        True,
        "algorithm.old_policy",
        inactive=only_sampled,
        note="false recomputes the log-probs of the old policy before each step",
    ),
    refused(
        "algorithm.rollout_correction.*",
        UNSET,
        "Trinity 0.6 reads it and corrects nothing; write trainer.trainer_config.algorithm.rollout_correction, which "
        "0.5 applies, or remove it",
        supported=lambda foreign, value: value is True,  # the default of bypass_mode
    ),
    refused(
        "algorithm.enable_router_replay",
        False,
        "Strop's sampler records no routes of experts; write false",
        value_type=BOOLEAN,
    ),
    since="0.6",
)
ROWS = (*_FUNCTIONS, *_OPTIMIZER, *_OLD_POLICY, *_ARGUMENTS)
