"""Switches and modes of verl that decide whether other keys have an effect, and in which units they count.

The trainer of `fully_async_policy` trains on `ppo_mini_batch_size` * `require_batches` prompts at a time (a step of
Strop), and publishes its weights after `trigger_parameter_sync_step` of these (a version, by which verl counts
evaluations and checkpoints).

Of trainer v1, `colocate_async` samples a batch of `data.train_batch_size` prompts in each step, with
`num_warmup_batches` further batches under way. `separate_async` does the same, trains on each `ppo_mini_batch_size`
prompts as they arrive (a step of Strop), and publishes its weights after `parameter_sync_step` of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    InactiveCheck,
    added_since,
    any_inactive,
    unless,
    unless_null,
)

V1 = "trainer.v1"
V1_MODE = f"{V1}.trainer_mode"
_COLOCATED, SEPARATE = "colocate_async", "separate_async"
V1_INTERVAL = f"{V1}.{SEPARATE}.parameter_sync_step"
MINI_BATCH, _BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size"
V1_WARMUP = {mode: f"{V1}.{mode}.num_warmup_batches" for mode in (_COLOCATED, SEPARATE)}
V1_OLDEST = f"{V1}.sampler.max_off_policy_threshold"


def async_mode(foreign: ForeignValues) -> str | None:
    """The asynchronous mode of trainer v1; None for the synchronous trainer."""
    mode = str(foreign[V1_MODE])
    return mode if foreign["trainer.use_v1"] and mode in V1_WARMUP else None


def _is_separate(foreign: ForeignValues) -> bool:
    """Whether a step is one mini-batch of verl's, of which a version has several."""
    return async_mode(foreign) == SEPARATE


def v1_steps_per_version(foreign: ForeignValues) -> int:
    """Steps between two publications of the weights."""
    return _at_least(foreign, V1_INTERVAL, 1) if _is_separate(foreign) else 1


def _v1_tasks_per_step(foreign: ForeignValues) -> int:
    """Prompts of a mini-batch under `separate_async`. Raises ConfigError where verl does."""
    size, batch, interval = foreign[MINI_BATCH], foreign[_BATCH], v1_steps_per_version(foreign)
    if batch != size * interval:
        raise foreign.error_for(
            _BATCH,
            f"{_BATCH} is {batch}, and under {V1_MODE}={SEPARATE} it must be {MINI_BATCH} ({size}) * {V1_INTERVAL} "
            f"({interval}), {size * interval}; write that.",
        )
    return int(size)


def v1_synchronizer(foreign: ForeignValues, mode: str) -> Mapping[str, Any]:
    """Read the explorer: the batch of a step and the further ones are under way with the weights of one version."""
    further, interval = _at_least(foreign, V1_WARMUP[mode], 0), v1_steps_per_version(foreign)
    if foreign[V1_OLDEST] < further + 1:
        raise foreign.error_for(
            V1_OLDEST,
            f"{V1_OLDEST} is {foreign[V1_OLDEST]}, and {V1_WARMUP[mode]}={further} lets rollouts span {further + 1} "
            f"versions of the weights, of which verl drops the oldest; write {further + 1} or a greater number.",
        )
    return {
        "synchronizer.type": "collective",
        "synchronizer.style.type": "bounded",
        "synchronizer.style.every": f"{interval} steps",
        "synchronizer.style.max_staleness": f"{(further + 1) * interval - 1} steps",
        "synchronizer.style.pause_mode": "abort",
    }


def _at_least(foreign: ForeignValues, key: str, least: int) -> int:
    value = foreign[key]
    if value < least:
        raise foreign.error_for(key, f"{key} is {value}; write {least} or a greater number.")
    return int(value)


_ASYNC = "async_training"
STALENESS, INTERVAL = f"{_ASYNC}.staleness_threshold", f"{_ASYNC}.trigger_parameter_sync_step"
REQUIRED, PARTIAL = f"{_ASYNC}.require_batches", f"{_ASYNC}.partial_rollout"
TOTAL = "rollout.total_rollout_steps"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_PROXIMAL = f"{_ASYNC}.compute_prox_log_prob"
_HYBRID, _GENERATED = "actor_rollout_ref.hybrid_engine", "data.gen_batch_size"


def is_bypass(foreign: ForeignValues) -> bool:
    """Whether the sampler's log-probs are the old ones: verl's bypass mode, which has losses of its own. The first
    versions of the fully asynchronous trainer have a key that says the opposite."""
    return bool(foreign[_BYPASS]) and not foreign[_PROXIMAL]


def is_fully_async(foreign: ForeignValues) -> bool:
    """Whether the configuration is that of verl's fully asynchronous trainer, which has a program of its own."""
    named = any(key in foreign.written for key in (STALENESS, INTERVAL, REQUIRED))
    return named or (TOTAL in foreign.written and foreign[TOTAL] is not None)


def synchronous(foreign: ForeignValues) -> str | None:
    """Keys of the fully asynchronous trainer that another one ignores."""
    return None if is_fully_async(foreign) else "the trainer is not the fully asynchronous one"


def has_mini_batch_steps(foreign: ForeignValues) -> bool:
    """Whether the trainer takes mini-batches from a queue, each a step or a part of one."""
    return is_fully_async(foreign) or _is_separate(foreign)


