"""Notices where verl's seed page and verl's code differ in a default or in a precedence; the page decides."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import ForeignValues
from strop.compat.verl import switches

_ACTOR = "actor_rollout_ref.actor"


def clip_ratio_alone(foreign: ForeignValues) -> str | None:
    """On the page, `clip_ratio` bounds both sides; in the code, the keys of the two sides take precedence."""
    key = f"{_ACTOR}.clip_ratio"
    sides = [side for side in ("low", "high") if not foreign.is_set(f"{key}_{side}")]
    if not sides or foreign[key] == 0.2:
        return None
    names = " and ".join(f"clip_ratio_{side}" for side in sides)
    return f"clip_ratio is used, as on verl's page; verl's code uses {names}, 0.2 where not set: write {names}, too"


def kl_coefficient(foreign: ForeignValues) -> str | None:
    """The page's YAML has another default of the coefficient than the page's text and the code."""
    key = "algorithm.kl_ctrl.kl_coef"
    if not foreign["algorithm.use_kl_in_reward"] or foreign.is_set(key) or foreign[key] != 0.005:
        return None  # A component's own default is no difference.
    return "algorithm.kl_ctrl.kl_coef is 0.005, as in the YAML of verl's page; verl's code has 0.001: write the key"


def critic_rate(foreign: ForeignValues) -> str | None:
    """Megatron's configuration up to verl 0.5 has another learning rate of the critic than all others."""
    inactive = switches.gae(foreign) or switches.megatron(foreign)
    if inactive or foreign.is_set("critic.optim.lr") or switches.is_later(foreign):
        return None
    return (
        "critic.optim.lr is 1e-5, as in verl's ppo_trainer.yaml, and for Megatron since verl 0.6; its "
        "ppo_megatron_trainer.yaml has 1e-6 up to 0.5: write the key"
    )
