"""verl's `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import TEXT, beyond_the_page, mapped, one_of, or_null, written_by
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.schema import Run

ESTIMATORS = (
    "gae",
    "grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "opo",
    "grpo_passk",
    "gpg",
)
"""The page names five of them; upstream, and the component made of it, have all nine."""
_WHOLE = (None, "score", "seq_reward", "seq_final_reward")
KL = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
    "full": "full",
}
"""verl's names of the estimators of the divergence, and ours."""
KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl", "full": "full"}
"""Ours, and the names that verl's page uses."""


def write_estimator(run: Run) -> Mapping[str, Any]:
    """The algorithm's name, and of its options those that it has."""
    name, at = run.algorithm.type, "algorithm"
    options = {"norm_adv_by_std_in_grpo": "divide_by_std", "gamma": "gamma", "lam": "lam"}
    values = {f"{at}.adv_estimator": "gae" if name == "ppo" else name}
    said = {f"{at}.{theirs}": getattr(run.algorithm, ours, None) for theirs, ours in options.items()}
    return values | {key: value for key, value in said.items() if value is not None}


@written_by(write_estimator)
def estimator(theirs: Theirs) -> Mapping[str, Any]:
    """GAE is PPO's; the others are algorithms of their own."""
    name = theirs["algorithm.adv_estimator"]
    settings = {"algorithm.type": "ppo" if name == "gae" else name}
    if not switches.by_std(theirs):
        settings["algorithm.divide_by_std"] = theirs["algorithm.norm_adv_by_std_in_grpo"]
    if not switches.discounted(theirs):
        settings["algorithm.gamma"] = theirs["algorithm.gamma"]
    if not switches.gae(theirs):
        settings["algorithm.lam"] = theirs["algorithm.lam"]
    return settings


def write_kl_reward(run: Run) -> Mapping[str, Any]:
    """The switch, and what stands behind it."""
    term = getattr(run.algorithm, "kl_reward", None)
    if term is None:
        return {"algorithm.use_kl_in_reward": False}
    values = {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": KL_NAMES[term.estimator],
        "algorithm.kl_ctrl.kl_coef": term.coef,
        "algorithm.kl_ctrl.type": "fixed" if term.adaptive is None else "adaptive",
    }
    if term.adaptive is not None:
        values["algorithm.kl_ctrl.target_kl"] = term.adaptive.target_kl
        values["algorithm.kl_ctrl.horizon"] = term.adaptive.horizon
    return values


@written_by(write_kl_reward)
def kl_reward(theirs: Theirs) -> Mapping[str, Any]:
    """The penalty in the reward, where it is on; where it is adaptive, its coefficient moves."""
    if switches.kl_in_reward(theirs):
        return {}
    settings = {
        "algorithm.kl_reward.estimator": KL[theirs["algorithm.kl_penalty"]],
        "algorithm.kl_reward.coef": theirs["algorithm.kl_ctrl.kl_coef"],
    }
    if not switches.adaptive_kl(theirs):
        settings["algorithm.kl_reward.adaptive.target_kl"] = theirs["algorithm.kl_ctrl.target_kl"]
        settings["algorithm.kl_reward.adaptive.horizon"] = theirs["algorithm.kl_ctrl.horizon"]
    return settings


def write_filter_groups(run: Run) -> Mapping[str, Any]:
    """The switch, and how often is tried."""
    said = getattr(run.algorithm, "dynamic_sampling", None)
    if said is None:
        return {"algorithm.filter_groups.enable": False}
    values = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.max_num_gen_batches": said.max_tries,
    }
    part = (said.metric or "").rpartition("/")[2]
    return values | ({"algorithm.filter_groups.metric": part} if part else {})


@written_by(write_filter_groups)
def filter_groups(theirs: Theirs) -> Mapping[str, Any]:
    """DAPO's dynamic sampling. Where its tries are used up, a step trains on the groups that it has."""
    if switches.filter_groups(theirs):
        return {}
    tries, metric = (theirs[f"algorithm.filter_groups.{name}"] for name in ("max_num_gen_batches", "metric"))
    settings = {"max_tries": tries} if tries > 0 else {}
    if metric not in _WHOLE:
        settings["metric"] = _part(theirs, metric)
    return {"algorithm.dynamic_sampling": settings}


def _part(theirs: Theirs, metric: str) -> str:
    """A part that a function of the user's own names itself, such as `compute_score/acc`."""
    if theirs["custom_reward_function.path"] is None or not switches.reward_model(theirs):
        raise theirs.fault(
            "algorithm.filter_groups.metric",
            f"algorithm.filter_groups.metric is {metric}, which is for a function of your own that returns "
            "it beside its score (custom_reward_function.path); write score, for the whole reward.",
        )
    return f"{theirs['custom_reward_function.name']}/{metric}"


ROWS = (
    mapped(
        "algorithm.gamma",
        1.0,
        "algorithm.gamma",
        read=estimator,
        off=switches.discounted,
        note="gae and reinforce_plus_plus discount with it",
    ),
    mapped("algorithm.lam", 1.0, "algorithm.lam", read=estimator, off=switches.gae),
    mapped(
        "algorithm.adv_estimator",
        "gae",
        "algorithm.type",
        read=estimator,
        kind=one_of(*ESTIMATORS),
        note="gae is PPO, with a critic",
    ),
    mapped("algorithm.use_kl_in_reward", False, "algorithm.kl_reward", read=kl_reward),
    mapped(
        "algorithm.kl_penalty",
        "kl",
        "algorithm.kl_reward.estimator",
        read=kl_reward,
        kind=one_of(*KL),
        off=switches.kl_in_reward,
    ),
    mapped(
        "algorithm.kl_ctrl.type",
        "fixed",
        "algorithm.kl_reward.adaptive",
        read=kl_reward,
        kind=one_of("fixed", "adaptive"),
        off=switches.kl_in_reward,
    ),
    mapped(
        "algorithm.kl_ctrl.kl_coef",
        0.005,
        "algorithm.kl_reward.coef",
        read=kl_reward,
        off=switches.kl_in_reward,
        note="the page's YAML says 0.005, its text 0.001",
    ),
    mapped(
        "algorithm.kl_ctrl.horizon",
        10000,
        "algorithm.kl_reward.adaptive.horizon",
        read=kl_reward,
        off=switches.adaptive_kl,
        note="counts rollouts",
    ),
    mapped(
        "algorithm.kl_ctrl.target_kl",
        0.1,
        "algorithm.kl_reward.adaptive.target_kl",
        read=kl_reward,
        off=switches.adaptive_kl,
    ),
    *beyond_the_page(
        mapped(
            "algorithm.norm_adv_by_std_in_grpo",
            True,
            "algorithm.divide_by_std",
            read=estimator,
            off=switches.by_std,
        ),
        mapped(
            "algorithm.filter_groups.enable",
            False,
            "algorithm.dynamic_sampling",
            read=filter_groups,
            note="groups whose rewards are all equal are replaced",
        ),
        mapped(
            "algorithm.filter_groups.max_num_gen_batches",
            0,
            "algorithm.dynamic_sampling.max_tries",
            read=filter_groups,
            off=switches.filter_groups,
            note="0 stands for Strop's own bound",
        ),
        mapped(
            "algorithm.filter_groups.metric",
            None,
            "algorithm.dynamic_sampling.metric",
            read=filter_groups,
            kind=or_null(TEXT),
            off=switches.filter_groups,
            note="score, seq_reward, seq_final_reward and null are the whole reward",
        ),
    ),
)
