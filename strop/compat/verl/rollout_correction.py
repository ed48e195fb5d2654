"""Ledger rows of verl's corrections for the difference between sampler and trainer, of all its versions.

`actor.tis_imp_ratio_cap`, then `algorithm.rollout_is*`, then `algorithm.rollout_correction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    NUMBER,
    UNSET,
    ForeignValues,
    any_inactive,
    mapped,
    not_on_page,
    nullable,
    one_of,
    unless,
    written_by,
)
from strop.compat.verl import switches
from strop.config.schema import Run
from strop.config.schema.policy_loss import GpgLossConfig, RejectionRuleConfig

_OVER = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}
_NAMES = {over: name for name, over in _OVER.items()}
_MODES = tuple(
    f"{unit}_{estimator}"
    for unit in _OVER
    for estimator in ("k1", "k2", "k3")
    if (unit, estimator) != ("seq_max", "k1")
)
"""verl's modes since 0.7.1."""
_OLDER = {"token": "token", "sequence": "sum", "geometric": "mean"}
"""verl's modes until 0.7, all of k1, with what each reduces over."""


def _read_rules(modes: str, threshold: Any, lower: Any) -> list[dict[str, Any]]:
    """The rules of comma-separated modes. Raises ValueError for a mode or threshold that verl refuses.

    verl's k1 is -log(trainer / sampler), so that the thresholds of its later modes bound the inverse of the ratio
    that Strop's rules bound; those of its older modes bound the ratio itself.
    """
    names = list(dict.fromkeys(name.strip() for name in str(modes).split(",") if name.strip()))
    unknown = [name for name in names if name not in _MODES and name not in _OLDER]
    if unknown or not names:
        raise ValueError(
            f"has the mode {', '.join(unknown) or 'none'}; verl has {', '.join((*_MODES, *_OLDER))}"
        )
    if threshold is None:
        raise ValueError("needs rollout_rs_threshold")
    if names[0] in _OLDER:
        if len(names) > 1:
            raise ValueError(f"combines {names[0]}, a mode of verl until 0.7, with others; write one mode")
        high = _number(threshold)
        low = 1 / high if lower is None else _number(lower)
        return [{"estimator": "k1", "over": _OLDER[names[0]], "low": low, "high": high}]
    if lower is not None:
        raise ValueError("has rollout_rs_threshold_lower, which later modes write as '0.5_2.0'; remove it")
    bounds = [part.strip() for part in str(threshold).split(",") if part.strip()]
    if len(bounds) not in (1, len(names)):
        raise ValueError(f"has {len(names)} modes and {len(bounds)} thresholds; write one, or one for each")
    shared = bounds * len(names) if len(bounds) == 1 else bounds
    return [_rule(name, bound) for name, bound in zip(names, shared, strict=True)]


def _veto_rule(threshold: float) -> dict[str, Any]:
    """The rule that rejects a response with a token whose ratio is below the threshold."""
    return {"estimator": "k1", "over": "max", "low": threshold}


def _write_rules(rules: Sequence[RejectionRuleConfig]) -> dict[str, Any]:
    """`rollout_rs` and its thresholds, of the rules that verl can express; the last ones win over a veto's key."""
    values: dict[str, Any] = {}
    names, bounds = [], []
    for rule in rules:
        name = f"{_NAMES[rule.over]}_{rule.estimator}"
        if name == "seq_max_k1" and rule.high is None:
            values["rollout_token_veto_threshold"] = rule.low
        elif name in _MODES and rule.estimator != "k1":
            names.append(name)
            bounds.append(str(rule.high))
        elif name in _MODES and rule.low is not None and rule.high is not None:
            names.append(name)
            bounds.append(f"{_inverse(rule.high)}_{_inverse(rule.low)}")
    if names:
        values |= {"rollout_rs": ",".join(names), "rollout_rs_threshold": ",".join(bounds)}
    return values


def _read_bounds(threshold: Any) -> tuple[float | None, float]:
    """Lower and upper bound of `rollout_is_threshold`: a number, or `lower_upper`. Raises ValueError for others."""
    low, separator, high = str(threshold).partition("_")
    return (_number(low), _number(high)) if separator else (None, _number(threshold))


def _rule(name: str, bound: str) -> dict[str, Any]:
    unit, _, estimator = name.rpartition("_")
    low, separator, high = bound.partition("_")
    if estimator != "k1":
        if separator:
            raise ValueError(f"bounds {name} by {bound}; a divergence has a single upper bound")
        return {"estimator": estimator, "over": _OVER[unit], "high": _number(bound)}
    lowest = _number(low) if separator else 1 / _number(bound)
    highest = _number(high) if separator else _number(bound)
    return {"estimator": "k1", "over": _OVER[unit], "low": _inverse(highest), "high": _inverse(lowest)}


def _number(text: Any) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise ValueError(f"has the threshold {text}, which is not a number") from None
    if value <= 0:
        raise ValueError(f"has the threshold {text}; it must be above 0")
    return value


def _inverse(value: float) -> float:
    """1 / value, without the digits that rounding adds."""
    return float(f"{1 / value:.12g}")


