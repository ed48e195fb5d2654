"""What an `algorithm_type` of Trinity's stands for, and which functions a configuration comes to."""

from __future__ import annotations

from dataclasses import dataclass

from strop.config.dialects.row import Off
from strop.config.dialects.theirs import Theirs

_OFFLINE = ("sft", "dpo")
ADVANTAGES = {
    "ppo": "ppo",
    "grpo": "grpo",
    "opmd": "opmd",
    "rloo": "rloo",
    "reinforceplusplus": "reinforce_plus_plus",
    "remax": "remax",
}
"""Whose advantages an `advantage_fn` gives."""


@dataclass(frozen=True, slots=True)
class Preset:
    """The functions of a type, each where no other is written."""

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


def kind(theirs: Theirs) -> str:
    """`algorithm_type`"""
    return str(theirs["algorithm.algorithm_type"])


def preset(theirs: Theirs) -> Preset:
    """Of the written type."""
    return PRESETS[kind(theirs)]


def is_offline(theirs: Theirs) -> bool:
    """Whether it learns from given answers."""
    return kind(theirs) in _OFFLINE


def said(theirs: Theirs, key: str, default: str) -> str:
    """`algorithm.<key>`, where it is written."""
    value = theirs[f"algorithm.{key}"]
    return default if value is None else str(value)


def advantage(theirs: Theirs) -> str:
    """The advantage function; `none` where nothing is sampled."""
    return "none" if is_offline(theirs) else said(theirs, "advantage_fn", preset(theirs).advantage)


def loss(theirs: Theirs) -> str:
    """The policy loss."""
    return said(theirs, "policy_loss_fn", preset(theirs).loss)


def repeat_times(theirs: Theirs) -> int:
    """Rollouts of a task."""
    count = theirs["algorithm.repeat_times"]
    return preset(theirs).repeat if count is None else int(count)


def only_types(*types: str) -> Off:
    """Counts only under these types."""
    return lambda theirs: None if kind(theirs) in types else f"algorithm_type is {kind(theirs)}"


def only_advantages(*names: str) -> Off:
    """Counts only with these advantage functions."""
    return lambda theirs: None if advantage(theirs) in names else f"the advantages are {advantage(theirs)}'s"


def only_losses(*names: str) -> Off:
    """Counts only with these policy losses."""
    return lambda theirs: None if loss(theirs) in names else f"the policy loss is {loss(theirs)}"


def only_sampled(theirs: Theirs) -> str | None:
    """Counts only where answers are sampled to learn from."""
    return f"algorithm_type is {kind(theirs)}" if is_offline(theirs) else None


def only_given(theirs: Theirs) -> str | None:
    """Counts only where the data are given answers."""
    if is_offline(theirs):
        return None
    return f"algorithm_type is {kind(theirs)}, whose experiences are its own rollouts"


without_critic = only_advantages("ppo")
"""Why a key of the critic means nothing; None where there is one."""
