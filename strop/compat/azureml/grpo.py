"""Component `group_relative_policy_optimization` of AzureML: TRL's GRPO with fixed rewards and a fixed prompt.

Where the component's documentation states nothing, TRL's values at its time apply: no weight decay, a LoRA of rank
16, 1e-4 added to the standard deviation, the mean over all tokens of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from strop.compat.azureml.component import Component, ComponentInput, component_input, model_folder_converter
from strop.compat.azureml.deepspeed import DEEPSPEED, ENGINE_FIELDS, engine, processes, unless_here
from strop.compat.ledger.key_mapping import (
    NATIVE_SAMPLER,
    NO_DEEPSPEED,
    NO_SHARDS,
    UNCHANGED,
    UNSET,
    ForeignValues,
    KeyMapping,
    Ledger,
    fused_kernels,
    mapped,
    no_effect,
    not_on_page,
    one_of,
    only,
    placement,
    unless,
    written_by,
)
from strop.config.load.loader import ComponentOutput
from strop.config.schema import Run
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.optimizer import AdamWConfig
from strop.config.schema.policy_loss import ClippedLossConfig
from strop.config.schema.run import to_steps, updates_per_step
from strop.config.units import Amount
from strop.errors import ConfigError

CHAT_TEMPLATE = Path(__file__).with_name("grpo_chat.jinja")
SYSTEM_PROMPT = (
    "A conversation between a user and an assistant. The user asks a question, and the assistant answers it. "
    "The assistant first thinks about the reasoning process and then gives the user the answer. The "
    "reasoning stands inside <think> </think> tags and the answer inside <answer> </answer> tags, each tag "
    "on a line of its own."
)
REWARDS = (
    {"function": "format", "name": "format", "args": {"method": "strict"}},
    {"function": "choice", "name": "accuracy"},
)
_OPTIMIZERS = (
    *("adamw_torch", "adamw_torch_fused", "adafactor", "ademamix", "sgd", "adagrad"),
    *("rmsprop", "galore_adamw", "lomo", "adalomo", "grokadamw", "schedule_free_sgd"),
)
_SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial"),
    *("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau"),
)
_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau")
_file, _folder, _text = (partial(component_input, kind) for kind in ("uri_file", "uri_folder", "string"))
_number, _integer, _boolean = (partial(component_input, kind) for kind in ("number", "integer", "boolean"))


def is_evaluation_on(foreign: ForeignValues) -> bool:
    """Whether evaluation is enabled."""
    return bool(foreign["do_eval"]) or foreign["eval_strategy"] not in ("no", "disable")


def evaluation_off(foreign: ForeignValues) -> str | None:
    """The reason why evaluation is disabled, or None."""
    if is_evaluation_on(foreign):
        return None
    return f"do_eval is False and eval_strategy is {foreign['eval_strategy']}, so there is no evaluation"


def write_tasksets(run: Run) -> Mapping[str, Any]:
    """Write the two files, or the name of a dataset. The validation file is written even without evaluation,
    because the component requires it."""
    train, taskset = run.data.train, run.data.eval[0] if run.data.eval else None
    values: dict[str, Any] = {"dataset_prompt_column": train.prompt, "do_eval": taskset is not None}
    if train.split == "train":
        return {**values, "dataset_name": train.path}
    validation = train.path if taskset is None else taskset.path
    return {**values, "dataset_train_split": train.path, "dataset_validation_split": validation}


@written_by(write_tasksets)
def tasksets(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the two files, or the name of a dataset with a train split and, for evaluation, a validation
    split."""
    train, validation = foreign["dataset_train_split"], foreign["dataset_validation_split"]
    name = foreign["dataset_name"]
    if (train is None) != (validation is None):
        written, lacking = ("train", "validation") if validation is None else ("validation", "train")
        raise foreign.error_for(
            f"dataset_{written}_split",
            f"dataset_{written}_split is set without dataset_{lacking}_split; write both, or dataset_name.",
        )
    if (train is None) == (not name):
        what = "none of them is set" if train is None else "both are set"
        raise foreign.error_for(
            "dataset_name",
            f"write either dataset_train_split and dataset_validation_split, or dataset_name; {what}.",
        )
    shared = {"prompt": foreign["dataset_prompt_column"], "answer": "solution", "system": SYSTEM_PROMPT}
    first = {"path": train} if train is not None else {"path": name, "split": "train"}
    second = {"path": validation} if train is not None else {"path": name, "split": "validation"}
    evaluation = {
        "name": "validation",
        "rollouts_per_task": foreign["num_generations"],
        "sampling": {"temperature": foreign["temperature"], "top_p": foreign["top_p"]},
    }
    return {
        **{f"data.train.{field}": value for field, value in (first | shared).items()},
        "data.eval": [second | shared | evaluation] if is_evaluation_on(foreign) else [],
        "data.chat_template": str(CHAT_TEMPLATE),
        "reward.functions": [dict(part) for part in REWARDS],
    }


