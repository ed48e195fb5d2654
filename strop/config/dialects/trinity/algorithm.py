"""Trinity's `algorithm`: what is left out follows from `algorithm_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    UNSET,
    WHOLE,
    Row,
    beyond_the_page,
    mapped,
    never,
    one_of,
    or_null,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import auxiliary, losses, presets
from strop.config.dialects.trinity.write_algorithm import write_algorithm, write_entropy, write_kl

_KL = {"none": None, "k1": "k1", "abs": "abs", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}
_ARGS = "algorithm.advantage_fn_args"
_MIXED = "algorithm.policy_loss_fn_args.mu"


@written_by(write_algorithm)
def algorithm(theirs: Theirs) -> Mapping[str, Any]:
    """The type, or under another `advantage_fn` the algorithm whose advantages those are."""
    kind, advantage = presets.kind(theirs), presets.advantage(theirs)
    if kind == "dpo":
        args = "algorithm.policy_loss_fn_args"
        return {
            "algorithm.type": "dpo",
            "algorithm.beta": theirs[f"{args}.beta"],
            "algorithm.label_smoothing": theirs[f"{args}.label_smoothing"],
        }
    if kind == "sft":
        return {"algorithm.type": "sft"}
    settings: dict[str, Any] = {"algorithm.rollouts_per_task": presets.repeat_times(theirs)}
    if kind == "mix":
        return {**settings, **_mix(theirs, advantage)}
    settings["algorithm.type"] = presets.ADVANTAGES[advantage]
    match advantage:
        case "ppo":
            settings["algorithm.gamma"] = theirs[f"{_ARGS}.gamma"]
            settings["algorithm.lam"] = theirs[f"{_ARGS}.lam"]
        case "grpo":
            settings["algorithm.std_epsilon"] = theirs[f"{_ARGS}.epsilon"]
        case "opmd":
            settings["algorithm.baseline"] = _baseline(theirs)
        case "reinforceplusplus":
            settings["algorithm.gamma"] = theirs[f"{_ARGS}.gamma"]
    return settings


def _mix(theirs: Theirs, advantage: str) -> dict[str, Any]:
    if advantage != "grpo":
        raise theirs.fault(
            "algorithm.advantage_fn",
            f"algorithm.advantage_fn {advantage} does not go with algorithm_type mix, whose rollouts are "
            "learned as GRPO does; write advantage_fn: grpo, or leave it out.",
        )
    return {
        "algorithm.type": "mix",
        "algorithm.mu": theirs[_MIXED],
        "algorithm.std_epsilon": theirs[f"{_ARGS}.epsilon"],
    }


def _baseline(theirs: Theirs) -> dict[str, Any]:
    if theirs[f"{_ARGS}.opmd_baseline"] == "mean":
        return {"type": "mean"}
    return {"type": "log_avg_exp", "tau": theirs[f"{_ARGS}.tau"]}


@written_by(write_kl)
def kl(theirs: Theirs) -> Mapping[str, Any]:
    """In the loss by default; in the reward where `kl_penalty_fn` says so."""
    if presets.is_offline(theirs):
        return {}
    settings = {}
    for place, key, default in (
        ("kl_loss", "kl_loss_fn", presets.preset(theirs).kl_loss),
        ("kl_reward", "kl_penalty_fn", "none"),
    ):
        estimator = _KL[presets.said(theirs, key, default)]
        if estimator is not None:
            settings[f"algorithm.{place}.estimator"] = estimator
            settings[f"algorithm.{place}.coef"] = theirs[f"algorithm.{key}_args.kl_coef"]
    return settings


@written_by(write_entropy)
def entropy(theirs: Theirs) -> Mapping[str, Any]:
    """`none` has no term, whatever the coefficient; `mix` is that of the rollouts alone."""
    name = presets.said(theirs, "entropy_loss_fn", presets.preset(theirs).entropy)
    coef = theirs["algorithm.entropy_loss_fn_args.entropy_coef"]
    if presets.is_offline(theirs) or name == "none":
        return {}
    if presets.kind(theirs) == "mix" and name == "default" and coef != 0:
        raise theirs.fault(
            "algorithm.entropy_loss_fn",
            "algorithm.entropy_loss_fn default would also take the entropy of the expert's answers, which "
            "the model did not draw; write entropy_loss_fn: mix.",
        )
    return {"algorithm.entropy_coef": coef}


def _held_by_itself(theirs: Theirs) -> str | None:
    return {
        "dpo": "algorithm_type is dpo, whose loss holds the policy to the reference by itself",
        "sft": "algorithm_type is sft, which samples nothing",
    }.get(presets.kind(theirs))


def _no_kl(key: str) -> Any:
    def off(theirs: Theirs) -> str | None:
        name = presets.said(theirs, key, presets.preset(theirs).kl_loss if key == "kl_loss_fn" else "none")
        return _held_by_itself(theirs) or (f"{key} is none" if name == "none" else None)

    return off


TYPE: tuple[Row, ...] = (
    mapped(
        "algorithm.algorithm_type",
        "ppo",
        "algorithm.type",
        read=algorithm,
        kind=one_of(*presets.PRESETS),
    ),
    mapped(
        "algorithm.repeat_times",
        None,
        "algorithm.rollouts_per_task",
        read=algorithm,
        kind=or_null(WHOLE),
        off=presets.only_sampled,
        note="by algorithm_type: grpo and opmd 2, mix 8, ppo 1",
    ),
)
FUNCTIONS: tuple[Row, ...] = (
    auxiliary.STRATEGY,
    mapped(
        "algorithm.advantage_fn",
        None,
        "algorithm.type",
        read=algorithm,
        kind=or_null(one_of(*presets.ADVANTAGES)),
        off=presets.only_sampled,
        note="by algorithm_type; another one is the algorithm whose advantages those are: ppo's has a critic",
    ),
    mapped(
        "algorithm.kl_penalty_fn",
        None,
        "algorithm.kl_reward",
        "algorithm.kl_reward.estimator",
        read=kl,
        kind=or_null(one_of(*_KL)),
        off=_held_by_itself,
        note="none where it is left out",
    ),
    mapped(
        "algorithm.kl_loss_fn",
        None,
        "algorithm.kl_loss",
        "algorithm.kl_loss.estimator",
        read=kl,
        kind=or_null(one_of(*_KL)),
        off=_held_by_itself,
        note="k2 where it is left out, but for sft",
    ),
    mapped(
        "algorithm.entropy_loss_fn",
        None,
        "algorithm.entropy_coef",
        read=entropy,
        kind=or_null(one_of("default", "mix", "none")),
        off=presets.only_sampled,
    ),
)
ARGUMENTS: tuple[Row, ...] = beyond_the_page(
    mapped(_MIXED, 0.1, "algorithm.mu", read=algorithm, off=presets.only_types("mix")),
    mapped(
        "algorithm.policy_loss_fn_args.beta",
        0.1,
        "algorithm.beta",
        read=algorithm,
        off=presets.only_types("dpo"),
    ),
    mapped(
        "algorithm.policy_loss_fn_args.label_smoothing",
        0.0,
        "algorithm.label_smoothing",
        read=algorithm,
        off=presets.only_types("dpo"),
    ),
    mapped(
        f"{_ARGS}.epsilon",
        1e-6,
        "algorithm.std_epsilon",
        read=algorithm,
        off=presets.only_advantages("grpo"),
    ),
    mapped(
        f"{_ARGS}.gamma",
        1.0,
        "algorithm.gamma",
        read=algorithm,
        off=presets.only_advantages("ppo", "reinforceplusplus"),
    ),
    mapped(f"{_ARGS}.lam", 1.0, "algorithm.lam", read=algorithm, off=presets.only_advantages("ppo")),
    mapped(
        f"{_ARGS}.opmd_baseline",
        "mean",
        "algorithm.baseline",
        read=algorithm,
        kind=one_of("mean", "logavgexp"),
        off=presets.only_advantages("opmd"),
    ),
    mapped(
        f"{_ARGS}.tau",
        1.0,
        "algorithm.baseline.tau",
        read=algorithm,
        off=presets.only_advantages("opmd"),
    ),
    refused(f"{_ARGS}.*", UNSET, "this argument of the advantages is not known; leave it out", can=never),
    mapped(
        "algorithm.kl_penalty_fn_args.kl_coef",
        0.001,
        "algorithm.kl_reward.coef",
        read=kl,
        off=_no_kl("kl_penalty_fn"),
    ),
    mapped(
        "algorithm.kl_loss_fn_args.kl_coef",
        0.001,
        "algorithm.kl_loss.coef",
        read=kl,
        off=_no_kl("kl_loss_fn"),
    ),
    mapped(
        "algorithm.entropy_loss_fn_args.entropy_coef",
        0.0,
        "algorithm.entropy_coef",
        read=entropy,
        off=presets.only_sampled,
    ),
)
ROWS = (*TYPE, *FUNCTIONS, *ARGUMENTS, *losses.ROWS)
