"""Trinity's reward functions as parts of a run's reward, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues
from strop.config.schema.policy_gradient import OverlongPenaltyConfig
from strop.config.schema.reward import RewardFunctionConfig

_BOXED = RewardFunctionConfig(function="trinity_math_boxed", name="accuracy")
REWARDS: Mapping[str, tuple[RewardFunctionConfig, ...]] = {
    "math_reward": (
        RewardFunctionConfig(function="trinity_math", name="accuracy"),
        RewardFunctionConfig(function="format", weight=0.1, args={"method": "ending", "wrong": -1.0}),
    ),
    "math_boxed_reward": (_BOXED,),
    "math_dapo_reward": (RewardFunctionConfig(function="trinity_math_dapo", name="accuracy"),),
    "accuracy_reward": (RewardFunctionConfig(function="trinity_accuracy", name="accuracy"),),
    "format_reward": (RewardFunctionConfig(function="trinity_format"),),
    "countdown_reward": (RewardFunctionConfig(function="trinity_countdown"),),
}
"""Parts of each reward, with the extraction rules, values and metric names of Trinity 0.6. In 0.3, math_dapo_reward had
the rules of math_boxed_reward."""
THINKING = RewardFunctionConfig(
    function="format", name="think", weight=0.1, args={"method": "think", "right": 0.0, "wrong": -1.0}
)
"""Penalty of a response without one pair of think tags."""
_OVERLONG = ("enable_overlong_penalty", "penalty_factor", "max_response_length", "cache_length")
_WAITING = {"rm_gallery_reward": "trinity.common.rewards.reward_fn.RMGalleryFn"}
"""Rewards of Trinity that need its package."""


def reward_functions(
    name: str, args: Mapping[str, Any], *, boxed_with_think: bool = False, later: bool = True
) -> list[dict[str, Any]]:
    """The parts of a reward by its name in Trinity, or the user's own function."""
    if name == "math_dapo_reward":
        args = {key: value for key, value in args.items() if key not in _OVERLONG}
    parts = REWARDS.get(name) or (RewardFunctionConfig(function=_WAITING.get(name, name)),)
    if name == "math_dapo_reward" and not later:
        parts = (_BOXED,)
    if name == "math_boxed_reward":
        with_think = bool(args.get("with_think", boxed_with_think))
        coef = float(args.get("format_score_coef") or 0.1)
        args = {key: value for key, value in args.items() if key not in ("with_think", "format_score_coef")}
        if with_think:
            penalty = THINKING.model_copy(update={"weight": coef})
            parts = (*parts, penalty)
    listed = [part.model_dump(exclude_defaults=True) for part in parts]
    if args:
        listed[0]["args"] = {**listed[0].get("args", {}), **args}
    return listed


def overlong_penalty(foreign: ForeignValues, name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """The soft penalty of long responses, which Trinity's `math_dapo_reward` has among its arguments."""
    if name != "math_dapo_reward" or not args.get("enable_overlong_penalty"):
        return {}
    return {
        "algorithm.overlong_penalty": {
            "buffer_tokens": args.get("cache_length", 4096),
            "factor": args.get("penalty_factor", 1.0),
        }
    }


def write_overlong_penalty(penalty: OverlongPenaltyConfig) -> dict[str, Any]:
    """The penalty as arguments of `math_dapo_reward`."""
    return {
        "enable_overlong_penalty": True,
        "penalty_factor": penalty.factor,
        "cache_length": penalty.buffer_tokens,
    }


def reward_name(functions: Sequence[RewardFunctionConfig]) -> tuple[str, dict[str, Any]]:
    """Trinity's name of a run's reward and its arguments; the first function where Trinity has no such reward."""
    for name, parts in REWARDS.items():
        if tuple(functions) == parts:
            return name, {}
    first, rest = functions[0], tuple(functions[1:])
    for name, (part, *others) in REWARDS.items():
        if (
            tuple(others) == rest
            and part.function == first.function
            and part.args.items() <= first.args.items()
        ):
            return name, {key: value for key, value in first.args.items() if part.args.get(key) != value}
    if rest and first == _BOXED and rest[0].name == THINKING.name:
        return "math_boxed_reward", {"with_think": True, "format_score_coef": rest[0].weight}
    return first.function, dict(first.args)
