"""Ledger rows of verl's `algorithm` section."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    NUMBER_LIST,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.reward import BY_SOURCE
from strop.config.schema import Run
from strop.config.schema.algorithm import GdpoConfig, OnlineDpoConfig, SelfPlayConfig

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
"""verl's advantage estimators of June 2025. The documentation of verl 0.3.1 lists five."""
LATER_ESTIMATORS = ("gdpo", "optimal_token_baseline")
_PPO = {"gae": "ppo"}
OTHER_NAMES = {
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
    "tir_optimal_token_baseline": "optimal_token_baseline",
}
"""Other names of estimators, and the name of a run-file algorithm that means the same."""
_SAME = _PPO | OTHER_NAMES
"""Estimators whose algorithm has another name in the run file."""
_ESTIMATOR_OF = {"ppo": "gae", "distillation": "grpo", "prime": "rloo"}
"""Algorithms whose estimator has another name in verl."""
_WHOLE_REWARD = (None, "reward", "score", "seq_reward", "seq_final_reward")
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
"""verl's names of the KL estimators, each with Strop's name."""


def write_estimator(run: Run) -> Mapping[str, Any]:
    """Write the algorithm and those of the options that it has."""
    name, at = run.algorithm.type, "algorithm"
    options = {"norm_adv_by_std_in_grpo": "divide_by_std", "gamma": "gamma", "lam": "lam"}
    if isinstance(run.algorithm, SelfPlayConfig):
        over_step = run.algorithm.baseline_over == "step"
        return {f"{at}.sppo_eta": run.algorithm.eta if over_step else None}
    if isinstance(run.algorithm, OnlineDpoConfig):
        both = run.algorithm.train_ties
        return {DPO_BETA: run.algorithm.beta if both else None, REF_UPDATE: 1 if both else None}
    values: dict[str, Any] = {f"{at}.adv_estimator": _ESTIMATOR_OF.get(name, name)}
    if isinstance(run.algorithm, GdpoConfig) and run.algorithm.reward_parts is not None:
        values[f"{at}.gdpo_reward_keys"] = [part.rpartition("/")[2] for part in run.algorithm.reward_parts]
        values[f"{at}.gdpo_reward_weights"] = run.algorithm.part_weights
    values_of_options = {
        f"{at}.{foreign}": getattr(run.algorithm, field, None) for foreign, field in options.items()
    }
    return values | {key: value for key, value in values_of_options.items() if value is not None}


