"""A run's algorithm in Trinity's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.trinity.presets import ADVANTAGES, PRESETS
from strop.config.schema import Run
from strop.config.schema.algorithm import (
    ClippedLoss,
    Dpo,
    GspoLoss,
    LogAvgExpBaseline,
    MeanBaseline,
    Mix,
    Opmd,
    OpmdLoss,
    RolloutAlgorithm,
    Sft,
)
from strop.errors import ConfigError

_LOSS_ARGS = "algorithm.policy_loss_fn_args"
_ARGS = "algorithm.advantage_fn_args"
_NAMES = {ours: theirs for theirs, ours in ADVANTAGES.items()}


def kind_of(algorithm: RolloutAlgorithm) -> str:
    """The `algorithm_type` that comes nearest; raises ConfigError where none has such advantages."""
    if isinstance(algorithm, Mix):
        return "mix"
    if algorithm.type not in _NAMES:
        raise ConfigError(
            f"algorithm.type {algorithm.type} is none of {', '.join(_NAMES)}, mix, sft and dpo."
        )
    name = _NAMES[algorithm.type]
    return name if name in PRESETS else "grpo"


def write_algorithm(run: Run) -> Mapping[str, Any]:
    """The type, and `advantage_fn` where the advantages are those of no type."""
    section = run.algorithm
    if isinstance(section, Dpo):
        return {
            "algorithm.algorithm_type": "dpo",
            f"{_LOSS_ARGS}.beta": section.beta,
            f"{_LOSS_ARGS}.label_smoothing": section.label_smoothing,
        }
    if isinstance(section, Sft):
        return {"algorithm.algorithm_type": "sft"}
    kind = kind_of(section)
    advantage = PRESETS[kind].advantage if isinstance(section, Mix) else _NAMES[section.type]
    values: dict[str, Any] = {
        "algorithm.algorithm_type": kind,
        "algorithm.repeat_times": section.rollouts_per_task,
        "algorithm.advantage_fn": None if advantage == PRESETS[kind].advantage else advantage,
    }
    for field, key in (("std_epsilon", "epsilon"), ("gamma", "gamma"), ("lam", "lam")):
        if hasattr(section, field):
            values[f"{_ARGS}.{key}"] = getattr(section, field)
    if isinstance(section, Mix):
        values[f"{_LOSS_ARGS}.mu"] = section.mu
    if isinstance(section, Opmd):
        by_mean = isinstance(section.baseline, MeanBaseline)
        values[f"{_ARGS}.opmd_baseline"] = "mean" if by_mean else "logavgexp"
        if isinstance(section.baseline, LogAvgExpBaseline):
            values[f"{_ARGS}.tau"] = section.baseline.tau
    return values


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """The function where it is not the type's own, its bounds, and how tokens are averaged."""
    if isinstance(run.algorithm, Sft | Dpo):
        return {}
    kind, loss = kind_of(run.algorithm), run.algorithm.policy_loss
    values: dict[str, Any] = {f"{_LOSS_ARGS}.loss_agg_mode": run.algorithm.aggregation}
    match loss:
        case OpmdLoss():
            name = "opmd"
            values[f"{_LOSS_ARGS}.tau"] = loss.tau
        case GspoLoss() | ClippedLoss():
            name = "gspo" if isinstance(loss, GspoLoss) else "ppo"
            both = loss.clip_low == loss.clip_high and name == "ppo"
            bounds = {"": loss.clip_low} if both else {"_low": loss.clip_low, "_high": loss.clip_high}
            values |= {f"{_LOSS_ARGS}.clip_range{side}": bound for side, bound in bounds.items()}
        case _:
            name = "ppo"
    if isinstance(loss, ClippedLoss):
        values[f"{_LOSS_ARGS}.clip_ratio_c"] = loss.dual_clip
    own = PRESETS[kind].loss
    if own != "mix":
        values["algorithm.policy_loss_fn"] = None if name == own else name
    if name != "gspo" and run.algorithm.aggregation == "token-mean":
        values[f"{_LOSS_ARGS}.loss_agg_mode"] = None
    return values


def write_kl(run: Run) -> Mapping[str, Any]:
    """`none` is said where there is no term in the loss: left out, most types have one."""
    values: dict[str, Any] = {}
    if isinstance(run.algorithm, Sft | Dpo):
        return values
    for term, key in ((run.algorithm.kl_loss, "kl_loss_fn"), (run.algorithm.kl_reward, "kl_penalty_fn")):
        if term is not None:
            values |= {f"algorithm.{key}": term.estimator, f"algorithm.{key}_args.kl_coef": term.coef}
        elif key == "kl_loss_fn":
            values[f"algorithm.{key}"] = "none"
    return values


def write_entropy(run: Run) -> Mapping[str, Any]:
    """The coefficient, under the type's own function."""
    if isinstance(run.algorithm, Sft | Dpo):
        return {}
    return {"algorithm.entropy_loss_fn_args.entropy_coef": run.algorithm.entropy_coef}
