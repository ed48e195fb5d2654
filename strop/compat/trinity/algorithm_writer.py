"""Writer of Trinity's `algorithm` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.trinity.distillation import write_distillation
from strop.compat.trinity.presets import ADVANTAGES, PRESETS
from strop.config.schema import Run
from strop.config.schema.algorithm import (
    DistillationOnlyConfig,
    OfflineAlgorithmConfig,
    RolloutAlgorithmConfig,
    SftConfig,
)
from strop.config.schema.distillation import SampledJsdConfig
from strop.config.schema.group_baselines import (
    GigpoConfig,
    GrpoConfig,
    LogAvgExpBaselineConfig,
    MeanBaselineConfig,
    MixConfig,
    OpmdConfig,
)
from strop.config.schema.policy_gradient import KlLossConfig
from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClippedLossConfig,
    GpgLossConfig,
    GspoLossConfig,
    ImportanceSamplingLossConfig,
    M2poLossConfig,
    OpmdLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)
from strop.config.schema.preference import DpoConfig, PreferenceConfig, UnpairedConfig
from strop.config.schema.reward_modeling import RewardModelingConfig
from strop.errors import ConfigError

_LOSS_ARGS = "algorithm.policy_loss_fn_args"
_ARGS = "algorithm.advantage_fn_args"
_NAMES = {name: foreign_name for foreign_name, name in reversed(list(ADVANTAGES.items()))}


def algorithm_type_of(algorithm: RolloutAlgorithmConfig) -> str:
    """The closest `algorithm_type`. Raises ConfigError where Trinity does not have the algorithm."""
    if isinstance(algorithm, MixConfig):
        is_chord = algorithm.mu_schedule is not None or algorithm.expert_weight != "none"
        return "mix_chord" if is_chord else "mix"
    if algorithm.type not in _NAMES:
        raise ConfigError(
            f"algorithm.type {algorithm.type} is none of {', '.join(_NAMES)}, mix, sft and dpo."
        )
    name = _NAMES[algorithm.type]
    if isinstance(algorithm, DistillationOnlyConfig):
        reward = algorithm.distillation.reward
        return "jsd" if reward is not None and isinstance(reward.divergence, SampledJsdConfig) else name
    return name if name in PRESETS else "grpo"


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
            f"{_LOSS_ARGS}.beta": section.beta,
            f"{_LOSS_ARGS}.label_smoothing": section.label_smoothing,
        }
    if isinstance(section, SftConfig):
        return {"algorithm.algorithm_type": "sft" if run.data.train.text is None else "cpt"}
    kind = algorithm_type_of(section)
    own = isinstance(section, MixConfig | DistillationOnlyConfig)
    advantage = PRESETS[kind].advantage if own else _NAMES[section.type]
    values: dict[str, Any] = {
        "algorithm.algorithm_type": kind,
        "algorithm.repeat_times": section.rollouts_per_task,
        "algorithm.advantage_fn": None if advantage == PRESETS[kind].advantage else advantage,
    }
    for field, key in (
        ("std_epsilon", "epsilon"),
        ("gamma", "gamma"),
        ("lam", "lam"),
        ("baseline_shift", "baseline_shift"),
    ):
        if hasattr(section, field):
            values[f"{_ARGS}.{key}"] = getattr(section, field)
    values["trainer.trainer_config.algorithm.rollout_correction.bypass_mode"] = (
        section.old_policy == "sampler"
    )
    if isinstance(section, GrpoConfig):
        values |= _write_std(section)
        if section.entropy_filter is not None:
            by_step = section.entropy_filter.center == "step"
            values |= {
                "algorithm.algorithm_type": "grpo_verl",
                "algorithm.advantage_fn": "clipb" if by_step else "clipv",
                f"{_ARGS}.mu": section.entropy_filter.deviations,
                **({} if by_step else {f"{_ARGS}.max_frac": section.entropy_filter.max_fraction or 1.0}),
            }
    if isinstance(section, GigpoConfig):
        fnorm = "std" if section.divide_by_std else "none"
        over_step = section.states_over == "step"
        values |= {f"{_ARGS}.omega": section.turn_weight, f"{_ARGS}.fnorm": fnorm if over_step else None}
    if isinstance(section, MixConfig):
        values |= _write_mu(section)
    if isinstance(section, DistillationOnlyConfig):
        values |= write_distillation(section)
    if isinstance(section, OpmdConfig):
        by_mean = isinstance(section.baseline, MeanBaselineConfig)
        values[f"{_ARGS}.opmd_baseline"] = "mean" if by_mean else "logavgexp"
        if isinstance(section.baseline, LogAvgExpBaselineConfig):
            values[f"{_ARGS}.tau"] = section.baseline.tau
    return values


def _write_std(section: GrpoConfig) -> dict[str, Any]:
    """Options of GRPO's advantages; those without a standard deviation are those of `rec`."""
    if not section.divide_by_std:
        return {"algorithm.advantage_fn": "rec"}
    values: dict[str, Any] = {f"{_ARGS}.std_cal_level": "batch" if section.std_over == "step" else "group"}
    if section.min_reward_std is not None:
        values[f"{_ARGS}.std_threshold"] = section.min_reward_std
    if section.repeat_groups:
        values[f"{_ARGS}.duplicate_experiences"] = True
    if section.divide_by_sequences:
        values |= {"algorithm.advantage_fn": "step_wise_grpo", f"{_ARGS}.enable_step_norm": True}
    return values


