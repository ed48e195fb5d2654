"""Inactive checks of verl's keys: switches and modes that decide whether other keys have an effect."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck, added_since, any_inactive, unless
from strop.compat.verl import async_units

SERVING_ENGINES = ("vllm", "sglang")
"""Engines that answer requests, of which `--here` has none."""


def serving_engine(foreign: ForeignValues) -> str | None:
    """The serving engine that the configuration asks for and `--here` does not replace."""
    key = "actor_rollout_ref.rollout.name"
    asked = foreign.is_set(key) and foreign[key] in SERVING_ENGINES and not foreign.here
    return foreign[key] if asked else None


_CORRECTION = "algorithm.rollout_correction"
REWARD_OF_ONE = ("grpo", "grpo_vectorized", "rloo")
"""Estimators for which the advantage of the only response to a prompt is its reward."""
is_bypass = async_units.is_bypass


def is_reinforce(foreign: ForeignValues) -> bool:
    """Whether the loss is the plain policy gradient of verl's bypass mode."""
    without_clipping = foreign[f"{_CORRECTION}.loss_type"] == "reinforce"
    return is_bypass(foreign) and (without_clipping or bool(foreign[f"{_CORRECTION}.use_policy_gradient"]))


def distillation_alone(foreign: ForeignValues) -> str | None:
    """Without the task's rewards, a teacher's loss is the only one."""
    section = "distillation.distillation_loss"
    if foreign["distillation.enabled"] and not foreign[f"{section}.use_task_rewards"]:
        return f"{section}.use_task_rewards is False, so that only the teacher's loss counts"
    return None


def single_response(foreign: ForeignValues) -> str | None:
    """verl's GRPO and RLOO take the reward itself as the advantage of the only response to a prompt."""
    name = foreign["algorithm.adv_estimator"]
    if name in REWARD_OF_ONE and foreign["actor_rollout_ref.rollout.n"] == 1:
        return (
            f"actor_rollout_ref.rollout.n is 1, where verl's {name} takes the reward itself as the advantage"
        )
    return None


_SPPO = ("algorithm.sppo_eta", "actor_rollout_ref.actor.sppo_eta")
"""Keys that only the recipe SPPO has."""


def is_sppo(foreign: ForeignValues) -> bool:
    """Whether the configuration has a key of verl's recipe SPPO, which has a program of its own."""
    return any(key in foreign.written for key in _SPPO)


_SPIN = ("actor_rollout_ref.actor.dpo_beta", "trainer.ref_update_freq")
"""Keys that only the recipe SPIN has."""


def is_spin(foreign: ForeignValues) -> bool:
    """Whether the configuration has a key of verl's recipe SPIN, which has a program of its own."""
    return any(key in foreign.written for key in _SPIN)


def spin_alone(foreign: ForeignValues) -> str | None:
    """verl's recipe SPIN makes one update of a step, with the loss of DPO and no other term."""
    if is_spin(foreign):
        return "a key of verl's recipe SPIN is set, which makes one update of a step, with DPO's loss alone"
    return None


def recipe_alone(foreign: ForeignValues) -> str | None:
    """verl's recipes SPPO and SPIN have an advantage and a loss of their own."""
    if is_sppo(foreign):
        return "a key of verl's recipe SPPO is set, which has an advantage and a loss of its own"
    return spin_alone(foreign)


gae = any_inactive(distillation_alone, recipe_alone, unless("algorithm.adv_estimator", "gae"))
pf_ppo = any_inactive(gae, unless("algorithm.use_pf_ppo", True))
_PRIME = (
    *("algorithm.reward_gt_coef", "algorithm.reward_dpo_coef", "data.filter_accuracy"),
    *("reward_model.model.update", "reward_model.model.beta_train", "reward_model.model.optim."),
)
"""Keys, and a section, that only the recipe PRIME has."""


def prime(foreign: ForeignValues) -> str | None:
    """verl's recipe PRIME has a program of its own; a configuration is the recipe's where it has one of its keys."""
    if any(key.startswith(_PRIME) for key in foreign.written):
        return None
    return "the configuration has none of the keys that select verl's recipe PRIME"


def _not_prime(reason: str) -> InactiveCheck:
    return lambda foreign: None if prime(foreign) else reason


kl_loss = any_inactive(distillation_alone, spin_alone, unless("actor_rollout_ref.actor.use_kl_loss", True))
kl_in_reward = any_inactive(
    distillation_alone,
    spin_alone,
    _not_prime("PRIME's rewards have no KL penalty"),
    unless("algorithm.use_kl_in_reward", True),
)
adaptive_kl = any_inactive(kl_in_reward, unless("algorithm.kl_ctrl.type", "adaptive"))
by_std = any_inactive(
    distillation_alone,
    recipe_alone,
    single_response,
    unless("algorithm.adv_estimator", "grpo", "grpo_passk", "gdpo"),
)
gdpo = any_inactive(distillation_alone, recipe_alone, unless("algorithm.adv_estimator", "gdpo"))
discounted = any_inactive(
    distillation_alone, recipe_alone, unless("algorithm.adv_estimator", "gae", "reinforce_plus_plus")
)
shuffle = unless("actor_rollout_ref.actor.shuffle", True)
reward_model = any_inactive(
    _not_prime("PRIME trains the reward model, and the reward function gives the outcomes"),
    unless("reward_model.enable", True),
)
MEGATRON = ("megatron", "mindspeed")
"""Strategies with Megatron's optimizer."""
megatron = unless("actor_rollout_ref.actor.strategy", *MEGATRON)
dynamic_batch = unless("actor_rollout_ref.actor.use_dynamic_bsz", True)
fixed_batch = unless("actor_rollout_ref.actor.use_dynamic_bsz", False)


