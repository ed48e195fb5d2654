"""Ledger rows of verl's `actor_rollout_ref.actor`."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import (
    any_inactive,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
)
from strop.compat.ledger.placement_notes import ONE_TRAINER
from strop.compat.ledger.value_types import (
    ANY,
    BETAS,
    INTEGER,
    STRING,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.verl import layout, recomputation, router_loss, switches
from strop.compat.verl.actor_converters import (
    betas,
    clipping,
    entropy,
    epochs,
    kl_loss,
    micro_batch,
    precision,
    schedule,
)
from strop.compat.verl.algorithm_converters import KL_LOSS
from strop.compat.verl.checkpoint_contents import (
    loaded_contents,
    saved_contents,
    without_extra,
    without_optimizer,
)
from strop.compat.verl.data import batches
from strop.compat.verl.lr_schedule import OVERWRITTEN
from strop.compat.verl.page_differences import clip_ratio_alone
from strop.compat.verl.parallelism import megatron_parallelism_rows
from strop.compat.verl.parameter_dtypes import PARAMETER_DTYPES, half_parameters
from strop.compat.verl.policy_loss import ROWS as POLICY_LOSS
from strop.compat.verl.policy_loss import bounds_inactive, policy_loss

ROWS = (
    placement(
        "actor_rollout_ref.actor.strategy",
        "fsdp",
        ONE_TRAINER,
        value_type=STRING,
        supported=only("fsdp", "fsdp2"),
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        256,
        "trainer.tasks_per_update",
        read=batches,
        inactive=switches.spin_alone,
        note="counts prompts",
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_micro_batch_size",
        None,
        "trainer.microbatch",
        read=micro_batch,
        value_type=nullable(INTEGER),
        inactive=switches.fixed_batch,
        note="total number of sequences on all GPUs",
        deprecated="write ppo_micro_batch_size_per_gpu, the number per GPU",
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        8,
        "trainer.microbatch",
        read=micro_batch,
        inactive=switches.fixed_batch,
        note="counts sequences",
    ),
    mapped("actor_rollout_ref.actor.use_dynamic_bsz", False, "trainer.microbatch", read=micro_batch),
    mapped(
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        16384,
        "trainer.microbatch",
        read=micro_batch,
        inactive=switches.dynamic_batch,
        note="counts tokens",
    ),
    mapped(
        "actor_rollout_ref.actor.grad_clip",
        1.0,
        "trainer.max_grad_norm",
        read=clipping,
        inactive=switches.fsdp,
    ),
    mapped(
        "actor_rollout_ref.actor.clip_ratio",
        0.2,
        "algorithm.policy_loss.clip_low",
        "algorithm.policy_loss.clip_high",
        "algorithm.policy_loss.divergence_low",
        "algorithm.policy_loss.divergence_high",
        read=policy_loss,
        inactive=bounds_inactive,
        warn=clip_ratio_alone,
        note="the page's bound on both sides; in verl's code clip_ratio_low and clip_ratio_high, 0.2 where not "
        "set, take precedence; Strop uses clip_ratio where they are not set",
    ),
    mapped(
        "actor_rollout_ref.actor.entropy_coeff",
        0.0,
        "algorithm.entropy_coef",
        read=entropy,
        inactive=any_inactive(switches.distillation_alone, switches.spin_alone),
    ),
    mapped(
        "actor_rollout_ref.actor.use_kl_loss",
        False,
        "algorithm.kl_loss",
        read=kl_loss,
        inactive=any_inactive(switches.distillation_alone, switches.spin_alone),
    ),
    placement(
        "actor_rollout_ref.actor.use_torch_compile", True, "nothing is compiled", supported=only(False)
    ),
    mapped(
        "actor_rollout_ref.actor.kl_loss_coef",
        0.001,
        "algorithm.kl_loss.coef",
        read=kl_loss,
        inactive=switches.kl_loss,
    ),
    mapped(
        "actor_rollout_ref.actor.kl_loss_type",
        "low_var_kl",
        "algorithm.kl_loss.estimator",
        read=kl_loss,
        value_type=one_of(*KL_LOSS),
        inactive=switches.kl_loss,
    ),
    mapped(
        "actor_rollout_ref.actor.ppo_epochs",
        1,
        "trainer.epochs_per_step",
        read=epochs,
        inactive=switches.spin_alone,
    ),
    mapped(
        "actor_rollout_ref.actor.data_loader_seed",
        None,
        "trainer.shuffle_seed",
        value_type=nullable(INTEGER),
        inactive=switches.shuffle,
        note="null means data.seed",
    ),
    mapped("actor_rollout_ref.actor.shuffle", False, "trainer.shuffle_each_epoch"),
    layout.ULYSSES,
    mapped("actor_rollout_ref.actor.optim.lr", 1e-6, "trainer.optimizer.lr"),
    mapped(
        "actor_rollout_ref.actor.optim.lr_warmup_steps",
        -1,
        "trainer.schedule.warmup",
        read=schedule,
        value_type=nullable(INTEGER),
        note="a negative value means that the ratio applies",
    ),
    mapped(
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        0.0,
        "trainer.schedule.warmup",
        read=schedule,
        inactive=switches.warmup_ratio,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.min_lr_ratio",
        0.0,
        "trainer.schedule.min_ratio",
        read=schedule,
        inactive=switches.cosine,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.num_cycles",
        0.5,
        "trainer.schedule.cycles",
        read=schedule,
        inactive=switches.cosine,
    ),
    mapped(
        "actor_rollout_ref.actor.optim.warmup_style",
        "constant",
        "trainer.schedule.type",
        read=schedule,
        value_type=one_of("constant", "cosine"),
        inactive=switches.fsdp,
    ),
    no_effect(
        "actor_rollout_ref.actor.optim.total_training_steps", -1, OVERWRITTEN, value_type=nullable(INTEGER)
    ),
    layout.MIN_PARAMETERS,
    *layout.OFFLOAD,
    layout.SIZE,
    mapped(
        "actor_rollout_ref.actor.checkpoint.save_contents",
        ["model", "optimizer", "extra"],
        "checkpoint.save_optimizer",
        "checkpoint.export",
        read=saved_contents,
        value_type=STRING_OR_LIST,
        warn=without_optimizer,
        note="hf_model also exports the model as a Hugging Face folder",
    ),
    mapped(
        "actor_rollout_ref.actor.checkpoint.load_contents",
        "${actor_rollout_ref.actor.checkpoint.save_contents}",
        "checkpoint.resume_optimizer",
        read=loaded_contents,
        value_type=STRING_OR_LIST,
        warn=without_extra,
        note="without optimizer, a resumed run starts with a fresh optimizer state",
    ),
    *POLICY_LOSS,
    *not_on_page(
        mapped(
            "actor_rollout_ref.actor.optim.betas",
            [0.9, 0.999],
            "trainer.optimizer.betas",
            read=betas,
            value_type=BETAS,
            inactive=switches.fsdp,
        ),
        mapped(
            "actor_rollout_ref.actor.fsdp_config.model_dtype",
            "fp32",
            "model.dtype",
            "model.compute_dtype",
            read=precision,
            value_type=one_of(*PARAMETER_DTYPES),
            warn=half_parameters("actor_rollout_ref.actor.fsdp_config.model_dtype"),
            note="dtype of the parameters",
        ),
        mapped(
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
            "bf16",
            "model.compute_dtype",
            read=precision,
            value_type=one_of("bf16", "bfloat16", "fp32", "float32"),
            note="dtype of the computation",
        ),
        no_effect(
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",
            "fp32",
            "buffers, such as rotary frequencies, stay in float32",
            value_type=ANY,
        ),
        *layout.NOT_ON_PAGE,
        *router_loss.ROWS,
        *recomputation.MEGATRON_ROWS,
        *megatron_parallelism_rows("actor_rollout_ref.actor.megatron", switches.megatron, ()),
    ),
)
