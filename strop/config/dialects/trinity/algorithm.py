"""Trinity's `algorithm`: what is left out follows from `algorithm_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    TEXT,
    WHOLE,
    Row,
    beyond_the_page,
    mapped,
    one_of,
    or_null,
    refused,
    unless,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.schema import Run
from strop.config.schema.algorithm import (
    ClippedLoss,
    Dpo,
    Grpo,
    LogAvgExpBaseline,
    MeanBaseline,
    Opmd,
    OpmdLoss,
    PolicyLoss,
    ReinforcePlusPlus,
    Sft,
)
from strop.errors import ConfigError

_KL = {"none": None, "k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
_ADVANTAGES = {
    "grpo": "grpo",
    "opmd": "opmd",
    "rloo": "rloo",
    "reinforceplusplus": "reinforce_plus_plus",
    "remax": "remax",
}
_OFFLINE = ("sft", "dpo")


@dataclass(frozen=True, slots=True)
class Preset:
    """What an `algorithm_type` stands for where nothing else is said."""

    repeat: int
    advantage: str
    loss: str
    kl_loss: str = "k2"
    entropy: str = "default"
    sample: str = "default"


PRESETS = {
    "ppo": Preset(1, "ppo", "ppo"),
    "grpo": Preset(2, "grpo", "ppo"),
    "opmd": Preset(2, "opmd", "opmd"),
    "dpo": Preset(2, "none", "dpo"),
    "sft": Preset(1, "none", "sft", kl_loss="none", entropy="none"),
    "mix": Preset(8, "grpo", "mix", entropy="mix", sample="mix"),
}

_is_opmd = unless("algorithm.algorithm_type", "opmd")


def preset(theirs: Theirs) -> Preset:
    """Of the written type."""
    return PRESETS[theirs["algorithm.algorithm_type"]]


def repeat_times(theirs: Theirs) -> int:
    """Rollouts of a task."""
    count = theirs["algorithm.repeat_times"]
    return preset(theirs).repeat if count is None else count


def is_offline(theirs: Theirs) -> bool:
    """Whether it learns from given answers."""
    return theirs["algorithm.algorithm_type"] in _OFFLINE


def _said(theirs: Theirs, key: str, default: str) -> str:
    value = theirs[f"algorithm.{key}"]
    return default if value is None else value


def write_algorithm(run: Run) -> Mapping[str, Any]:
    """The type by the policy loss, `advantage_fn` where the advantages are not that type's own."""
    section = run.algorithm
    if isinstance(section, Dpo):
        return {"algorithm.algorithm_type": "dpo", "algorithm.policy_loss_fn_args.beta": section.beta}
    if isinstance(section, Sft):
        return {"algorithm.algorithm_type": "sft"}
    names = {ours: theirs for theirs, ours in _ADVANTAGES.items()}
    if section.type not in names:
        raise ConfigError(f"algorithm.type {section.type} is none of {', '.join(names)}, sft and dpo.")
    advantage, loss = names[section.type], section.policy_loss
    kind = "opmd" if isinstance(loss, OpmdLoss) else "grpo"
    args = "algorithm.advantage_fn_args"
    values: dict[str, Any] = {
        "algorithm.algorithm_type": kind,
        "algorithm.repeat_times": section.rollouts_per_task,
        "algorithm.advantage_fn": None if advantage == PRESETS[kind].advantage else advantage,
        **_write_loss(loss),
    }
    if isinstance(section, Grpo):
        values[f"{args}.epsilon"] = section.std_epsilon
    if isinstance(section, ReinforcePlusPlus):
        values[f"{args}.gamma"] = section.gamma
    if isinstance(section, Opmd):
        by_mean = isinstance(section.baseline, MeanBaseline)
        values[f"{args}.opmd_baseline"] = "mean" if by_mean else "logavgexp"
        if isinstance(section.baseline, LogAvgExpBaseline):
            values[f"{args}.tau"] = section.baseline.tau
    return values