@written_by(lambda run: {"apply_lora": "false" if run.model.lora is None else "true"})
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the LoRA adapter, which is on the query, key and value projections."""
    if foreign["apply_lora"] == "false":
        return {}
    return {
        "model.lora.rank": 16,
        "model.lora.alpha": 32,
        "model.lora.dropout": 0.05,
        "model.lora.targets": ["q_proj", "k_proj", "v_proj"],
    }


_row = partial(mapped, read=tasksets)
_DATA = (
    _file(_row("dataset_train_split", UNSET, "data.train.path")),
    _file(
        _row(
            "dataset_validation_split",
            UNSET,
            "data.eval.0.path",
            inactive=evaluation_off,
            note="used if do_eval or eval_strategy enables evaluation",
        )
    ),
    _folder(
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
    _file(
        placement(
            "deepspeed_config", UNSET, NO_DEEPSPEED, supported=unless_here, fields=ENGINE_FIELDS, read=engine
        ),
        required=True,
    ),
    _text(_row("dataset_name", "", "data.train.path")),
    _text(_row("dataset_prompt_column", "problem", "data.train.prompt", "data.eval.0.prompt"), required=True),
    _text(
        mapped(
            "apply_lora",
            "true",
            "model.lora",
            read=lora,
            value_type=one_of("true", "false"),
            note="LoRA of rank 16 on the q, k and v projections",
        ),
        enum=("true", "false"),
    ),
)


def write_kl(run: Run) -> Mapping[str, Any]:
    """Write the KL coefficient; 0 means no KL term."""
    term = getattr(run.algorithm, "kl_loss", None)
    return {"beta": 0.0 if term is None else term.coef}


@written_by(write_kl)
def kl(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the KL term; with a `beta` of 0 there is none and no reference model."""
    if foreign["beta"] == 0:
        return {}
    return {"algorithm.kl_loss.estimator": "k3", "algorithm.kl_loss.coef": foreign["beta"]}


def write_loss(run: Run) -> Mapping[str, Any]:
    """Write the clip bound. Raises ConfigError for an algorithm other than GRPO."""
    if not isinstance(run.algorithm, GrpoConfig):
        raise ConfigError(f"the component trains only grpo, and algorithm.type is {run.algorithm.type}.")
    clipped = run.algorithm.policy_loss
    return {"epsilon": clipped.clip_high} if isinstance(clipped, ClippedLossConfig) else {}


