"""verl's `rollout_rs` as rules of `algorithm.rejection`, and back, in the spelling of both of its generations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strop.config.schema.off_policy import RejectionRuleConfig

_OVER = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}
_NAMES = {over: name for name, over in _OVER.items()}
MODES = tuple(
    f"{unit}_{estimator}"
    for unit in _OVER
    for estimator in ("k1", "k2", "k3")
    if (unit, estimator) != ("seq_max", "k1")
)
"""verl's modes since 0.7.1."""
_OLDER = {"token": "token", "sequence": "sum", "geometric": "mean"}
"""verl's modes until 0.7, all of k1, with what each reduces over."""


def read_rules(modes: str, threshold: Any, lower: Any) -> list[dict[str, Any]]:
    """The rules of comma-separated modes. Raises ValueError for a mode or threshold that verl refuses.

    verl's k1 is -log(trainer / sampler), so that the thresholds of its later modes bound the inverse of the ratio
    that Strop's rules bound; those of its older modes bound the ratio itself.
    """
    names = list(dict.fromkeys(name.strip() for name in str(modes).split(",") if name.strip()))
    unknown = [name for name in names if name not in MODES and name not in _OLDER]
    if unknown or not names:
        raise ValueError(
            f"has the mode {', '.join(unknown) or 'none'}; verl has {', '.join((*MODES, *_OLDER))}"
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


def veto_rule(threshold: float) -> dict[str, Any]:
    """The rule that rejects a response with a token whose ratio is below the threshold."""
    return {"estimator": "k1", "over": "max", "low": threshold}


def write_rules(rules: Sequence[RejectionRuleConfig]) -> dict[str, Any]:
    """`rollout_rs` and its thresholds, of the rules that verl can express; the last ones win over a veto's key."""
    values: dict[str, Any] = {}
    names, bounds = [], []
    for rule in rules:
        name = f"{_NAMES[rule.over]}_{rule.estimator}"
        if name == "seq_max_k1" and rule.high is None:
            values["rollout_token_veto_threshold"] = rule.low
        elif name in MODES and rule.estimator != "k1":
            names.append(name)
            bounds.append(str(rule.high))
        elif name in MODES and rule.low is not None and rule.high is not None:
            names.append(name)
            bounds.append(f"{_inverse(rule.high)}_{_inverse(rule.low)}")
    if names:
        values |= {"rollout_rs": ",".join(names), "rollout_rs_threshold": ",".join(bounds)}
    return values


def read_bounds(threshold: Any) -> tuple[float | None, float]:
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
    return {
        "estimator": "k1",
        "over": _OVER[unit],
        "low": _inverse(highest),
        "high": _inverse(lowest),
    }


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
