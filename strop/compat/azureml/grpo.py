"""Component `group_relative_policy_optimization` of AzureML: TRL's GRPO with fixed rewards and a fixed
prompt."""

from __future__ import annotations

from strop.compat.azureml import grpo_converters as converters
from strop.compat.azureml import grpo_optimizer
from strop.compat.azureml.component import Component, ComponentInput, component_input
from strop.compat.azureml.deepspeed import DEEPSPEED, ENGINE_FIELDS, engine, unless_here
from strop.compat.azureml.model_folder import model_folder_converter
from strop.compat.ledger.key_mapping import (
    UNSET,
    KeyMapping,
    always,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
)
from strop.compat.ledger.placement_notes import NATIVE_SAMPLER, NO_DEEPSPEED, NO_SHARDS, fused_kernels
from strop.compat.ledger.table import Ledger
from strop.compat.ledger.value_types import ANY, one_of
from strop.config.load.job import ComponentOutput

_DATA: tuple[ComponentInput, ...] = (
    component_input(
        "uri_file", mapped("dataset_train_split", UNSET, "data.train.path", read=converters.tasksets)
    ),
    component_input(
        "uri_file",
        mapped(
            "dataset_validation_split",
            UNSET,
            "data.eval.0.path",
            read=converters.tasksets,
            inactive=converters.evaluation_off,
            note="used if do_eval or eval_strategy enables evaluation",
        ),
    ),
    component_input(
        "uri_folder",
        mapped(
            "model_name_or_path",
            UNSET,
            "model.path",
            "model.tokenizer",
            read=model_folder_converter("model_name_or_path"),
            note="a Hugging Face folder, an MLflow model, or an output of the import component with either inside",
        ),
        required=True,
    ),
    component_input(
        "uri_file",
        placement(
            "deepspeed_config",
            UNSET,
            NO_DEEPSPEED,
            supported=unless_here,
            value_type=ANY,
            fields=ENGINE_FIELDS,
            read=engine,
        ),
        required=True,
    ),
    component_input("string", mapped("dataset_name", "", "data.train.path", read=converters.tasksets)),
    component_input(
        "string",
        mapped(
            "dataset_prompt_column",
            "problem",
            "data.train.prompt",
            "data.eval.0.prompt",
            read=converters.tasksets,
        ),
        required=True,
    ),
    component_input(
        "string",
        mapped(
            "apply_lora",
            "true",
            "model.lora",
            read=converters.lora,
            value_type=one_of("true", "false"),
            note="LoRA of rank 16 on the q, k and v projections",
        ),
        enum=("true", "false"),
    ),
)
_ALGORITHM: tuple[ComponentInput, ...] = (
    component_input(
        "number", mapped("beta", 0.0, "algorithm.kl_loss", "algorithm.kl_loss.coef", read=converters.kl)
    ),
    component_input(
        "number",
        mapped(
            "epsilon",
            0.5,
            "algorithm.policy_loss.clip_low",
            "algorithm.policy_loss.clip_high",
            read=converters.loss,
        ),
    ),
    component_input(
        "integer",
        mapped("num_iterations", 3, "trainer.epochs_per_step", note="multiplies updates, not rollouts"),
    ),
    component_input(
        "integer", mapped("num_generations", 4, "algorithm.rollouts_per_task", read=converters.batches)
    ),
)
_TRAINING: tuple[ComponentInput, ...] = (
    component_input(
        "number",
        mapped(
            "num_train_epochs",
            4.0,
            "trainer.duration",
            read=converters.duration,
            inactive=converters.epochs_overridden,
        ),
    ),
    component_input(
        "integer",
        mapped("max_steps", -1, "trainer.duration", read=converters.duration, note="counts updates"),
    ),
    component_input(
        "integer",
        mapped(
            "per_device_train_batch_size",
            8,
            "trainer.tasks_per_step",
            "trainer.microbatch",
            read=converters.batches,
            note="counts completions",
        ),
    ),
    component_input(
        "integer",
        placement(
            "per_device_eval_batch_size",
            8,
            "the sampler chooses the number of concurrent responses",
            supported=always,
        ),
    ),
    component_input(
        "integer", mapped("gradient_accumulation_steps", 1, "trainer.tasks_per_step", read=converters.batches)
    ),
    component_input(
        "number", mapped("learning_rate", 3e-6, "trainer.optimizer.lr", read=grpo_optimizer.optimizer)
    ),
    component_input(
        "number",
        mapped(
            "warmup_ratio",
            0.1,
            "trainer.schedule.warmup",
            "trainer.schedule.warmup_rounding",
            read=grpo_optimizer.schedule,
            inactive=grpo_optimizer.no_warmup,
        ),
    ),
    component_input(
        "number",
        mapped(
            "max_grad_norm",
            1.0,
            "trainer.max_grad_norm",
            read=grpo_optimizer.grad_norm,
            note="0 means no bound",
        ),
    ),
    component_input(
        "string",
        mapped(
            "optim",
            "adamw_torch",
            "trainer.optimizer.type",
            read=grpo_optimizer.optimizer,
            value_type=one_of(*grpo_optimizer.ALL_OPTIMIZERS),
        ),
        enum=grpo_optimizer.ALL_OPTIMIZERS,
    ),
    component_input(
        "string",
        mapped(
            "lr_scheduler_type",
            "cosine",
            "trainer.schedule.type",
            read=grpo_optimizer.schedule,
            value_type=one_of(*grpo_optimizer.ALL_SCHEDULES),
            note="counts updates",
        ),
        enum=grpo_optimizer.ALL_SCHEDULES,
    ),
)
_GENERATION: tuple[ComponentInput, ...] = (
    component_input(
        "integer", mapped("max_prompt_length", 512, "data.max_prompt_tokens", read=converters.lengths)
    ),
    component_input(
        "integer", mapped("max_completion_length", 256, "data.max_response_tokens", read=converters.lengths)
    ),
    component_input(
        "number",
        mapped(
            "temperature",
            1.0,
            "rollout.sampling.temperature",
            "data.eval.0.sampling.temperature",
            read=converters.sampling,
        ),
    ),
    component_input(
        "number",
        mapped(
            "top_p", 1.0, "rollout.sampling.top_p", "data.eval.0.sampling.top_p", read=converters.sampling
        ),
    ),
)
_REST: tuple[ComponentInput, ...] = (
    component_input(
        "boolean",
        mapped(
            "do_eval",
            False,
            "data.eval",
            read=converters.tasksets,
            note="without eval_strategy, evaluates at the end only",
        ),
    ),
    component_input(
        "string",
        mapped(
            "eval_strategy",
            "no",
            "evaluate.every",
            "checkpoint.best",
            read=converters.evaluation_schedule,
            value_type=one_of("no", "disable", "steps", "epoch"),
            note="each evaluation saves a checkpoint; the final model is the one with the best reward",
        ),
        enum=("no", "steps", "epoch"),
        also=("disable",),
    ),
    component_input(
        "integer",
        mapped(
            "eval_steps",
            1,
            "evaluate.every",
            read=converters.evaluation_schedule,
            inactive=converters.by_steps,
            note="counts updates",
        ),
    ),
    component_input(
        "number", no_effect("logging_steps", 5.0, "Strop always writes the metrics of every step")
    ),
    component_input(
        "integer",
        mapped("save_steps", 100, "checkpoint.every", read=converters.checkpointing, note="counts updates"),
    ),
    component_input("integer", mapped("save_total_limit", 20, "checkpoint.keep")),
    component_input("boolean", mapped("shuffle_dataset", True, "data.shuffle")),
    component_input(
        "boolean",
        fused_kernels("use_liger_kernel"),
    ),
    component_input(
        "number", placement("vllm_gpu_memory_utilization", 0.3, NATIVE_SAMPLER, supported=always)
    ),
    component_input(
        "integer",
        placement("vllm_tensor_parallel_size", 1, NO_SHARDS, supported=only(1)),
    ),
)
_INPUTS = (*_DATA, *_ALGORITHM, *_TRAINING, *_GENERATION, *_REST)
_FOLDER: tuple[KeyMapping, ...] = not_on_page(
    mapped("output_model_path", UNSET, "folder", "output", read=converters.folder)
)
GRPO = Component(
    "grpo",
    "group_relative_policy_optimization",
    _INPUTS,
    (
        ComponentOutput("mlflow_model_folder", "mlflow_model", "mlflow"),
        ComponentOutput("output_model_path", "uri_folder", "run"),
    ),
    Ledger("grpo", (*(part.row for part in _INPUTS), *_FOLDER, *DEEPSPEED)),
    "output_model_path",
)