@written_by(write_loss)
def loss(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read TRL's loss: the same clip bound on both sides, without dual clipping."""
    return {
        "algorithm.type": "grpo",
        "algorithm.divide_by_std": True,
        "algorithm.std_epsilon": 1e-4,
        "algorithm.aggregation": "token-mean",
        "algorithm.policy_loss.type": "clip",
        "algorithm.policy_loss.clip_low": foreign["epsilon"],
        "algorithm.policy_loss.clip_high": foreign["epsilon"],
        "algorithm.policy_loss.dual_clip": None,
    }


def write_batches(run: Run) -> Mapping[str, Any]:
    """Write the batch sizes: the whole batch is the responses of one step, and the per-device batch is the
    micro-batch if that divides the batch."""
    rollouts = getattr(run.algorithm, "rollouts_per_task", 1)
    batch, size = run.trainer.tasks_per_step * rollouts, run.trainer.microbatch
    fits = size.unit == "sequences" and batch % size.count == 0
    device = int(size.count) if fits else batch
    return {
        "num_generations": rollouts,
        "per_device_train_batch_size": device,
        "gradient_accumulation_steps": batch // device,
    }


@written_by(write_batches)
def batches(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the batch sizes, which count completions; each task has `num_generations` of them. One batch is
    one step, with `num_iterations` updates."""
    device, steps = foreign["per_device_train_batch_size"], foreign["gradient_accumulation_steps"]
    batch, rollouts = device * steps * processes(foreign), foreign["num_generations"]
    if rollouts < 2:
        raise foreign.error_for(
            "num_generations",
            f"num_generations is {rollouts}, but GRPO compares the completions of one prompt with each other; write "
            "2 or more.",
        )
    if batch < 1 or batch % rollouts:
        low = max(batch // rollouts, 0) * rollouts
        near = " and ".join(str(size) for size in (low, low + rollouts) if size > 0)
        key = next(
            (k for k in ("num_generations", "per_device_train_batch_size") if foreign.is_set(k)),
            "num_generations",
        )
        more = f" x {processes(foreign)} processes" if processes(foreign) > 1 else ""
        raise foreign.error_for(
            key,
            f"the batch of {batch} (per_device_train_batch_size {device} x gradient_accumulation_steps "
            f"{steps}{more}) is not a multiple of num_generations ({rollouts}); the nearest multiples are {near}.",
        )
    return {
        "algorithm.rollouts_per_task": rollouts,
        "trainer.tasks_per_step": batch // rollouts,
        "trainer.microbatch": f"{device} sequences",
    }


_ALGORITHM = (
    _number(mapped("beta", 0.0, "algorithm.kl_loss", "algorithm.kl_loss.coef", read=kl)),
    _number(
        mapped("epsilon", 0.5, "algorithm.policy_loss.clip_low", "algorithm.policy_loss.clip_high", read=loss)
    ),
    _integer(mapped("num_iterations", 3, "trainer.epochs_per_step", note="multiplies updates, not rollouts")),
    _integer(mapped("num_generations", 4, "algorithm.rollouts_per_task", read=batches)),
)


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in epochs or updates."""
    length = run.trainer.duration
    if length.unit == "epochs":
        return {"num_train_epochs": length.count}
    return {"max_steps": _in_updates(run, length)}


def _in_updates(run: Run, amount: Amount | None) -> float | None:
    """An interval in TRL's updates, one per epoch over a batch; 0 means never, None that updates cannot
    express it."""
    steps, passes = to_steps(run, amount), run.trainer.epochs_per_step
    if steps is None:
        return 0
    if steps.unit == "steps":
        return steps.count * passes
    return steps.count if steps.unit == "updates" and updates_per_step(run) == passes else None


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration; a positive `max_steps` counts updates and takes precedence over the epochs."""
    steps, epochs = foreign["max_steps"], foreign["num_train_epochs"]
    return {"trainer.duration": f"{steps} updates" if steps > 0 else f"{epochs} epochs"}


def epochs_overridden(foreign: ForeignValues) -> str | None:
    """The number of steps takes precedence over the number of epochs."""
    steps = foreign["max_steps"]
    return f"max_steps is {steps} and takes precedence" if steps > 0 else None


def write_optimizer(run: Run) -> Mapping[str, Any]:
    """Write the optimizer; plain and fused AdamW have different names."""
    section = run.trainer.optimizer
    adamw = "adamw_torch_fused" if isinstance(section, AdamWConfig) and section.fused else "adamw_torch"
    return {"optim": adamw if isinstance(section, AdamWConfig) else section.type, "learning_rate": section.lr}


@written_by(write_optimizer)
def optimizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the optimizer, without weight decay as in the default of Hugging Face's trainer."""
    name = foreign["optim"]
    kind = "adamw" if name.startswith("adamw_torch") else name
    fused = {"trainer.optimizer.fused": name == "adamw_torch_fused"} if kind == "adamw" else {}
    return {
        "trainer.optimizer.type": kind,
        "trainer.optimizer.lr": foreign["learning_rate"],
        "trainer.optimizer.weight_decay": 0.0,
        **fused,
    }


@written_by(lambda run: {"max_grad_norm": run.trainer.max_grad_norm or 0.0})
def grad_norm(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the gradient norm bound; 0 means no bound. LOMO optimizers update weights during the backward pass
    and never have the whole gradient."""
    bound, name = foreign["max_grad_norm"], foreign["optim"]
    if bound > 0 and name in ("lomo", "adalomo"):
        raise foreign.error_for(
            "optim",
            f"optim {name} updates the weights during the backward pass and cannot apply max_grad_norm "
            f"({bound:g}); write max_grad_norm 0.",
        )
    return {"trainer.max_grad_norm": bound if bound > 0 else None}


def write_schedule(run: Run) -> Mapping[str, Any]:
    """Write the schedule; `constant` has different names with and without a warm-up."""
    section = run.trainer.schedule
    plain = section.type == "constant" and section.warmup.count == 0
    values: dict[str, Any] = {"lr_scheduler_type": "constant" if plain else section.type}
    if section.type == "constant" and not plain:
        values["lr_scheduler_type"] = "constant_with_warmup"
    if section.warmup.unit == "%" or section.warmup.count == 0:
        values["warmup_ratio"] = round(section.warmup.count / 100, 12)
    return values


@written_by(write_schedule)
def schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the schedule, which counts updates; `constant` and `reduce_lr_on_plateau` have no warm-up, and
    `polynomial` ends at a rate of 1e-7."""
    kind = foreign["lr_scheduler_type"]
    percent = 0 if kind in _WITHOUT_WARMUP else round(100 * foreign["warmup_ratio"], 10)
    if kind == "reduce_lr_on_plateau" and not is_evaluation_on(foreign):
        raise foreign.error_for(
            "lr_scheduler_type",
            "lr_scheduler_type reduce_lr_on_plateau requires evaluation, which is disabled; write "
            "eval_strategy steps or epoch.",
        )
    rate = foreign["learning_rate"]
    last = {"trainer.schedule.min_ratio": min(1.0, 1e-7 / rate) if rate > 0 else 0.0}
    return {
        "trainer.schedule.type": "constant" if kind == "constant_with_warmup" else kind,
        "trainer.schedule.interval": "updates",
        "trainer.schedule.warmup": f"{percent} %",
        **({"trainer.schedule.warmup_rounding": "up"} if percent else {}),
        **(last if kind == "polynomial" else {}),
    }


def no_warmup(foreign: ForeignValues) -> str | None:
    """Schedules to which transformers passes no warm-up."""
    kind = foreign["lr_scheduler_type"]
    return f"lr_scheduler_type is {kind}, which has no warm-up" if kind in _WITHOUT_WARMUP else None


_TRAINING = (
    _number(mapped("num_train_epochs", 4.0, "trainer.duration", read=duration, inactive=epochs_overridden)),
    _integer(mapped("max_steps", -1, "trainer.duration", read=duration, note="counts updates")),
    _integer(
        mapped(
            "per_device_train_batch_size",
            8,
            "trainer.tasks_per_step",
            "trainer.microbatch",
            read=batches,
            note="counts completions",
        )
    ),
    _integer(
        placement("per_device_eval_batch_size", 8, "the sampler chooses the number of concurrent responses")
    ),
    _integer(mapped("gradient_accumulation_steps", 1, "trainer.tasks_per_step", read=batches)),
    _number(mapped("learning_rate", 3e-6, "trainer.optimizer.lr", read=optimizer)),
    _number(
        mapped(
            "warmup_ratio",
            0.1,
            "trainer.schedule.warmup",
            "trainer.schedule.warmup_rounding",
            read=schedule,
            inactive=no_warmup,
        )
    ),
    _number(mapped("max_grad_norm", 1.0, "trainer.max_grad_norm", read=grad_norm, note="0 means no bound")),
    _text(
        mapped(
            "optim", "adamw_torch", "trainer.optimizer.type", read=optimizer, value_type=one_of(*_OPTIMIZERS)
        ),
        enum=_OPTIMIZERS,
    ),
    _text(
        mapped(
            "lr_scheduler_type",
            "cosine",
            "trainer.schedule.type",
            read=schedule,
            value_type=one_of(*_SCHEDULES),
            note="counts updates",
        ),
        enum=_SCHEDULES,
    ),
)


@written_by(lambda run: {"max_prompt_length": run.data.max_prompt_tokens})
def prompt_length(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limit of prompts; a longer one loses its beginning."""
    return {"data.max_prompt_tokens": foreign["max_prompt_length"], "data.overlong": "left"}


_GENERATION = (
    _integer(mapped("max_prompt_length", 512, "data.max_prompt_tokens", read=prompt_length)),
    _integer(mapped("max_completion_length", 256, "data.max_response_tokens")),
    _number(
        mapped(
            "temperature",
            1.0,
            "rollout.sampling.temperature",
            "data.eval.0.sampling.temperature",
            read=UNCHANGED.between("temperature", "rollout.sampling.temperature"),
        )
    ),
    _number(
        mapped(
            "top_p",
            1.0,
            "rollout.sampling.top_p",
            "data.eval.0.sampling.top_p",
            read=UNCHANGED.between("top_p", "rollout.sampling.top_p"),
        )
    ),
)


def write_evaluation_schedule(run: Run) -> Mapping[str, Any]:
    """Write the evaluation interval: in updates, or every epoch."""
    often = run.evaluate.every
    if not run.data.eval or often is None:
        return {"eval_strategy": "no"}
    if often.unit == "epochs":
        return {"eval_strategy": "epoch" if often.count == 1 else None}
    updates = _in_updates(run, often)
    return {"eval_strategy": "steps" if updates else None, "eval_steps": updates}


@written_by(write_evaluation_schedule)
def evaluation_schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the evaluation interval in updates or epochs; `do_eval` alone evaluates at the end. The best model
    is the one with the highest reward; without evaluation it is the last one."""
    often = {"steps": f"{foreign['eval_steps']} updates", "epoch": "1 epochs"}
    best = {"metric": "eval/validation/reward", "mode": "max"}
    return {
        "evaluate.every": often.get(foreign["eval_strategy"], "never"),
        "evaluate.at_start": False,
        "checkpoint.best": best if is_evaluation_on(foreign) else None,
    }


@written_by(lambda run: {"save_steps": _in_updates(run, run.checkpoint.every)})
def checkpointing(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the checkpoint interval; each checkpoint also exports the model as a Hugging Face folder."""
    steps = foreign["save_steps"]
    return {"checkpoint.every": f"{steps} updates" if steps > 0 else "never", "checkpoint.export": True}


_REST = (
    _boolean(_row("do_eval", False, "data.eval", note="without eval_strategy, evaluates at the end only")),
    _text(
        mapped(
            "eval_strategy",
            "no",
            "evaluate.every",
            "checkpoint.best",
            read=evaluation_schedule,
            value_type=one_of("no", "disable", "steps", "epoch"),
            note="each evaluation saves a checkpoint; the final model is the one with the best reward",
        ),
        enum=("no", "steps", "epoch"),
        also=("disable",),
    ),
    _integer(
        mapped(
            "eval_steps",
            1,
            "evaluate.every",
            read=evaluation_schedule,
            inactive=unless("eval_strategy", "steps"),
            note="counts updates",
        )
    ),
    _number(no_effect("logging_steps", 5.0, "Strop always writes the metrics of every step")),
    _integer(mapped("save_steps", 100, "checkpoint.every", read=checkpointing, note="counts updates")),
    _integer(mapped("save_total_limit", 20, "checkpoint.keep")),
    _boolean(mapped("shuffle_dataset", True, "data.shuffle")),
    _boolean(fused_kernels("use_liger_kernel")),
    _number(placement("vllm_gpu_memory_utilization", 0.3, NATIVE_SAMPLER)),
    _integer(placement("vllm_tensor_parallel_size", 1, NO_SHARDS, supported=only(1))),
)
_INPUTS: tuple[ComponentInput, ...] = (*_DATA, *_ALGORITHM, *_TRAINING, *_GENERATION, *_REST)


@written_by(lambda run: {"output_model_path": str(run.folder_path)})
def folder(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the output folder, which is the run folder if it is set."""
    settings = {"project": "grpo", "name": "run"}
    where = foreign["output_model_path"]
    return settings | ({"output": "outputs"} if where is None else {"folder": where})


_FOLDER: tuple[KeyMapping, ...] = not_on_page(
    mapped("output_model_path", UNSET, "folder", "output", read=folder)
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
