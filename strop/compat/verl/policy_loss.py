"""Ledger rows of verl's policy losses: the loss, its bounds and parameters, and the loss aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    NUMBER,
    ForeignValues,
    InactiveCheck,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    written_by,
)
from strop.compat.verl import switches
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig, OnlineDpoConfig

_ACTOR = "actor_rollout_ref.actor"
_MODE = f"{_ACTOR}.policy_loss.loss_mode"
_FIELD = "algorithm.policy_loss"
_LOSSES = {
    "vanilla": "clip",
    "gspo": "gspo",
    "gpg": "gpg",
    "cispo": "cispo",
    "sapo": "sapo",
    "geo_mean": "gmpo",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
    "dro": "dro",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "gvpo": "gvpo",
}
"""Strop's name of each loss mode."""
_OF_RECIPES = {"sppo": "self_play", "spin": "gpg"}
"""Strop's name of the losses that a recipe's program has instead of a loss mode."""
_NAMES = _LOSSES | _OF_RECIPES
_LACKING = ("bypass_mode",)
"""verl's losses that Strop does not have."""
_CLIP = ("clip_low", "clip_high")
_DIVERGENCE = ("divergence_low", "divergence_high")
_BOUNDS = {
    "vanilla": _CLIP,
    "gspo": _CLIP,
    "cispo": _CLIP,
    "geo_mean": _CLIP,
    "dppo_tv": _DIVERGENCE,
    "dppo_kl": _DIVERGENCE,
    "clip_cov": _CLIP,
}
"""Fields of the loss modes that read the clip_ratio keys."""
_PARAMETERS = {
    "vanilla": {"clip_ratio_c": "dual_clip"},
    "dppo_tv": {"clip_ratio_c": "ratio_cap"},
    "dppo_kl": {"clip_ratio_c": "ratio_cap"},
    "sapo": {"tau_pos": "tau_pos", "tau_neg": "tau_neg"},
    "gvpo": {"gvpo_beta": "beta"},
    "sppo": {"sppo_eta": "eta"},
    "dro": {"policy_loss.dro_beta": "beta"},
    "clip_cov": {
        "policy_loss.clip_cov_ratio": "token_fraction",
        "policy_loss.clip_cov_lb": "covariance_low",
        "policy_loss.clip_cov_ub": "covariance_high",
    },
    "kl_cov": {"policy_loss.kl_cov_ratio": "token_fraction", "policy_loss.ppo_kl_coef": "kl_coef"},
}
"""Further keys of `actor_rollout_ref.actor` that a loss mode reads, each with its field."""
_AGGREGATION = {
    "sapo": "seq-mean-token-mean",
    "geo_mean": "seq-mean-token-mean",
    "gvpo": "seq-mean-token-sum",
    "sppo": "seq-mean-token-sum",
    "spin": "seq-mean-token-sum",
}
"""Aggregation of the loss modes that are always averaged over sequences, whatever `loss_agg_mode` is."""


def _mode(foreign: ForeignValues) -> str:
    """The loss mode; verl's bypass mode has losses of its own, the clipped one and the plain gradient."""
    if switches.is_sppo(foreign):
        return "sppo"
    if switches.is_spin(foreign):
        return "spin"
    if switches.is_bypass(foreign):
        return "gpg" if switches.is_reinforce(foreign) else "vanilla"
    return str(foreign[_MODE]).replace("-", "_")


def _except_with(*modes: str) -> InactiveCheck:
    """Check that finds a key inactive except with these loss modes."""

    def inactive(foreign: ForeignValues) -> str | None:
        mode = _mode(foreign)
        return None if mode in modes else f"{_MODE} is {mode}"

    return inactive


def _read_by(key: str) -> InactiveCheck:
    """Check that finds a key inactive except with the loss modes that read it."""
    read = _except_with(*(mode for mode in _NAMES if key in _PARAMETERS.get(mode, {})))
    return any_inactive(switches.distillation_alone, read)


bounds_inactive = any_inactive(switches.distillation_alone, _except_with(*_BOUNDS))
"""Check that finds the clip_ratio keys inactive with a loss that has no bounds."""


def _aggregation_inactive(foreign: ForeignValues) -> str | None:
    mode = _mode(foreign)
    if switches.distillation_alone(foreign):
        return None
    return f"verl always averages {mode} over sequences" if mode in _AGGREGATION else None


def write_policy_loss(run: Run) -> Mapping[str, Any]:
    """Write the policy loss. Equal bounds are written as `clip_ratio` too: verl 0.3.1's documentation has it alone, and
    verl's code prefers the keys of the two sides, whose defaults are 0.2."""
    loss = getattr(run.algorithm, "policy_loss", None)
    if loss is None or isinstance(run.algorithm, DistillationOnlyConfig):
        return {_MODE: None}
    mode = next((mode for mode, name in _NAMES.items() if name == loss.type), None)
    of_recipe = mode in _OF_RECIPES or isinstance(run.algorithm, OnlineDpoConfig)
    values: dict[str, Any] = {_MODE: None if of_recipe else mode}
    for key, field in _PARAMETERS.get(mode or "", {}).items():
        values[f"{_ACTOR}.{key}"] = getattr(loss, field)
    if mode in _BOUNDS:
        low, high = (getattr(loss, field) for field in _BOUNDS[mode])
        if low == high:
            values[f"{_ACTOR}.clip_ratio"] = low
        values[f"{_ACTOR}.clip_ratio_low"] = 1.0 if low is None else low
        values[f"{_ACTOR}.clip_ratio_high"] = high
    return values


