"""verl's `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import UNSET, beyond_the_page, mapped, never, one_of, refused
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches

_NO_KL = "a KL penalty in the reward is not built yet; write actor_rollout_ref.actor.use_kl_loss=True"
_ESTIMATORS = ("gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo")


def estimator(theirs: Theirs) -> Mapping[str, Any]:
    """GRPO alone, so far. The page's default, gae, is refused too: another would be other mathematics."""
    name = theirs["algorithm.adv_estimator"]
    if name != "grpo":
        needs = ", which needs a critic" if name == "gae" else ""
        raise theirs.fault(
            "algorithm.adv_estimator",
            f"algorithm.adv_estimator is {name}{needs}; that is not built yet. "
            "Write algorithm.adv_estimator=grpo.",
        )
    return {"algorithm.type": "grpo"}


ROWS = (
    refused("algorithm.gamma", 1.0, "returns are not discounted yet", off=switches.gae),
    refused("algorithm.lam", 1.0, "GAE is not built yet", off=switches.gae),
    mapped(
        "algorithm.adv_estimator",
        "gae",
        "algorithm.type",
        read=estimator,
        kind=one_of(*_ESTIMATORS),
        note="grpo is built; write it, for the default is not",
    ),
    refused("algorithm.use_kl_in_reward", False, _NO_KL),
    *(
        refused(f"algorithm.{name}", default, _NO_KL, can=never, off=switches.kl_in_reward)
        for name, default in (
            ("kl_penalty", "kl"),
            ("kl_ctrl.type", "fixed"),
            ("kl_ctrl.kl_coef", 0.005),
            ("kl_ctrl.horizon", 10000),
            ("kl_ctrl.target_kl", 0.1),
        )
    ),
    *beyond_the_page(
        mapped("algorithm.norm_adv_by_std_in_grpo", True, "algorithm.divide_by_std"),
        refused(
            "algorithm.filter_groups.enable",
            False,
            "groups whose answers all score the same are not sampled again yet; leave it False",
        ),
        refused(
            "algorithm.filter_groups.*",
            UNSET,
            "groups whose answers all score the same are not sampled again yet",
            can=never,
            off=switches.filter_groups,
        ),
    ),
)
