"""AzureML's `group_relative_policy_optimization`: TRL's GRPO with rewards and a prompt of its own."""

from __future__ import annotations

from strop.config.dialects.component import grpo_learning as learning
from strop.config.dialects.component import grpo_meaning as meaning
from strop.config.dialects.component.deepspeed import DEEPSPEED
from strop.config.dialects.component.inputs import Component, Input, Output, own
from strop.config.dialects.component.model_folder import model_at
from strop.config.dialects.row import (
    ANY,
    UNSET,
    Row,
    beyond_the_page,
    mapped,
    never,
    no_effect,
    one_of,
    only,
    placement,
)
from strop.config.dialects.theirs import Ledger

_NATIVE = "the native sampler needs none of it"

_DATA: tuple[Input, ...] = (
    own("uri_file", mapped("dataset_train_split", UNSET, "data.train.path", read=meaning.tasksets)),
    own(
        "uri_file",
        mapped(
            "dataset_validation_split",
            UNSET,
            "data.eval.0.path",
            read=meaning.tasksets,
            off=meaning.measured,
            note="measured where do_eval or eval_strategy say so",
        ),
    ),
    own(
        "uri_folder",
        mapped(
            "model_name_or_path",
            UNSET,
            "model.path",
            "model.tokenizer",
            read=model_at("model_name_or_path"),
            note="a Hugging Face folder, an MLflow model, or the import component's output around either",
        ),
        required=True,
    ),
    own(
        "uri_file",
        placement("deepspeed_config", UNSET, "one process trains without DeepSpeed", can=never, kind=ANY),
        required=True,
    ),
    own("string", mapped("dataset_name", "", "data.train.path", read=meaning.tasksets)),
    own(
        "string",
        mapped(
            "dataset_prompt_column",
            "problem",
            "data.train.prompt",
            "data.eval.0.prompt",
            read=meaning.tasksets,
        ),
        required=True,
    ),
    own(
        "string",
        mapped(
            "apply_lora",
            "true",
            "model.lora",
            read=meaning.lora,
            kind=one_of("true", "false"),
            note="of rank 16, on the q, k and v projections",
        ),
        enum=("true", "false"),
    ),
)
_ALGORITHM: tuple[Input, ...] = (
    own("number", mapped("beta", 0.0, "algorithm.kl_loss", "algorithm.kl_loss.coef", read=meaning.kl)),
    own(
        "number",
        mapped(
            "epsilon",
            0.5,
            "algorithm.policy_loss.clip_low",
            "algorithm.policy_loss.clip_high",
            read=meaning.loss,
        ),
    ),
    own(
        "integer",
        mapped("num_iterations", 3, "trainer.passes", note="multiplies updates, not rollouts"),
    ),
    own("integer", mapped("num_generations", 4, "algorithm.rollouts_per_task", read=meaning.batches)),
)
_TRAINING: tuple[Input, ...] = (
    own(
        "number",
        mapped("num_train_epochs", 4.0, "trainer.duration", read=meaning.duration, off=meaning.epochs),
    ),
    own(
        "integer",
        mapped("max_steps", -1, "trainer.duration", read=meaning.duration, note="counts updates"),
    ),
    own(
        "integer",
        mapped(
            "per_device_train_batch_size",
            8,
            "trainer.tasks_per_step",
            "trainer.microbatch",
            read=meaning.batches,
            note="counts completions",
        ),
    ),
    own(
        "integer",
        placement(
            "per_device_eval_batch_size", 8, "the sampler chooses how many answers are under way", can=never
        ),
    ),
    own("integer", mapped("gradient_accumulation_steps", 1, "trainer.tasks_per_step", read=meaning.batches)),
    own("number", mapped("learning_rate", 3e-6, "trainer.optimizer.lr", read=learning.optimizer)),
    own(
        "number",
        mapped("warmup_ratio", 0.1, "trainer.schedule.warmup", read=learning.schedule, off=learning.warms_up),
    ),
    own(
        "number",
        mapped(
            "max_grad_norm", 1.0, "trainer.max_grad_norm", read=learning.grad_norm, note="0 bounds nothing"
        ),
    ),
    own(
        "string",
        mapped(
            "optim",
            "adamw_torch",
            "trainer.optimizer.type",
            read=learning.optimizer,
            kind=one_of(*learning.ALL_OPTIMIZERS),
        ),
        enum=learning.ALL_OPTIMIZERS,
    ),
    own(
        "string",
        mapped(
            "lr_scheduler_type",
            "cosine",
            "trainer.schedule.type",
            read=learning.schedule,
            kind=one_of(*learning.ALL_SCHEDULES),
            note="counted in updates",
        ),
        enum=learning.ALL_SCHEDULES,
    ),
)
_GENERATION: tuple[Input, ...] = (
    own("integer", mapped("max_prompt_length", 512, "data.max_prompt_tokens", read=meaning.lengths)),
    own("integer", mapped("max_completion_length", 256, "data.max_response_tokens", read=meaning.lengths)),
    own(
        "number",
        mapped(
            "temperature",
            1.0,
            "rollout.sampling.temperature",
            "data.eval.0.sampling.temperature",
            read=meaning.sampling,
        ),
    ),
    own(
        "number",
        mapped("top_p", 1.0, "rollout.sampling.top_p", "data.eval.0.sampling.top_p", read=meaning.sampling),
    ),
)
_REST: tuple[Input, ...] = (
    own(
        "boolean",
        mapped("do_eval", False, "data.eval", read=meaning.tasksets, note="alone, it measures at the end"),
    ),
    own(
        "string",
        mapped(
            "eval_strategy",
            "no",
            "evaluate.every",
            "checkpoint.best",
            read=meaning.measuring,
            kind=one_of("no", "steps", "epoch"),
            note="each evaluation saves a checkpoint; the model of the best reward is left",
        ),
        enum=("no", "steps", "epoch"),
    ),
    own(
        "integer",
        mapped(
            "eval_steps",
            1,
            "evaluate.every",
            read=meaning.measuring,
            off=meaning.by_steps,
            note="counts updates",
        ),
    ),
    own("number", no_effect("logging_steps", 5.0, "the metrics of every step are written")),
    own("integer", mapped("save_steps", 100, "checkpoint.every", read=meaning.saving, note="counts updates")),
    own("integer", mapped("save_total_limit", 20, "checkpoint.keep")),
    own("boolean", mapped("shuffle_dataset", True, "data.shuffle")),
    own(
        "boolean",
        placement("use_liger_kernel", False, "Strop's own kernels are used", can=only(False)),
    ),
    own("number", placement("vllm_gpu_memory_utilization", 0.3, _NATIVE, can=never)),
    own(
        "integer",
        placement("vllm_tensor_parallel_size", 1, "one process holds the whole model", can=only(1)),
    ),
)
_INPUTS = (*_DATA, *_ALGORITHM, *_TRAINING, *_GENERATION, *_REST)
_FOLDER: tuple[Row, ...] = beyond_the_page(
    mapped("output_model_path", UNSET, "folder", "output", read=meaning.folder)
)
GRPO = Component(
    "grpo",
    "group_relative_policy_optimization",
    _INPUTS,
    (
        Output("mlflow_model_folder", "mlflow_model", "mlflow"),
        Output("output_model_path", "uri_folder", "run"),
    ),
    Ledger("grpo", (*(part.row for part in _INPUTS), *_FOLDER, *DEEPSPEED)),
    "output_model_path",
)
