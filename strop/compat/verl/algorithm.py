"""Ledger rows of verl's `algorithm` section."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import any_inactive, mapped, not_on_page
from strop.compat.ledger.value_types import NUMBER_LIST, STRING, STRING_OR_LIST, nullable, one_of
from strop.compat.verl import async_units, switches
from strop.compat.verl.algorithm_converters import (
    DPO_BETA,
    ESTIMATORS,
    KL_LOSS,
    LATER_ESTIMATORS,
    OTHER_NAMES,
    REF_UPDATE,
    estimator,
    filter_groups,
    kl_reward,
    one_response,
    resampling,
)
from strop.compat.verl.page_differences import critic_rate, kl_coefficient

ROWS = (
    mapped(
        "algorithm.gamma",
        1.0,
        "algorithm.gamma",
        read=estimator,
        inactive=switches.discounted,
        note="discount factor of gae and reinforce_plus_plus",
    ),
    mapped("algorithm.lam", 1.0, "algorithm.lam", read=estimator, inactive=switches.gae),
    mapped(
        "algorithm.adv_estimator",
        "gae",
        "algorithm.type",
        read=estimator,
        value_type=nullable(one_of(*ESTIMATORS, *LATER_ESTIMATORS, *OTHER_NAMES)),
        inactive=any_inactive(switches.distillation_alone, switches.recipe_alone),
        note="gae is PPO with a critic; optimal_token_baseline counts sampled tokens only, as "
        "tir_optimal_token_baseline does",
        warn=critic_rate,
    ),
    mapped(
        "algorithm.use_kl_in_reward",
        False,
        "algorithm.kl_reward",
        read=kl_reward,
        inactive=switches.distillation_alone,
        warn=kl_coefficient,
    ),
    mapped(
        "algorithm.kl_penalty",
        "kl",
        "algorithm.kl_reward.estimator",
        read=kl_reward,
        value_type=one_of(*KL_LOSS),
        inactive=switches.kl_in_reward,
    ),
    mapped(
        "algorithm.kl_ctrl.type",
        "fixed",
        "algorithm.kl_reward.adaptive",
        read=kl_reward,
        value_type=one_of("fixed", "adaptive"),
        inactive=switches.kl_in_reward,
    ),
    mapped(
        "algorithm.kl_ctrl.kl_coef",
        0.005,
        "algorithm.kl_reward.coef",
        read=kl_reward,
        inactive=switches.kl_in_reward,
        note="the page's YAML has 0.005, which is used; the page's text and verl's code have 0.001",
    ),
    mapped(
        "algorithm.kl_ctrl.horizon",
        10000,
        "algorithm.kl_reward.adaptive.horizon",
        read=kl_reward,
        inactive=switches.adaptive_kl,
        note="counts rollouts",
    ),
    mapped(
        "algorithm.kl_ctrl.target_kl",
        0.1,
        "algorithm.kl_reward.adaptive.target_kl",
        read=kl_reward,
        inactive=switches.adaptive_kl,
    ),
    *not_on_page(
        mapped(
            "algorithm.norm_adv_by_std_in_grpo",
            True,
            "algorithm.divide_by_std",
            read=estimator,
            inactive=switches.by_std,
        ),
        mapped(
            "algorithm.sppo_eta",
            1.0,
            "algorithm.eta",
            read=estimator,
            note="selects the recipe SPPO, as actor_rollout_ref.actor.sppo_eta does; the baseline is over the step",
        ),
        mapped(
            DPO_BETA,
            0.1,
            "algorithm.beta",
            read=estimator,
            note="selects the recipe SPIN, as trainer.ref_update_freq does: DPO on two responses to each prompt, one "
            "update per step",
            warn=one_response,
        ),
        mapped(
            REF_UPDATE,
            -1,
            "algorithm.type",
            read=estimator,
            note="steps between updates of the recipe SPIN's reference, from the policy at the step's start; 1 only",
        ),
        mapped(
            "algorithm.gdpo_reward_keys",
            None,
            "algorithm.reward_parts",
            read=estimator,
            value_type=nullable(STRING_OR_LIST),
            inactive=switches.gdpo,
            note="numbers that the reward function returns, compared one by one; a KL penalty in the reward has "
            "no effect with them",
        ),
        mapped(
            "algorithm.gdpo_reward_weights",
            None,
            "algorithm.part_weights",
            read=estimator,
            value_type=nullable(NUMBER_LIST),
            inactive=switches.gdpo,
            note="null means 1 for each",
        ),
        mapped(
            "algorithm.use_pf_ppo",
            False,
            "algorithm.resampling",
            read=resampling,
            inactive=switches.gae,
            note="draws the rollouts of the updates by their rewards; of gae only, as in verl",
        ),
        mapped(
            "algorithm.pf_ppo.reweight_method",
            "pow",
            "algorithm.resampling.method",
            read=resampling,
            value_type=one_of("pow", "max_min", "max_random"),
            inactive=switches.pf_ppo,
        ),
        mapped(
            "algorithm.pf_ppo.weight_pow",
            2.0,
            "algorithm.resampling.power",
            read=resampling,
            inactive=switches.pf_ppo,
        ),
        mapped(
            "algorithm.filter_groups.enable",
            False,
            "algorithm.dynamic_sampling",
            read=filter_groups,
            inactive=any_inactive(switches.distillation_alone, async_units.unfiltered, switches.compares_one),
            note="replaces groups whose rewards are all equal",
        ),
        mapped(
            "algorithm.filter_groups.max_num_gen_batches",
            0,
            "algorithm.dynamic_sampling.max_tries",
            read=filter_groups,
            inactive=switches.filter_groups,
            note="0 means Strop's default bound",
        ),
        mapped(
            "algorithm.filter_groups.metric",
            None,
            "algorithm.dynamic_sampling.metric",
            read=filter_groups,
            value_type=nullable(STRING),
            inactive=switches.filter_groups,
            note="score, seq_reward, seq_final_reward and null mean the whole reward; acc of a "
            "built-in reward is its score",
        ),
    ),
)
