"""Converters of the inputs of `group_relative_policy_optimization` (the optimizer's are in grpo_optimizer).

Where the seed page states nothing, TRL's values at the time of the page apply: no weight decay, a LoRA of
rank 16, 1e-4 added to the standard deviation, the mean over all tokens of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.compat.azureml.deepspeed import processes
from strop.compat.ledger.key_mapping import ForeignValues, unless, written_by
from strop.config.schema import Run
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.policy_loss import ClippedLossConfig
from strop.config.step_arithmetic import to_steps, updates_per_step
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


def is_evaluation_on(foreign: ForeignValues) -> bool:
    """Whether evaluation is enabled."""
    return bool(foreign["do_eval"]) or foreign["eval_strategy"] not in ("no", "disable")


def evaluation_off(foreign: ForeignValues) -> str | None:
    """The reason why evaluation is disabled, or None."""
    return (
        None
        if is_evaluation_on(foreign)
        else f"do_eval is False and eval_strategy is {foreign['eval_strategy']}, so there is no evaluation"
    )


by_steps = unless("eval_strategy", "steps")


def epochs_overridden(foreign: ForeignValues) -> str | None:
    """The number of steps takes precedence over the number of epochs."""
    steps = foreign["max_steps"]
    return f"max_steps is {steps} and takes precedence" if steps > 0 else None


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


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write whether the run has a LoRA adapter; the component has no inputs for its rank and targets."""
    return {"apply_lora": "false" if run.model.lora is None else "true"}


@written_by(write_lora)
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
            f"num_generations is {rollouts}, but GRPO compares the completions of one prompt with each "
            "other; "
            "write 2 or more.",
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
    often = {
        "steps": f"{foreign['eval_steps']} updates",
        "epoch": "1 epochs",
        "no": "never",
        "disable": "never",
    }
    best = {"metric": "eval/validation/reward", "mode": "max"}
    return {
        "evaluate.every": often[foreign["eval_strategy"]],
        "evaluate.at_start": False,
        "checkpoint.best": best if is_evaluation_on(foreign) else None,
    }


def write_checkpointing(run: Run) -> Mapping[str, Any]:
    """Write the checkpoint interval in updates; 0 saves only at the end."""
    return {"save_steps": _in_updates(run, run.checkpoint.every)}


@written_by(write_checkpointing)
def checkpointing(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the checkpoint interval; each checkpoint also exports the model as a Hugging Face folder."""
    steps = foreign["save_steps"]
    return {
        "checkpoint.every": f"{steps} updates" if steps > 0 else "never",
        "checkpoint.export": True,
    }


def write_folder(run: Run) -> Mapping[str, Any]:
    """Write the output folder."""
    return {"output_model_path": str(run.folder_path)}


@written_by(write_folder)
def folder(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the output folder, which is the run folder if it is set."""
    settings = {"project": "grpo", "name": "run"}
    where = foreign["output_model_path"]
    return settings | ({"output": "outputs"} if where is None else {"folder": where})


def write_lengths(run: Run) -> Mapping[str, Any]:
    """Write the prompt and response length limits."""
    return {
        "max_prompt_length": run.data.max_prompt_tokens,
        "max_completion_length": run.data.max_response_tokens,
    }


@written_by(write_lengths)
def lengths(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limits; a longer prompt loses its beginning."""
    return {
        "data.max_prompt_tokens": foreign["max_prompt_length"],
        "data.max_response_tokens": foreign["max_completion_length"],
        "data.overlong": "left",
    }


def write_sampling(run: Run) -> Mapping[str, Any]:
    """Write the sampling options of training completions."""
    options = run.rollout.sampling
    return {"temperature": options.temperature, "top_p": options.top_p}


@written_by(write_sampling)
def sampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampling options of training completions; evaluation uses the same (see tasksets)."""
    return {
        "rollout.sampling.temperature": foreign["temperature"],
        "rollout.sampling.top_p": foreign["top_p"],
    }
