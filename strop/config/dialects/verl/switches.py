"""The keys of verl's that decide whether others count."""

from __future__ import annotations

from strop.config.dialects.row import either, unless
from strop.config.dialects.theirs import Theirs

gae = unless("algorithm.adv_estimator", "gae")
ratio = unless("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla", "gspo")
dual_clip = unless("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla")
kl_loss = unless("actor_rollout_ref.actor.use_kl_loss", True)
kl_in_reward = unless("algorithm.use_kl_in_reward", True)
adaptive_kl = either(kl_in_reward, unless("algorithm.kl_ctrl.type", "adaptive"))
by_std = unless("algorithm.adv_estimator", "grpo", "grpo_passk")
discounted = unless("algorithm.adv_estimator", "gae", "reinforce_plus_plus")
shuffle = unless("actor_rollout_ref.actor.shuffle", True)
reward_model = unless("reward_model.enable", True)
megatron = unless("actor_rollout_ref.actor.strategy", "megatron")
dynamic_batch = unless("actor_rollout_ref.actor.use_dynamic_bsz", True)
fixed_batch = unless("actor_rollout_ref.actor.use_dynamic_bsz", False)
rollout_dynamic = unless("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", True)
rollout_fixed = unless("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", False)
ref_dynamic = unless("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", True)
ref_fixed = unless("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", False)
fsdp = unless("actor_rollout_ref.actor.strategy", "fsdp", "fsdp2")
cosine = either(fsdp, unless("actor_rollout_ref.actor.optim.warmup_style", "cosine"))
falling = either(
    megatron,
    unless("actor_rollout_ref.actor.optim.lr_decay_style", "linear", "cosine", "inverse_square_root", "WSD"),
)
wsd = either(megatron, unless("actor_rollout_ref.actor.optim.lr_decay_style", "WSD"))
sampled_validation = unless("actor_rollout_ref.rollout.val_kwargs.do_sample", True)
resume_path = unless("trainer.resume_mode", "resume_path")
keep_overlong = unless("data.filter_overlong_prompts", False)
vllm = unless("actor_rollout_ref.rollout.name", "vllm")
multi_turn = unless("actor_rollout_ref.rollout.multi_turn.enable", True)
filter_groups = unless("algorithm.filter_groups.enable", True)
overlong_buffer = unless("reward_model.reward_kwargs.overlong_buffer_cfg.enable", True)
sglang = unless("actor_rollout_ref.rollout.name", "sglang")


def reference(theirs: Theirs) -> str | None:
    """The reference model is there for a KL term."""
    return "no KL term is on, so there is no reference" if kl_loss(theirs) and kl_in_reward(theirs) else None


def lora(theirs: Theirs) -> str | None:
    """Rank 0 trains the whole model."""
    rank = theirs["actor_rollout_ref.model.lora_rank"]
    return None if rank > 0 else f"actor_rollout_ref.model.lora_rank is {rank}"


def warmup_ratio(theirs: Theirs) -> str | None:
    """Steps come before the ratio; a negative number of them leaves it to the ratio."""
    steps = theirs["actor_rollout_ref.actor.optim.lr_warmup_steps"]
    return None if steps is None or steps < 0 else f"lr_warmup_steps is {steps} and comes first"


def epochs(theirs: Theirs) -> str | None:
    """Steps beat epochs."""
    steps = theirs["trainer.total_training_steps"]
    return None if steps is None else f"trainer.total_training_steps is {steps}, and steps beat epochs"


def custom_function(theirs: Theirs) -> str | None:
    """A function's name needs the file it is in."""
    if not reward_model(theirs):
        return rule(theirs)
    path = theirs["custom_reward_function.path"]
    return None if path is not None else "custom_reward_function.path is null"


def custom_class(theirs: Theirs) -> str | None:
    """A class's name needs the file it is in."""
    return None if theirs["data.custom_cls.path"] is not None else "data.custom_cls.path is null"


def rule(theirs: Theirs) -> str | None:
    """verl's reward managers take a model's score, where there is one, in place of any function's."""
    return (
        "reward_model.enable is True, and then its score alone counts" if not reward_model(theirs) else None
    )
