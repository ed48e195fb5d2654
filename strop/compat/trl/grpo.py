"""Ledger of TRL's GRPO: GRPOConfig with the arguments of `trl grpo`."""

from __future__ import annotations

from strop.compat.ledger.key_mapping import always, mapped, no_effect, only, placement, refused, unless
from strop.compat.ledger.placement_notes import NATIVE_SAMPLER
from strop.compat.ledger.table import Ledger
from strop.compat.ledger.value_types import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING,
    NUMBER,
    NUMBER_LIST,
    STRING_OR_LIST,
    nullable,
    one_of,
)
from strop.compat.trl import batches
from strop.compat.trl import grpo_converters as converters
from strop.compat.trl.shared import batch_rows, dataset_rows, model_rows
from strop.compat.trl.training_arguments import training_rows
from strop.compat.trl.vllm import VLLM_CORRECTION, VLLM_ENGINE

_LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo")
_LACKING_LOSSES = ("luspo", "vespo")
TASKS = ("trainer.tasks_per_step", "trainer.tasks_per_update")
_SAPO = unless("loss_type", "sapo")
_LOSS = (
    mapped("beta", 0.0, "algorithm.kl_loss.coef", read=converters.kl, note="0 is no KL term"),
    mapped(
        "use_bias_correction_kl",
        True,
        "algorithm.kl_loss.weight_by_ratio",
        "algorithm.kl_loss.ratio_level",
        read=converters.kl,
        inactive=converters.without_kl,
        note="the ratio of importance_sampling_level",
    ),
    mapped(
        "loss_type",
        "dapo",
        "algorithm.policy_loss.type",
        "algorithm.aggregation",
        read=converters.loss,
        value_type=one_of(*_LOSSES, *_LACKING_LOSSES),
    ),
    mapped(
        "importance_sampling_level",
        "token",
        "algorithm.policy_loss.type",
        read=converters.loss,
        value_type=one_of("token", "sequence"),
    ),
    mapped("epsilon", 0.2, "algorithm.policy_loss.clip_low", read=converters.loss),
    mapped(
        "epsilon_high",
        None,
        "algorithm.policy_loss.clip_high",
        read=converters.loss,
        value_type=nullable(NUMBER),
        note="null means epsilon; under cispo the maximum ratio",
    ),
    mapped(
        "delta",
        None,
        "algorithm.policy_loss.dual_clip",
        read=converters.loss,
        value_type=nullable(NUMBER),
        inactive=unless("loss_type", "dapo", "grpo", "dr_grpo", "bnpo"),
    ),
    mapped(
        "sapo_temperature_pos", 1.0, "algorithm.policy_loss.tau_pos", read=converters.loss, inactive=_SAPO
    ),
    mapped(
        "sapo_temperature_neg", 1.05, "algorithm.policy_loss.tau_neg", read=converters.loss, inactive=_SAPO
    ),
    *(
        no_effect(f"vespo_{name}", default, "it is an option of the loss vespo, which Strop does not have")
        for name, default in (("k_pos", 2.0), ("lambda_pos", 3.0), ("k_neg", 3.0), ("lambda_neg", 2.0))
    ),
    mapped(
        "scale_rewards",
        "group",
        "algorithm.divide_by_std",
        "algorithm.std_over",
        read=converters.advantages,
        value_type=one_of("group", "batch", "none", True, False),
    ),
    refused(
        "multi_objective_aggregation",
        "sum_then_normalize",
        "Strop sums the weighted parts of the reward before it normalizes them; leave it sum_then_normalize",
    ),
    mapped("mask_truncated_completions", False, "algorithm.mask_truncated"),
    mapped("entropy_coef", 0.0, "algorithm.entropy_coef"),
    refused("use_adaptive_entropy", False, "write entropy_coef, which is constant"),
    *(
        no_effect(key, default, "it is an option of use_adaptive_entropy")
        for key, default in (
            ("entropy_coef_min", 0.0),
            ("entropy_coef_max", 1.0),
            ("entropy_coef_delta", 0.005),
            ("entropy_target", 0.2),
        )
    ),
    refused(
        "top_entropy_quantile",
        1.0,
        "Strop trains on all tokens of a response; leave it 1.0",
        supported=only(1.0),
    ),
    refused("off_policy_mask_threshold", None, "Strop trains on all completions of a group; leave it null"),
    refused("sync_ref_model", False, "the reference is the initial model; leave it False"),
    no_effect("ref_model_mixup_alpha", 0.6, "it is an option of sync_ref_model"),
    no_effect("ref_model_sync_steps", 512, "it is an option of sync_ref_model"),
    refused("disable_dropout", False, "write lora_dropout 0; models have no other dropout here"),
    refused(
        "cast_lm_head_to_fp32",
        False,
        "log-probs are computed in float32, with weights of the dtype; leave it False",
    ),
)
SAMPLING = (
    mapped("num_generations", 8, "algorithm.rollouts_per_task", read=batches.rollout_batch),
    mapped(
        "num_generations_eval",
        None,
        "data.eval.0.rollouts_per_task",
        read=converters.dataset,
        value_type=nullable(INTEGER),
        note="null means num_generations",
    ),
    mapped(
        "generation_batch_size",
        None,
        "trainer.tasks_per_step",
        read=batches.rollout_batch,
        value_type=nullable(INTEGER),
        note="counts completions",
    ),
    mapped(
        "steps_per_generation",
        None,
        "trainer.tasks_per_step",
        read=batches.rollout_batch,
        value_type=nullable(INTEGER),
        note="null means gradient_accumulation_steps",
    ),
    mapped("num_iterations", 1, "trainer.epochs_per_step", read=batches.rollout_batch),
    mapped("max_completion_length", 512, "data.max_response_tokens"),
    mapped(
        "max_prompt_length",
        None,
        "data.max_prompt_tokens",
        read=converters.prompt_length,
        value_type=nullable(INTEGER),
        note="of earlier versions; without it a prompt of more than 1024 tokens ends the run, or one that exceeds "
        "vllm_max_model_length with its completion",
    ),
    mapped("temperature", 1.0, "rollout.sampling.temperature", read=converters.sampling),
    mapped("top_p", 1.0, "rollout.sampling.top_p", read=converters.sampling),
    mapped("top_k", 0, "rollout.sampling.top_k", read=converters.sampling, value_type=nullable(INTEGER)),
    mapped("min_p", None, "rollout.sampling.min_p", read=converters.sampling, value_type=nullable(NUMBER)),
    mapped("repetition_penalty", 1.0, "rollout.sampling.repetition_penalty", read=converters.sampling),
    mapped(
        "chat_template_kwargs",
        None,
        "data.chat_template_args",
        read=converters.template,
        value_type=nullable(MAPPING),
    ),
    refused("generation_kwargs", None, "write temperature, top_p, top_k, min_p and repetition_penalty"),
    refused("max_tool_calling_iterations", None, "write rollout.workflow in a run file"),
    mapped("shuffle_dataset", True, "data.shuffle", value_type=nullable(BOOLEAN), read=converters.shuffling),
)
REWARD = (
    mapped(
        "reward_funcs",
        None,
        "reward.functions",
        read=converters.reward,
        value_type=nullable(STRING_OR_LIST),
        note="dotted paths, or file.py:name",
    ),
    mapped(
        "reward_weights", None, "reward.functions", read=converters.reward, value_type=nullable(NUMBER_LIST)
    ),
    mapped("reward_model_name_or_path", None, "reward.models", read=converters.reward, value_type=ANY),
)
SAMPLER = (
    refused("vllm_structured_outputs_regex", None, "responses are sampled without a grammar; leave it null"),
    *(
        placement(key, default, NATIVE_SAMPLER, supported=only(default), value_type=ANY)
        for key, default in (
            ("use_transformers_continuous_batching", False),
            ("use_transformers_paged", False),
        )
    ),
    no_effect("transformers_continuous_batching_config", None, "the native sampler samples", value_type=ANY),
    *(
        placement(key, default, "it changes no result", supported=always, value_type=ANY)
        for key, default in (("ds3_gather_for_generation", True), ("cache_implementation", None))
    ),
    *(
        no_effect(key, default, "samples are in the report of every run", value_type=ANY)
        for key, default in (
            ("log_completions", False),
            ("log_multimodal", True),
            ("num_completions_to_print", None),
            ("log_unique_prompts", False),
            ("log_completions_hub_repo", None),
        )
    ),
)
LEDGER = Ledger(
    "trl",
    (
        *model_rows(),
        *dataset_rows(converters.dataset),
        *REWARD,
        *SAMPLING,
        *_LOSS,
        *batch_rows(batches.rollout_batch, *TASKS),
        no_effect("dataloader_drop_last", False, "tasks that do not fill a step are left out, as in TRL"),
        *training_rows(1e-6, remove_unused_columns=False),
        *VLLM_ENGINE,
        *VLLM_CORRECTION,
        *SAMPLER,
    ),
)