_AT = "algorithm.rollout_correction"
_CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
_NULL = (None, "null", "None")
_INVERSE = "k1's bounds are those of the sampler's over the trainer's probability, as in verl's code"


def _recorded(foreign: ForeignValues) -> str | None:
    """Without the sampler's log-probs, verl corrects nothing."""
    key = "actor_rollout_ref.rollout.calculate_log_probs"
    return f"{key} is False" if foreign.is_set(key) and not foreign[key] else None


def _clips_ratio(foreign: ForeignValues) -> str | None:
    """verl does not apply the weights where the clipped ratio is already relative to the sampler."""
    clips = switches.is_bypass(foreign) and not switches.is_reinforce(foreign)
    return f"{_AT}.bypass_mode is True, and the clipped ratio is that to the sampler" if clips else None


def _rejects(foreign: ForeignValues) -> str | None:
    mode = foreign[f"{_AT}.rollout_rs"]
    return f"{_AT}.rollout_rs is null" if mode in _NULL else None


def _applies(foreign: ForeignValues) -> str | None:
    """verl 0.6.0 applies the weights where they are switched on and have a threshold."""
    if foreign["algorithm.rollout_is_threshold"] is None:
        return "algorithm.rollout_is_threshold is null"
    return None if foreign["algorithm.rollout_is"] else "algorithm.rollout_is is False"


_bypass = unless(f"{_AT}.bypass_mode", True)
_level = any_inactive(unless(f"{_AT}.rollout_is", "token", "sequence"), _clips_ratio, _recorded)
_rejection = any_inactive(_rejects, _recorded)
_older = any_inactive(_applies, _recorded)
_masks = any_inactive(_older, unless("algorithm.rollout_is_mode", "mask"))


def write_correction(run: Run) -> Mapping[str, Any]:
    """Write the keys of verl's latest version, and the veto's."""
    algorithm = run.algorithm
    bypass = getattr(algorithm, "old_policy", "trainer") == "sampler"
    reinforce = bypass and isinstance(getattr(algorithm, "policy_loss", None), GpgLossConfig)
    values: dict[str, Any] = {"bypass_mode": bypass, "loss_type": "reinforce" if reinforce else "ppo_clip"}
    correction = getattr(algorithm, "importance_correction", None)
    if correction is not None and (reinforce or not bypass) and correction.level != "geometric":
        low, high = correction.floor, correction.cap
        values["rollout_is"] = correction.level
        values["rollout_is_threshold"] = high if low is None else f"{low}_{high}"
        values["rollout_is_batch_normalize"] = correction.normalize
    values |= _write_rules(getattr(algorithm, "rejection", ()))
    return {f"{_AT}.{name}": value for name, value in values.items()}