@written_by(write_estimator)
def estimator(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the algorithm: the estimator gae is PPO, the others are algorithms of the same name."""
    name = foreign["algorithm.adv_estimator"]
    if switches.distillation_alone(foreign):
        return {"algorithm.type": "distillation"}
    if switches.is_sppo(foreign):
        return _sppo(foreign)
    if switches.is_spin(foreign):
        return _spin(foreign)
    if name is None:
        raise foreign.error_for(
            "algorithm.adv_estimator",
            "algorithm.adv_estimator is null, which only verl's recipe SPPO has (algorithm.sppo_eta); write gae, which "
            "is verl's default, or another estimator.",
        )
    if switches.single_response(foreign):
        return {"algorithm.type": "reinforce"}
    if switches.prime(foreign) is None:
        return _prime(foreign)
    settings = {"algorithm.type": _SAME.get(name, name)}
    if not switches.by_std(foreign):
        settings["algorithm.divide_by_std"] = foreign["algorithm.norm_adv_by_std_in_grpo"]
    if name == "gpg":
        settings["algorithm.scale"] = "nonzero"
    if name == "gdpo":
        settings |= _gdpo(foreign)
    if not switches.discounted(foreign):
        settings["algorithm.gamma"] = foreign["algorithm.gamma"]
    if not switches.gae(foreign):
        settings["algorithm.lam"] = foreign["algorithm.lam"]
    return settings


KL_LOSS = KL | {
    f"{name}+": estimator if estimator == "k2" else f"{estimator}+"
    for name, estimator in KL.items()
    if name != "full"
}
"""verl's names of the estimators in the loss; a `+` takes the gradient of k2."""
KL_NAMES = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl", "full": "full"}
"""Strop's names of the KL estimators, each with the name in verl's documentation."""
DPO_BETA, REF_UPDATE = "actor_rollout_ref.actor.dpo_beta", "trainer.ref_update_freq"
"""Keys of verl's recipe SPIN."""


def _sppo(foreign: ForeignValues) -> dict[str, Any]:
    """The algorithm of verl's recipe SPPO, whatever the estimator is."""
    actor = "actor_rollout_ref.actor"
    for key in (f"{actor}.use_kl_loss", f"{actor}.entropy_coeff"):
        if foreign[key]:
            raise foreign.error_for(
                key,
                f"{key} is {foreign[key]}, but verl's recipe SPPO averages this term over tokens and its loss over "
                "responses, and in Strop all terms are averaged alike; remove it, or write "
                "algorithm.use_kl_in_reward=True for a KL penalty.",
            )
    eta = {"algorithm.eta": foreign["algorithm.sppo_eta"]}
    return {"algorithm.type": "self_play", "algorithm.baseline_over": "step"} | eta


def _spin(foreign: ForeignValues) -> dict[str, Any]:
    """The algorithm of verl's recipe SPIN, whatever the estimator is: one update on the pairs of a step."""
    if foreign[REF_UPDATE] != 1:
        raise foreign.error_for(
            REF_UPDATE,
            f"{REF_UPDATE} is {foreign[REF_UPDATE]}: the reference of verl's recipe SPIN is then a policy of some "
            "steps before, and Strop's online_dpo compares with the policy at the step's start; write 1.",
        )
    return {"algorithm.type": "online_dpo", "algorithm.beta": foreign[DPO_BETA], "algorithm.train_ties": True}


def _prime(foreign: ForeignValues) -> dict[str, Any]:
    """The algorithm of verl's recipe PRIME, which compares rewards as RLOO does."""
    name = foreign["algorithm.adv_estimator"]
    if name != "rloo" and foreign.is_set("algorithm.adv_estimator"):
        raise foreign.error_for(
            "algorithm.adv_estimator",
            f"algorithm.adv_estimator is {name}, but the configuration has keys of verl's recipe PRIME, which "
            "supports rloo only; write rloo.",
        )
    return {"algorithm.type": "prime"}


def _gdpo(foreign: ForeignValues) -> dict[str, Any]:
    """The parts of the reward; the reward function returns each under verl's key."""
    keys, weights = foreign["algorithm.gdpo_reward_keys"], foreign["algorithm.gdpo_reward_weights"]
    if not keys:
        raise foreign.error_for(
            "algorithm.adv_estimator",
            "algorithm.adv_estimator is gdpo; also write algorithm.gdpo_reward_keys, the keys of the numbers that "
            "the reward function returns.",
        )
    parts = [_part(foreign, key, "algorithm.gdpo_reward_keys") for key in keys]
    return {"algorithm.reward_parts": parts, "algorithm.part_weights": weights}


def write_resampling(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, PF-PPO's weights."""
    section, at = getattr(run.algorithm, "resampling", None), "algorithm"
    if section is None:
        return {f"{at}.use_pf_ppo": False}
    weights = {f"{at}.pf_ppo.reweight_method": section.method, f"{at}.pf_ppo.weight_pow": section.power}
    return {f"{at}.use_pf_ppo": True, **weights}


@written_by(write_resampling, off={"algorithm.use_pf_ppo": False})
def resampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read PF-PPO, where it is on and the estimator is GAE; verl resamples for no other."""
    method, power = (foreign[f"algorithm.pf_ppo.{name}"] for name in ("reweight_method", "weight_pow"))
    return {"algorithm.resampling": {"method": method, "power": power}}


def write_kl_reward(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, the KL penalty in the reward."""
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


@written_by(write_kl_reward, off={"algorithm.use_kl_in_reward": False})
def kl_reward(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL penalty in the reward, where it is on, with the controller of an adaptive coefficient."""
    if switches.kl_in_reward(foreign) or not switches.gdpo(foreign):
        return {}
    settings = {
        "algorithm.kl_reward.estimator": KL[foreign["algorithm.kl_penalty"].removesuffix("+")],
        "algorithm.kl_reward.coef": foreign["algorithm.kl_ctrl.kl_coef"],
    }
    if not switches.adaptive_kl(foreign):
        settings["algorithm.kl_reward.adaptive.target_kl"] = foreign["algorithm.kl_ctrl.target_kl"]
        settings["algorithm.kl_reward.adaptive.horizon"] = foreign["algorithm.kl_ctrl.horizon"]
    return settings


def write_filter_groups(run: Run) -> Mapping[str, Any]:
    """Write the switch and the maximum number of generation batches."""
    dynamic_sampling = getattr(run.algorithm, "dynamic_sampling", None)
    if dynamic_sampling is None:
        return {"algorithm.filter_groups.enable": False}
    values = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.max_num_gen_batches": dynamic_sampling.max_tries,
    }
    metric = dynamic_sampling.metric or ""
    part = "acc" if metric == BY_SOURCE else metric.rpartition("/")[2]
    return values | ({"algorithm.filter_groups.metric": part} if part else {})


@written_by(write_filter_groups, off={"algorithm.filter_groups.enable": False})
def filter_groups(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read DAPO's dynamic sampling. After the maximum number of tries, a step trains on the groups it has."""
    if switches.filter_groups(foreign):
        return {}
    tries, metric = (foreign[f"algorithm.filter_groups.{name}"] for name in ("max_num_gen_batches", "metric"))
    settings = {"max_tries": tries} if tries > 0 else {}
    if metric not in _WHOLE_REWARD:
        settings["metric"] = _part(foreign, metric, "algorithm.filter_groups.metric")
    return {"algorithm.dynamic_sampling": settings}


def one_response(foreign: ForeignValues) -> str | None:
    """Reading of the recipe SPIN as its script sets it, with one response per prompt."""
    if not switches.is_spin(foreign) or foreign["actor_rollout_ref.rollout.n"] != 1:
        return None
    return (
        "actor_rollout_ref.rollout.n is 1: verl's recipe SPIN would then compare responses to different prompts, two "
        "neighbors of the step; Strop samples two responses to each prompt and compares these"
    )


def _part(foreign: ForeignValues, metric: str, key: str) -> str:
    """The reward part that a user's reward function returns, such as `compute_score/acc`."""
    if metric == "acc" and foreign["custom_reward_function.path"] is None and switches.reward_model(foreign):
        return BY_SOURCE
    if foreign["custom_reward_function.path"] is None or not switches.reward_model(foreign):
        raise foreign.error_for(
            key,
            f"{key} has {metric}, which only a reward function of your own "
            "(custom_reward_function.path) can return in addition to its score; write score for the whole "
            "reward.",
        )
    return f"{foreign['custom_reward_function.name']}/{metric}"


def kl_coefficient(foreign: ForeignValues) -> str | None:
    """The YAML in the documentation of verl 0.3.1 has another default than its text and the code."""
    key = "algorithm.kl_ctrl.kl_coef"
    if not foreign["algorithm.use_kl_in_reward"] or foreign.is_set(key) or foreign[key] != 0.005:
        return None  # A component's own default is no difference.
    return (
        "algorithm.kl_ctrl.kl_coef is 0.005, as in the YAML of verl 0.3.1's documentation; verl's code has 0.001: "
        "write the key"
    )


def critic_rate(foreign: ForeignValues) -> str | None:
    """Megatron's configuration up to verl 0.5 has another learning rate of the critic than all others."""
    inactive = switches.gae(foreign) or switches.megatron(foreign)
    if inactive or foreign.is_set("critic.optim.lr") or switches.is_later(foreign):
        return None
    return (
        "critic.optim.lr is 1e-5, as in verl's ppo_trainer.yaml, and for Megatron since verl 0.6; its "
        "ppo_megatron_trainer.yaml has 1e-6 up to 0.5: write the key"
    )


_estimator_row = partial(mapped, read=estimator)
_kl_row = partial(mapped, read=kl_reward, inactive=switches.kl_in_reward)
_LISTED = (
    _estimator_row(
        "algorithm.gamma",
        1.0,
        "algorithm.gamma",
        inactive=switches.discounted,
        note="discount factor of gae and reinforce_plus_plus",
    ),
    _estimator_row("algorithm.lam", 1.0, "algorithm.lam", inactive=switches.gae),
    _estimator_row(
        "algorithm.adv_estimator",
        "gae",
        "algorithm.type",
        value_type=nullable(one_of(*ESTIMATORS, *LATER_ESTIMATORS, *OTHER_NAMES)),
        inactive=any_inactive(switches.distillation_alone, switches.recipe_alone),
        note="gae is PPO with a critic; optimal_token_baseline counts sampled tokens only, as "
        "tir_optimal_token_baseline does",
        warn=critic_rate,
    ),
    _kl_row(
        "algorithm.use_kl_in_reward",
        False,
        "algorithm.kl_reward",
        inactive=switches.distillation_alone,
        warn=kl_coefficient,
    ),
    _kl_row("algorithm.kl_penalty", "kl", "algorithm.kl_reward.estimator", value_type=one_of(*KL_LOSS)),
    _kl_row(
        "algorithm.kl_ctrl.type",
        "fixed",
        "algorithm.kl_reward.adaptive",
        value_type=one_of("fixed", "adaptive"),
    ),
    _kl_row(
        "algorithm.kl_ctrl.kl_coef",
        0.005,
        "algorithm.kl_reward.coef",
        note="0.005 as in the YAML of verl 0.3.1's documentation; its text and verl's code have 0.001",
    ),
    _kl_row(
        "algorithm.kl_ctrl.horizon",
        10000,
        "algorithm.kl_reward.adaptive.horizon",
        inactive=switches.adaptive_kl,
        note="counts rollouts",
    ),
    _kl_row(
        "algorithm.kl_ctrl.target_kl",
        0.1,
        "algorithm.kl_reward.adaptive.target_kl",
        inactive=switches.adaptive_kl,
    ),
)
_filter_row = partial(mapped, read=filter_groups, inactive=switches.filter_groups)
_row = partial(mapped, read=resampling)
_UNLISTED = not_on_page(
    _estimator_row(
        "algorithm.norm_adv_by_std_in_grpo", True, "algorithm.divide_by_std", inactive=switches.by_std
    ),
    _estimator_row(
        "algorithm.sppo_eta",
        1.0,
        "algorithm.eta",
        note="selects the recipe SPPO, as actor_rollout_ref.actor.sppo_eta does; the baseline is over the step",
    ),
    _estimator_row(
        DPO_BETA,
        0.1,
        "algorithm.beta",
        note="selects the recipe SPIN, as trainer.ref_update_freq does: DPO on two responses to each prompt, one "
        "update per step",
        warn=one_response,
    ),
    _estimator_row(
        REF_UPDATE,
        -1,
        "algorithm.type",
        note="steps between updates of the recipe SPIN's reference, from the policy at the step's start; 1 only",
    ),
    _estimator_row(
        "algorithm.gdpo_reward_keys",
        None,
        "algorithm.reward_parts",
        value_type=nullable(STRING_OR_LIST),
        inactive=switches.gdpo,
        note="numbers that the reward function returns, compared one by one; a KL penalty in the reward has "
        "no effect with them",
    ),
    _estimator_row(
        "algorithm.gdpo_reward_weights",
        None,
        "algorithm.part_weights",
        value_type=nullable(NUMBER_LIST),
        inactive=switches.gdpo,
        note="null means 1 for each",
    ),
    _row(
        "algorithm.use_pf_ppo",
        False,
        "algorithm.resampling",
        inactive=switches.gae,
        note="draws the rollouts of the updates by their rewards; of gae only, as in verl",
    ),
    _row(
        "algorithm.pf_ppo.reweight_method",
        "pow",
        "algorithm.resampling.method",
        value_type=one_of("pow", "max_min", "max_random"),
        inactive=switches.pf_ppo,
    ),
    _row("algorithm.pf_ppo.weight_pow", 2.0, "algorithm.resampling.power", inactive=switches.pf_ppo),
    _filter_row(
        "algorithm.filter_groups.enable",
        False,
        "algorithm.dynamic_sampling",
        inactive=any_inactive(switches.distillation_alone, switches.unfiltered, switches.compares_one),
        note="replaces groups whose rewards are all equal",
    ),
    _filter_row(
        "algorithm.filter_groups.max_num_gen_batches",
        0,
        "algorithm.dynamic_sampling.max_tries",
        note="0 means Strop's default bound",
    ),
    _filter_row(
        "algorithm.filter_groups.metric",
        None,
        "algorithm.dynamic_sampling.metric",
        value_type=nullable(STRING),
        note="reward, score, seq_reward, seq_final_reward and null mean the whole reward; acc of a "
        "built-in reward is its score",
    ),
    placement(
        "algorithm.filter_groups.max_inflight_gen_batches",
        1,
        "one sampling round at a time",
        supported=only(1),
    ),
    refused(
        "trainer.spo.enable",
        False,
        "SPO keeps a value of each prompt over the whole run and draws prompts by it; Strop has no such "
        "algorithm; leave it False, or write algorithm.adv_estimator=grpo alone",
    ),
    no_effect("trainer.spo.*", UNSET, "trainer.spo.enable is False"),
)
ROWS = (*_LISTED, *_UNLISTED)