def _write_loss(loss: PolicyLoss) -> Mapping[str, Any]:
    args = "algorithm.policy_loss_fn_args"
    if isinstance(loss, OpmdLoss):
        return {f"{args}.tau": loss.tau}
    if not isinstance(loss, ClippedLoss):
        return {}
    if loss.clip_low == loss.clip_high:
        return {f"{args}.clip_range": loss.clip_low}
    return {f"{args}.clip_range_low": loss.clip_low, f"{args}.clip_range_high": loss.clip_high}


@written_by(write_algorithm)
def algorithm(theirs: Theirs) -> Mapping[str, Any]:
    """The type, or under another `advantage_fn` the algorithm whose advantages those are."""
    kind, said = theirs["algorithm.algorithm_type"], preset(theirs)
    advantage = _said(theirs, "advantage_fn", said.advantage)
    if kind == "dpo":
        return {"algorithm.type": "dpo", "algorithm.beta": theirs["algorithm.policy_loss_fn_args.beta"]}
    if kind == "sft":
        return {"algorithm.type": "sft"}
    if kind in ("ppo", "mix") or advantage not in _ADVANTAGES:
        key = "advantage_fn" if theirs["algorithm.advantage_fn"] is not None else "algorithm_type"
        why = "wants a critic" if advantage == "ppo" else f"is {kind}"
        raise theirs.fault(
            f"algorithm.{key}",
            f"algorithm.{key} {why}, which is not read from Trinity's files yet; write algorithm_type grpo "
            "or opmd (and no advantage_fn), or use a run file.",
        )
    settings: dict[str, Any] = {
        "algorithm.type": _ADVANTAGES[advantage],
        "algorithm.rollouts_per_task": repeat_times(theirs),
        **_loss(theirs, said),
    }
    if advantage == "grpo":
        settings["algorithm.std_epsilon"] = theirs["algorithm.advantage_fn_args.epsilon"]
    if advantage == "opmd":
        settings["algorithm.baseline"] = _baseline(theirs)
    if advantage == "reinforceplusplus":
        settings["algorithm.gamma"] = theirs["algorithm.advantage_fn_args.gamma"]
    return settings


def _baseline(theirs: Theirs) -> dict[str, Any]:
    if theirs["algorithm.advantage_fn_args.opmd_baseline"] == "mean":
        return {"type": "mean"}
    return {"type": "log_avg_exp", "tau": theirs["algorithm.advantage_fn_args.tau"]}


def _loss(theirs: Theirs, said: Preset) -> dict[str, Any]:
    args = "algorithm.policy_loss_fn_args"
    if said.loss == "opmd":
        return {"algorithm.policy_loss.type": "opmd", "algorithm.policy_loss.tau": theirs[f"{args}.tau"]}
    both = theirs[f"{args}.clip_range"]
    low, high = theirs[f"{args}.clip_range_low"], theirs[f"{args}.clip_range_high"]
    return {
        "algorithm.policy_loss.type": "clip",
        "algorithm.policy_loss.clip_low": both if low is None else low,
        "algorithm.policy_loss.clip_high": both if high is None else high,
        "algorithm.policy_loss.dual_clip": None,
    }


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


@written_by(write_kl)
def kl(theirs: Theirs) -> Mapping[str, Any]:
    """In the loss by default; in the reward where `kl_penalty_fn` says so."""
    if is_offline(theirs):
        return {}
    settings = {}
    for place, key, default in (
        ("kl_loss", "kl_loss_fn", preset(theirs).kl_loss),
        ("kl_reward", "kl_penalty_fn", "none"),
    ):
        estimator = _KL[_said(theirs, key, default)]
        if estimator is not None:
            settings[f"algorithm.{place}.estimator"] = estimator
            settings[f"algorithm.{place}.coef"] = theirs[f"algorithm.{key}_args.kl_coef"]
    return settings


def write_entropy(run: Run) -> Mapping[str, Any]:
    """The coefficient, under the type's own function."""
    if isinstance(run.algorithm, Sft | Dpo):
        return {}
    return {"algorithm.entropy_loss_fn_args.entropy_coef": run.algorithm.entropy_coef}


@written_by(write_entropy)
def entropy(theirs: Theirs) -> Mapping[str, Any]:
    """`none` has no term, whatever the coefficient."""
    if is_offline(theirs) or _said(theirs, "entropy_loss_fn", preset(theirs).entropy) == "none":
        return {}
    return {"algorithm.entropy_coef": theirs["algorithm.entropy_loss_fn_args.entropy_coef"]}