def _write_mu(section: MixConfig) -> dict[str, Any]:
    if algorithm_type_of(section) == "mix":
        return {f"{_LOSS_ARGS}.mu": section.mu}
    schedule = section.mu_schedule
    return {
        f"{_LOSS_ARGS}.mu_peak": section.mu,
        f"{_LOSS_ARGS}.mu_valley": section.mu if schedule is None else schedule.final,
        f"{_LOSS_ARGS}.mu_warmup_steps": 0 if schedule is None else schedule.warmup_steps,
        f"{_LOSS_ARGS}.mu_decay_steps": 0 if schedule is None else schedule.decay_steps,
        f"{_LOSS_ARGS}.enable_phi_function": section.expert_weight != "none",
    }


def _write_off_policy(loss: ToprLossConfig | SppoLossConfig | RecLossConfig) -> dict[str, Any]:
    match loss:
        case ToprLossConfig():
            return {f"{_LOSS_ARGS}.advantage_threshold": loss.threshold}
        case SppoLossConfig():
            return {f"{_LOSS_ARGS}.epsilon": loss.clip}
    names = {
        "one_side": "one-side",
        "two_sides": "two-side",
        "ratio": "importance_sampling",
        "forward_kl": "forward-kl",
    }
    values = {
        "epsilon_low": loss.clip_low,
        "epsilon_high": loss.clip_high,
        "epsilon_low_prime": loss.ring_low,
        "epsilon_high_prime": loss.ring_high,
        "clip_mode": names.get(loss.clipping, loss.clipping),
        "weight": names.get(loss.weight, loss.weight),
        "temp": loss.temperature,
        "regularizer": names.get(loss.regularizer, loss.regularizer),
        "regularizer_coef": loss.regularizer_coef,
    }
    return {f"{_LOSS_ARGS}.{name}": value for name, value in values.items()}


def _write_token_weight(section: SftConfig) -> dict[str, Any]:
    return {"algorithm.policy_loss_fn": {"p": "sft_is", "p_one_minus_p": "sft_phi"}[section.token_weight]}


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """Write the policy loss where it differs from the type's own, its clip bounds, and the aggregation."""
    if isinstance(run.algorithm, SftConfig):
        return {} if run.algorithm.token_weight == "none" else _write_token_weight(run.algorithm)
    if isinstance(run.algorithm, PreferenceConfig | UnpairedConfig | RewardModelingConfig):
        return {}
    kind, loss = algorithm_type_of(run.algorithm), run.algorithm.policy_loss
    values: dict[str, Any] = {f"{_LOSS_ARGS}.loss_agg_mode": run.algorithm.aggregation}
    match loss:
        case OpmdLossConfig():
            name = "opmd"
            values[f"{_LOSS_ARGS}.tau"] = loss.tau
        case CispoLossConfig():
            name = "cispo"
            low = 1.0 if loss.clip_low is None else loss.clip_low
            values |= {f"{_LOSS_ARGS}.clip_range_low": low, f"{_LOSS_ARGS}.clip_range_high": loss.clip_high}
        case ToprLossConfig() | SppoLossConfig() | RecLossConfig():
            name = loss.type
            values |= _write_off_policy(loss)
        case SapoLossConfig():
            name = "sapo"
            values |= {f"{_LOSS_ARGS}.tau_pos": loss.tau_pos, f"{_LOSS_ARGS}.tau_neg": loss.tau_neg}
        case ImportanceSamplingLossConfig():
            name = "importance_sampling"
        case M2poLossConfig():
            name = "m2po"
            values[f"{_LOSS_ARGS}.m2_threshold"] = loss.max_second_moment
        case GspoLossConfig() | ClippedLossConfig():
            name = "gspo" if isinstance(loss, GspoLossConfig) else "ppo"
            both = loss.clip_low == loss.clip_high and name == "ppo"
            bounds = {"": loss.clip_low} if both else {"_low": loss.clip_low, "_high": loss.clip_high}
            values |= {f"{_LOSS_ARGS}.clip_range{side}": bound for side, bound in bounds.items()}
        case _:
            name = "ppo"
    if isinstance(loss, ClippedLossConfig):
        values[f"{_LOSS_ARGS}.clip_ratio_c"] = loss.dual_clip
    own = PRESETS[kind].loss
    if own == "sft" and isinstance(loss, GpgLossConfig):
        name = own
    if own not in ("mix", "mix_chord"):
        values["algorithm.policy_loss_fn"] = None if name == own else name
    if name != "gspo" and run.algorithm.aggregation == "token-mean":
        values[f"{_LOSS_ARGS}.loss_agg_mode"] = None
    return values


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


def write_entropy(run: Run) -> Mapping[str, Any]:
    """Write the entropy coefficient of the type's own entropy function."""
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        return {}
    return {"algorithm.entropy_loss_fn_args.entropy_coef": run.algorithm.entropy_coef}