def fsdp(foreign: ForeignValues) -> str | None:
    """Every strategy but Megatron has FSDP's optimizer keys."""
    return None if megatron(foreign) else "actor_rollout_ref.actor.strategy is megatron"


sampled_validation = unless("actor_rollout_ref.rollout.val_kwargs.do_sample", True)
resume_path = unless("trainer.resume_mode", "resume_path")
keep_overlong = unless("data.filter_overlong_prompts", False)
vllm = unless("actor_rollout_ref.rollout.name", "vllm")
multi_turn = unless("actor_rollout_ref.rollout.multi_turn.enable", True)


def compares_one(foreign: ForeignValues) -> str | None:
    """verl's dynamic sampling keeps a group of one response, whatever its reward."""
    if foreign["actor_rollout_ref.rollout.n"] == 1:
        return "actor_rollout_ref.rollout.n is 1, and verl keeps the only response to a prompt"
    return None


filter_groups = any_inactive(
    distillation_alone, async_units.unfiltered, unless("algorithm.filter_groups.enable", True), compares_one
)
overlong_buffer = any_inactive(
    distillation_alone, unless("reward_model.reward_kwargs.overlong_buffer_cfg.enable", True)
)
sglang = unless("actor_rollout_ref.rollout.name", "sglang")


def no_reward_model(foreign: ForeignValues) -> str | None:
    """The path of a reward model has an effect where one scores, and where PRIME trains one."""
    return reward_model(foreign) if prime(foreign) else None


def sandbox_fusion(foreign: ForeignValues) -> str | None:
    """The settings of a sandbox server have an effect only with its address."""
    return None if foreign["reward_model.sandbox_fusion.url"] is not None else "sandbox_fusion.url is null"


def reference(foreign: ForeignValues) -> str | None:
    """A reference model exists only for a KL term."""
    return (
        "no KL term is on, so there is no reference model"
        if kl_loss(foreign) and kl_in_reward(foreign)
        else None
    )


def fsdp_lora(foreign: ForeignValues) -> str | None:
    """The section `lora` is Megatron's."""
    return None if not megatron(foreign) else "Megatron reads it, and the strategy is another one"


def megatron_lora(foreign: ForeignValues) -> str | None:
    """The section `lora` has an effect under Megatron, for a rank above 0."""
    rank = foreign["actor_rollout_ref.model.lora.rank"]
    return fsdp_lora(foreign) or (None if rank > 0 else f"actor_rollout_ref.model.lora.rank is {rank}")


def is_later(foreign: ForeignValues) -> bool:
    """Whether the configuration has a key of a version of verl later than 0.3.1, which the defaults are of."""
    return any(row.since for row in foreign.written.values())


def has_keys_since(foreign: ForeignValues, version: str) -> bool:
    """Whether the configuration has a key that this version of verl, or a later one, added."""
    return bool(added_since(foreign.written.values(), version))


def uses_agent_loops(foreign: ForeignValues) -> bool:
    """Whether verl samples by agent loops: with `rollout.mode: async`, which is the default since 0.7."""
    key = "actor_rollout_ref.rollout.mode"
    is_async: bool = foreign[key] == "async"
    if foreign.is_set(key):
        return is_async
    names_a_loop = any(name.startswith("actor_rollout_ref.rollout.agent.") for name in foreign.written)
    return names_a_loop or has_keys_since(foreign, "0.7")


def lora(foreign: ForeignValues) -> str | None:
    """LoRA rank 0 trains the whole model."""
    rank = foreign["actor_rollout_ref.model.lora_rank"]
    return None if rank > 0 else f"actor_rollout_ref.model.lora_rank is {rank}"


def custom_function(foreign: ForeignValues) -> str | None:
    """The name of a reward function has an effect only with its file."""
    if not reward_model(foreign):
        return rule_reward(foreign)
    path = foreign["custom_reward_function.path"]
    return None if path is not None else "custom_reward_function.path is null"


def custom_class(foreign: ForeignValues) -> str | None:
    """The name of a dataset class has an effect only with its file."""
    return None if foreign["data.custom_cls.path"] is not None else "data.custom_cls.path is null"


def rule_reward(foreign: ForeignValues) -> str | None:
    """With a reward model, verl's reward managers use its score instead of a reward function's."""
    return (
        "reward_model.enable is True, so only the reward model's score counts"
        if not reward_model(foreign)
        else None
    )