def _of_preset(field: str, note: str) -> Row:
    def can(theirs: Theirs, value: Any) -> bool:
        return value is None or value == getattr(preset(theirs), field)

    name = {"sample": "sample_strategy", "loss": "policy_loss_fn"}[field]
    return refused(f"algorithm.{name}", None, note, can=can, kind=or_null(TEXT))


ROWS = (
    mapped(
        "algorithm.algorithm_type",
        "ppo",
        "algorithm.type",
        "algorithm.policy_loss.type",
        read=algorithm,
        kind=one_of(*PRESETS),
        note="the default, ppo, wants a critic, and mix an expert; neither is read from Trinity's files yet",
    ),
    mapped(
        "algorithm.repeat_times",
        None,
        "algorithm.rollouts_per_task",
        read=algorithm,
        kind=or_null(WHOLE),
        note="by algorithm_type: grpo, opmd and dpo 2, mix 8, else 1",
    ),
    _of_preset("sample", "it follows from algorithm_type; leave it out"),
    mapped(
        "algorithm.advantage_fn",
        None,
        "algorithm.type",
        read=algorithm,
        kind=or_null(one_of("ppo", *_ADVANTAGES)),
        note="by algorithm_type; another one is the algorithm whose advantages those are",
    ),
    mapped(
        "algorithm.kl_penalty_fn",
        None,
        "algorithm.kl_reward",
        "algorithm.kl_reward.estimator",
        read=kl,
        kind=or_null(one_of(*_KL)),
        note="none where it is left out",
    ),
    mapped(
        "algorithm.kl_loss_fn",
        None,
        "algorithm.kl_loss",
        "algorithm.kl_loss.estimator",
        read=kl,
        kind=or_null(one_of(*_KL)),
        note="k2 where it is left out, but for sft",
    ),
    mapped(
        "algorithm.entropy_loss_fn",
        None,
        "algorithm.entropy_coef",
        read=entropy,
        kind=or_null(one_of("default", "mix", "none")),
    ),
    *beyond_the_page(
        _of_preset("loss", "it follows from algorithm_type; leave it out"),
        mapped(
            "algorithm.policy_loss_fn_args.clip_range",
            0.2,
            "algorithm.policy_loss.clip_low",
            "algorithm.policy_loss.clip_high",
            read=algorithm,
        ),
        *(
            mapped(
                f"algorithm.policy_loss_fn_args.clip_range_{side}",
                None,
                f"algorithm.policy_loss.clip_{side}",
                read=algorithm,
                kind=or_null(NUMBER),
                note="clip_range where it is left out",
            )
            for side in ("low", "high")
        ),
        mapped(
            "algorithm.policy_loss_fn_args.tau",
            1.0,
            "algorithm.policy_loss.tau",
            read=algorithm,
            off=_is_opmd,
        ),
        mapped(
            "algorithm.policy_loss_fn_args.beta",
            0.1,
            "algorithm.beta",
            read=algorithm,
            off=unless("algorithm.algorithm_type", "dpo"),
        ),
        mapped("algorithm.advantage_fn_args.epsilon", 1e-6, "algorithm.std_epsilon", read=algorithm),
        mapped("algorithm.advantage_fn_args.gamma", 1.0, "algorithm.gamma", read=algorithm),
        mapped(
            "algorithm.advantage_fn_args.opmd_baseline",
            "mean",
            "algorithm.baseline",
            read=algorithm,
            kind=one_of("mean", "logavgexp"),
            off=_is_opmd,
        ),
        mapped(
            "algorithm.advantage_fn_args.tau", 1.0, "algorithm.baseline.tau", read=algorithm, off=_is_opmd
        ),
        mapped("algorithm.kl_penalty_fn_args.kl_coef", 0.001, "algorithm.kl_reward.coef", read=kl),
        mapped("algorithm.kl_loss_fn_args.kl_coef", 0.001, "algorithm.kl_loss.coef", read=kl),
        mapped("algorithm.entropy_loss_fn_args.entropy_coef", 0.0, "algorithm.entropy_coef", read=entropy),
    ),
)