def fully_async(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer takes the number of prompts of a step from the mini-batches."""
    if not is_fully_async(foreign):
        return None
    return f"the fully asynchronous trainer trains on {MINI_BATCH} * {REQUIRED} prompts at a time"


def steps_alone(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer does not read the number of training steps."""
    return f"the fully asynchronous trainer counts {TOTAL} instead" if is_fully_async(foreign) else None


def unfiltered(foreign: ForeignValues) -> str | None:
    """verl's fully asynchronous trainer does not replace groups."""
    return "the fully asynchronous trainer trains on all groups" if is_fully_async(foreign) else None


def tasks_per_step(foreign: ForeignValues) -> int:
    """Prompts that the trainer takes from the queue at a time."""
    if not is_fully_async(foreign):
        return _v1_tasks_per_step(foreign)
    return int(_positive(foreign, MINI_BATCH) * _positive(foreign, REQUIRED))


def steps_per_version(foreign: ForeignValues) -> int:
    """Steps between two publications of the weights; 1 in verl's synchronous trainer."""
    if is_fully_async(foreign):
        return int(_positive(foreign, INTERVAL))
    return v1_steps_per_version(foreign)


def _positive(foreign: ForeignValues, key: str) -> float:
    value = foreign[key]
    if value < 1:
        raise foreign.error_for(key, f"{key} is {value}; write a positive number.")
    return float(value)


def max_outstanding(foreign: ForeignValues) -> int:
    """Prompts that verl samples with one version, and those that are left when the version is published."""
    if foreign[STALENESS] < 0:
        raise foreign.error_for(
            STALENESS, f"{STALENESS} is {foreign[STALENESS]}; write 0 or a positive number."
        )
    return int(tasks_per_step(foreign) * (foreign[STALENESS] + 1) * steps_per_version(foreign))


def max_staleness(foreign: ForeignValues) -> int:
    """Greatest age in steps that lets the explorer sample no prompt that verl would hold back."""
    return max_outstanding(foreign) // tasks_per_step(foreign) - 1


def synchronizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the explorer: it takes the newest weights, and waits only where its prompts would exceed the staleness."""
    if foreign.is_set(_HYBRID) and foreign[_HYBRID]:
        raise foreign.error_for(
            _HYBRID,
            f"{_HYBRID} is True, and the fully asynchronous trainer ({_ASYNC}) stops at its start unless it is False; "
            f"write {_HYBRID}=False.",
        )
    if foreign[_GENERATED] not in (None, 1):
        raise foreign.error_for(
            _GENERATED,
            f"{_GENERATED} is {foreign[_GENERATED]}, and the fully asynchronous trainer ({_ASYNC}) samples prompt by "
            f"prompt; write {_GENERATED}=1.",
        )
    return {
        "synchronizer.type": "collective",
        "synchronizer.style.type": "bounded",
        "synchronizer.style.every": f"{steps_per_version(foreign)} steps",
        "synchronizer.style.max_staleness": f"{max_staleness(foreign)} steps",
        "synchronizer.style.pause_mode": "abort" if foreign[PARTIAL] else "finish",
    }


def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration: the trainer stops where the prompts that are left do not fill a step."""
    epochs, prompts = foreign["trainer.total_epochs"], foreign[TOTAL]
    if prompts is None:
        return {"trainer.duration": f"{epochs} epochs", "trainer.stop_after": None}
    steps = int(prompts) // tasks_per_step(foreign)
    if steps < 1:
        raise foreign.error_for(
            TOTAL,
            f"{TOTAL} is {prompts}, and a step takes {tasks_per_step(foreign)} prompts ({MINI_BATCH} * {REQUIRED}), so "
            "that the run would end before its first step; write a greater number.",
        )
    return {"trainer.duration": f"{steps} steps", "trainer.stop_after": f"{epochs} epochs"}


def staleness_notice(foreign: ForeignValues) -> str | None:
    """Notice of a bound below verl's, where verl's is not a whole number of steps."""
    size, oldest = tasks_per_step(foreign), max_staleness(foreign)
    more = max_outstanding(foreign) - (oldest + 1) * size
    if not more:
        return None
    return (
        f"weights are at most {oldest} steps old, where verl also lets {more} of the {size} prompts of the next step "
        "be sampled with them: Strop's bound counts whole steps, and never exceeds verl's"
    )


def unwritten_ratio_notice(foreign: ForeignValues) -> str | None:
    """The notice of other old log-probs, where no key of the configuration decides about them."""
    return None if foreign.is_set(_BYPASS) else ratio_notice(foreign)


def ratio_notice(foreign: ForeignValues) -> str | None:
    """Notice of other old log-probs, where verl computes them with the weights of the last version."""
    if is_bypass(foreign):
        return None
    interval = steps_per_version(foreign)
    if interval == 1:
        return None
    return (
        "the ratio is that to the weights at the start of each step; verl's asynchronous trainer computes the "
        f"old log-probs of all {interval} steps of a version with the weights at the start of the first"
    )


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
    distillation_alone, unfiltered, unless("algorithm.filter_groups.enable", True), compares_one
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


custom_class = unless_null("data.custom_cls.path")


def rule_reward(foreign: ForeignValues) -> str | None:
    """With a reward model, verl's reward managers use its score instead of a reward function's."""
    return (
        "reward_model.enable is True, so only the reward model's score counts"
        if not reward_model(foreign)
        else None
    )


custom_function = any_inactive(rule_reward, unless_null("custom_reward_function.path"))