@written_by(write_policy_loss)
def policy_loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the policy loss; `clip_ratio` is the bound on each side that has no key of its own."""
    mode = _mode(foreign)
    if switches.distillation_alone(foreign):
        return {}
    if mode not in _NAMES:
        raise foreign.error_for(
            _MODE,
            f"{_MODE} is {mode}, a loss that Strop does not have; it has "
            f"{', '.join(_LOSSES)}. Your own loss runs with `algorithm.type: custom` in a run file.",
        )
    settings: dict[str, Any] = {f"{_FIELD}.type": _NAMES[mode]}
    if mode in _AGGREGATION:
        settings["algorithm.aggregation"] = _AGGREGATION[mode]
    for key, field in _PARAMETERS.get(mode, {}).items():
        settings[f"{_FIELD}.{field}"] = foreign[f"{_ACTOR}.{key}"]
    if mode in _BOUNDS:
        both = foreign[f"{_ACTOR}.clip_ratio"]
        for side, field in zip(("low", "high"), _BOUNDS[mode], strict=True):
            bound = foreign[f"{_ACTOR}.clip_ratio_{side}"]
            settings[f"{_FIELD}.{field}"] = both if bound is None else bound
    if mode == "cispo" and settings[f"{_FIELD}.clip_low"] >= 1:
        settings[f"{_FIELD}.clip_low"] = None
    if mode == "dro" and settings[f"{_FIELD}.beta"] is None:
        raise foreign.error_for(
            _MODE, f"{_MODE} is dro, which needs a positive {_ACTOR}.policy_loss.dro_beta; write one."
        )
    return settings


def clip_ratio_alone(foreign: ForeignValues) -> str | None:
    """In verl 0.3.1's documentation, `clip_ratio` bounds both sides; in the code, the keys of the sides come first."""
    key = f"{_ACTOR}.clip_ratio"
    sides = [side for side in ("low", "high") if not foreign.is_set(f"{key}_{side}")]
    if not sides or foreign[key] == 0.2:
        return None
    names = " and ".join(f"clip_ratio_{side}" for side in sides)
    return (
        f"clip_ratio is used, as in verl 0.3.1's documentation; verl's code uses {names}, 0.2 where not set: write "
        f"{names}, too"
    )


_row = partial(mapped, read=policy_loss)
_LISTED = (
    _row(
        f"{_ACTOR}.clip_ratio",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        "algorithm.policy_loss.divergence_low",
        "algorithm.policy_loss.divergence_high",
        inactive=bounds_inactive,
        warn=clip_ratio_alone,
        note="the bound on both sides, as in verl 0.3.1's documentation; in verl's code clip_ratio_low and "
        "clip_ratio_high, 0.2 where not set, take precedence; Strop uses clip_ratio where they are not set",
    ),
)
_UNLISTED = not_on_page(
    *(
        _row(
            f"{_ACTOR}.clip_ratio_{side}",
            None,
            f"{_FIELD}.clip_{side}",
            f"{_FIELD}.divergence_{side}",
            inactive=bounds_inactive,
            value_type=nullable(NUMBER),
            note="null means clip_ratio",
        )
        for side in ("low", "high")
    ),
    _row(
        f"{_ACTOR}.clip_ratio_c",
        3.0,
        f"{_FIELD}.dual_clip",
        f"{_FIELD}.ratio_cap",
        inactive=_read_by("clip_ratio_c"),
    ),
    mapped(
        f"{_ACTOR}.loss_agg_mode",
        "token-mean",
        "algorithm.aggregation",
        value_type=one_of(
            "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
        ),
        inactive=_aggregation_inactive,
        note="sapo, geo_mean and the recipe's gvpo are always averaged over sequences; so was gspo up to verl 0.9.0",
    ),
    *(
        _row(
            f"{_ACTOR}.{key}",
            default,
            f"{_FIELD}.{field}",
            value_type=nullable(NUMBER) if default is None else None,
            inactive=_read_by(key),
        )
        for key, default, field in (
            ("tau_pos", 1.0, "tau_pos"),
            ("tau_neg", 1.05, "tau_neg"),
            ("gvpo_beta", 0.1, "beta"),
            ("sppo_eta", 1.0, "eta"),
            ("policy_loss.dro_beta", None, "beta"),
            ("policy_loss.clip_cov_ratio", 0.0002, "token_fraction"),
            ("policy_loss.clip_cov_lb", 1.0, "covariance_low"),
            ("policy_loss.clip_cov_ub", 5.0, "covariance_high"),
            ("policy_loss.kl_cov_ratio", 0.0002, "token_fraction"),
            ("policy_loss.ppo_kl_coef", 0.1, "kl_coef"),
        )
    ),
    _row(
        _MODE,
        "vanilla",
        f"{_FIELD}.type",
        value_type=one_of(*_LOSSES, *_LACKING, "clip-cov", "kl-cov"),
        inactive=any_inactive(switches.distillation_alone, switches.recipe_alone),
        note="the clip_ratio keys also bound the ratio of gspo and cispo, the log-ratio of geo_mean, and the "
        "divergence of dppo_tv and dppo_kl",
    ),
    *(
        no_effect(f"{_ACTOR}.policy_loss.{name}", default, f"verl reads {_ACTOR}.{name}", value_type=ANY)
        for name, default in (("tau_pos", 1.0), ("tau_neg", 1.05))
    ),
)
ROWS = (*_LISTED, *_UNLISTED)