@written_by(
    write_correction,
    off={
        **{f"{_AT}.{name}": UNSET for name in ("rollout_is", "rollout_rs", "rollout_token_veto_threshold")},
        f"{_AT}.bypass_mode": False,
        "algorithm.rollout_is": False,
        "actor_rollout_ref.actor.use_rollout_log_probs": False,
        _CAP: -1,
    },
)
def correction(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read importance weights, rejection and the old policy. Keys of two generations contradict each other."""
    generations = {
        f"{_AT}.rollout_is": _level(foreign) is None,
        "algorithm.rollout_is": _older(foreign) is None,
        _CAP: foreign[_CAP] > 0 and not _recorded(foreign),
    }
    active = [key for key, is_active in generations.items() if is_active]
    if len(active) > 1:
        raise foreign.error_for(
            active[1],
            f"{active[1]} and {active[0]} set the same weights in two versions of verl; write only {active[0]}.",
        )
    settings: dict[str, Any] = {}
    if generations[_CAP]:
        settings = {"importance_correction": {"level": "token", "cap": foreign[_CAP]}}
    elif generations["algorithm.rollout_is"]:
        settings = _older_weights(foreign)
    elif generations[f"{_AT}.rollout_is"]:
        settings = {"importance_correction": _weights(foreign)}
    rules = [*settings.pop("rejection", ()), *_rules(foreign)]
    if rules:
        settings["rejection"] = rules
    if switches.is_bypass(foreign) or foreign["actor_rollout_ref.actor.use_rollout_log_probs"]:
        settings["old_policy"] = "sampler"
    return {f"algorithm.{name}": value for name, value in settings.items()}


def _weights(foreign: ForeignValues) -> dict[str, Any]:
    key = f"{_AT}.rollout_is_threshold"
    try:
        floor, cap = _read_bounds(foreign[key])
    except ValueError as error:
        raise foreign.error_for(key, f"{key} {error}.") from None
    normalize = foreign[f"{_AT}.rollout_is_batch_normalize"]
    return {"level": foreign[f"{_AT}.rollout_is"], "cap": cap, "floor": floor, "normalize": normalize}


def _older_weights(foreign: ForeignValues) -> dict[str, Any]:
    """The weights of verl 0.6.0, and its veto."""
    at = "algorithm.rollout_is"
    cap, lower = foreign[f"{at}_threshold"], foreign[f"{at}_threshold_lower"]
    masked = foreign[f"{at}_mode"] == "mask"
    floor = (lower or 1 / cap) if masked else None
    veto = foreign[f"{at}_veto_threshold"]
    return {
        "importance_correction": {"level": foreign[f"{at}_level"], "cap": cap, "floor": floor},
        "rejection": [] if veto is None else [_veto_rule(veto)],
    }


def _rules(foreign: ForeignValues) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = []
    if not _rejection(foreign):
        threshold, lower = (foreign[f"{_AT}.rollout_rs_threshold{end}"] for end in ("", "_lower"))
        try:
            rules = _read_rules(foreign[f"{_AT}.rollout_rs"], threshold, lower)
        except ValueError as error:
            raise foreign.error_for(f"{_AT}.rollout_rs", f"{_AT}.rollout_rs {error}.") from None
    veto = foreign[f"{_AT}.rollout_token_veto_threshold"]
    return rules if veto in _NULL or _recorded(foreign) else [*rules, _veto_rule(veto)]


_WEIGHTS, _REJECTION = "algorithm.importance_correction", "algorithm.rejection"
_row = partial(mapped, read=correction)
ROWS = not_on_page(
    _row(
        f"{_AT}.rollout_is",
        None,
        f"{_WEIGHTS}.level",
        value_type=nullable(one_of("token", "sequence", "null", "None")),
        inactive=any_inactive(_clips_ratio, _recorded),
    ),
    _row(
        f"{_AT}.rollout_is_threshold",
        2.0,
        f"{_WEIGHTS}.cap",
        f"{_WEIGHTS}.floor",
        value_type=ANY,
        inactive=_level,
        note="a number, the cap; or 'lower_upper', outside of which weights are 0 (IcePop)",
    ),
    _row(
        f"{_AT}.rollout_is_batch_normalize",
        False,
        f"{_WEIGHTS}.normalize",
        inactive=_level,
        note="the mean is over the step; in bypass mode over the update, in verl over a micro-batch",
    ),
    _row(
        f"{_AT}.rollout_rs",
        None,
        _REJECTION,
        inactive=_recorded,
        note="modes, comma-separated; until 0.7 one of token, sequence, geometric",
    ),
    _row(
        f"{_AT}.rollout_rs_threshold",
        None,
        _REJECTION,
        inactive=_rejection,
        note=f"one threshold, or one for each mode; {_INVERSE}",
    ),
    _row(
        f"{_AT}.rollout_rs_threshold_lower",
        None,
        _REJECTION,
        value_type=nullable(NUMBER),
        inactive=_rejection,
        note="null means 1 / rollout_rs_threshold",
    ),
    _row(
        f"{_AT}.rollout_token_veto_threshold",
        None,
        _REJECTION,
        value_type=nullable(NUMBER),
        inactive=_recorded,
        note="rejects a response with a token whose ratio is below it",
    ),
    _row(
        f"{_AT}.bypass_mode",
        False,
        "algorithm.old_policy",
        warn=switches.ratio_notice,
        note="the sampler's log-probs are the old ones; only the losses of loss_type are then in use",
    ),
    _row(
        f"{_AT}.loss_type",
        "ppo_clip",
        "algorithm.policy_loss.type",
        value_type=one_of("ppo_clip", "reinforce"),
        inactive=_bypass,
    ),
    _row(
        f"{_AT}.use_policy_gradient",
        False,
        "algorithm.policy_loss.type",
        inactive=_bypass,
        note="loss_type=reinforce of later versions",
    ),
    _row("algorithm.rollout_is", False, _WEIGHTS, inactive=_recorded),
    _row(
        "algorithm.rollout_is_threshold",
        None,
        f"{_WEIGHTS}.cap",
        value_type=nullable(NUMBER),
        inactive=_older,
    ),
    _row(
        "algorithm.rollout_is_threshold_lower",
        None,
        f"{_WEIGHTS}.floor",
        value_type=nullable(NUMBER),
        inactive=_masks,
        note="null means 1 / rollout_is_threshold",
    ),
    _row(
        "algorithm.rollout_is_level",
        "token",
        f"{_WEIGHTS}.level",
        value_type=one_of("token", "sequence", "geometric"),
        inactive=_older,
    ),
    _row(
        "algorithm.rollout_is_mode",
        "truncate",
        f"{_WEIGHTS}.floor",
        value_type=one_of("truncate", "mask"),
        inactive=_older,
    ),
    _row(
        "algorithm.rollout_is_veto_threshold",
        1e-4,
        _REJECTION,
        value_type=nullable(NUMBER),
        inactive=_older,
        note="rejects the response; in verl its tokens still count in the mean",
    ),
    _row(
        _CAP,
        -1,
        f"{_WEIGHTS}.cap",
        value_type=NUMBER,
        inactive=_recorded,
        note="cap of the tokens' weights; a negative value means no weights",
    ),
    _row(
        "actor_rollout_ref.actor.use_rollout_log_probs",
        False,
        "algorithm.old_policy",
        note="the sampler's log-probs are the old ones",
    ),
)
