"""What the inputs of `group_relative_policy_optimization` mean.

What its page leaves unsaid is TRL's at the page's time: no weight decay, an adapter of rank 16, the
standard deviation plus 1e-4, the mean over all tokens of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.config.dialects.row import unless, written_by
from strop.config.dialects.theirs import Theirs
from strop.config.same import in_steps, updates_per_step
from strop.config.schema import Run
from strop.config.schema.algorithm import ClippedLoss, Grpo
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


def evaluates(theirs: Theirs) -> bool:
    """Whether anything is measured."""
    return bool(theirs["do_eval"]) or theirs["eval_strategy"] != "no"


def measured(theirs: Theirs) -> str | None:
    """Off where nothing is measured."""
    return None if evaluates(theirs) else "do_eval is False and eval_strategy is no, so nothing is measured"


by_steps = unless("eval_strategy", "steps")


def epochs(theirs: Theirs) -> str | None:
    """Steps beat epochs."""
    steps = theirs["max_steps"]
    return f"max_steps is {steps}, and steps beat epochs" if steps > 0 else None


def write_tasksets(run: Run) -> Mapping[str, Any]:
    """Two files, of which the second is written though nothing is measured; or a dataset's name."""
    train, measured = run.data.train, run.data.eval[0] if run.data.eval else None
    values: dict[str, Any] = {"dataset_prompt_column": train.prompt, "do_eval": measured is not None}
    if train.split == "train":
        return {**values, "dataset_name": train.path}
    validation = train.path if measured is None else measured.path
    return {**values, "dataset_train_split": train.path, "dataset_validation_split": validation}


@written_by(write_tasksets)
def tasksets(theirs: Theirs) -> Mapping[str, Any]:
    """Two files, or the name of a dataset that has a train split, and a validation split to measure."""
    train, validation = theirs["dataset_train_split"], theirs["dataset_validation_split"]
    name = theirs["dataset_name"]
    if (train is None) != (validation is None):
        written, lacking = ("train", "validation") if validation is None else ("validation", "train")
        raise theirs.fault(
            f"dataset_{written}_split",
            f"dataset_{written}_split comes with dataset_{lacking}_split; write both, or dataset_name.",
        )
    if (train is None) == (not name):
        what = "none of them is given" if train is None else "both are given"
        raise theirs.fault(
            "dataset_name",
            f"the tasks are in dataset_train_split and dataset_validation_split, or in dataset_name; {what}.",
        )
    shared = {"prompt": theirs["dataset_prompt_column"], "answer": "solution", "system": SYSTEM_PROMPT}
    first = {"path": train} if train is not None else {"path": name, "split": "train"}
    second = {"path": validation} if train is not None else {"path": name, "split": "validation"}
    evaluation = {
        "name": "validation",
        "rollouts_per_task": theirs["num_generations"],
        "sampling": {"temperature": theirs["temperature"], "top_p": theirs["top_p"]},
    }
    return {
        **{f"data.train.{field}": value for field, value in (first | shared).items()},
        "data.eval": [second | shared | evaluation] if evaluates(theirs) else [],
        "data.chat_template": str(CHAT_TEMPLATE),
        "reward.functions": [dict(part) for part in REWARDS],
    }


def write_lora(run: Run) -> Mapping[str, Any]:
    """With an adapter or without; its shape is not theirs to say."""
    return {"apply_lora": "false" if run.model.lora is None else "true"}


@written_by(write_lora)
def lora(theirs: Theirs) -> Mapping[str, Any]:
    """On the attention's three projections of its input."""
    if theirs["apply_lora"] == "false":
        return {}
    return {
        "model.lora.rank": 16,
        "model.lora.alpha": 32,
        "model.lora.dropout": 0.05,
        "model.lora.targets": ["q_proj", "k_proj", "v_proj"],
    }


def write_kl(run: Run) -> Mapping[str, Any]:
    """`beta` 0 is no term."""
    term = getattr(run.algorithm, "kl_loss", None)
    return {"beta": 0.0 if term is None else term.coef}


@written_by(write_kl)
def kl(theirs: Theirs) -> Mapping[str, Any]:
    """`beta` 0 computes no reference."""
    if theirs["beta"] == 0:
        return {}
    return {"algorithm.kl_loss.estimator": "k3", "algorithm.kl_loss.coef": theirs["beta"]}


def write_loss(run: Run) -> Mapping[str, Any]:
    """GRPO alone, clipped on both sides alike."""
    if not isinstance(run.algorithm, Grpo):
        raise ConfigError(f"algorithm.type {run.algorithm.type} is another one than grpo.")
    clipped = run.algorithm.policy_loss
    return {"epsilon": clipped.clip_high} if isinstance(clipped, ClippedLoss) else {}


@written_by(write_loss)
def loss(theirs: Theirs) -> Mapping[str, Any]:
    """TRL's: clipped on both sides alike, without a second bound."""
    return {
        "algorithm.type": "grpo",
        "algorithm.divide_by_std": True,
        "algorithm.std_epsilon": 1e-4,
        "algorithm.aggregation": "token-mean",
        "algorithm.policy_loss.type": "clip",
        "algorithm.policy_loss.clip_low": theirs["epsilon"],
        "algorithm.policy_loss.clip_high": theirs["epsilon"],
        "algorithm.policy_loss.dual_clip": None,
    }


def write_batches(run: Run) -> Mapping[str, Any]:
    """The whole batch is a step's answers; on the device is what goes through the model at once, where it
    divides the batch."""
    each = getattr(run.algorithm, "rollouts_per_task", 1)
    batch, size = run.trainer.tasks_per_step * each, run.trainer.microbatch
    fits = size.unit == "sequences" and batch % size.count == 0
    device = int(size.count) if fits else batch
    return {
        "num_generations": each,
        "per_device_train_batch_size": device,
        "gradient_accumulation_steps": batch // device,
    }


@written_by(write_batches)
def batches(theirs: Theirs) -> Mapping[str, Any]:
    """The batch counts completions; `num_generations` of them are one task's. One batch is one update, and
    `num_iterations` makes as many of it."""
    device, steps = theirs["per_device_train_batch_size"], theirs["gradient_accumulation_steps"]
    batch, each = device * steps, theirs["num_generations"]
    if each < 2:
        raise theirs.fault(
            "num_generations",
            f"num_generations is {each}, but GRPO compares the completions of one prompt with one another; "
            "write 2 or more.",
        )
    if batch < 1 or batch % each:
        low = max(batch // each, 0) * each
        near = " and ".join(str(size) for size in (low, low + each) if size > 0)
        key = next(
            (k for k in ("num_generations", "per_device_train_batch_size") if theirs.wrote(k)),
            "num_generations",
        )
        raise theirs.fault(
            key,
            f"the batch of {batch} (per_device_train_batch_size {device} x gradient_accumulation_steps "
            f"{steps}) is not a multiple of num_generations ({each}); the nearest that are: {near}.",
        )
    return {
        "algorithm.rollouts_per_task": each,
        "trainer.tasks_per_step": batch // each,
        "trainer.microbatch": f"{device} sequences",
    }


def write_duration(run: Run) -> Mapping[str, Any]:
    """In epochs, or in updates, which each step makes so many of."""
    length = run.trainer.duration
    if length.unit == "epochs":
        return {"num_train_epochs": length.count}
    return {"max_steps": _in_updates(run, length)}


def _in_updates(run: Run, amount: Amount | None) -> float | None:
    """In TRL's, of which a step makes one in each pass; 0 for never, None where it cannot be counted so."""
    steps, passes = in_steps(run, amount), run.trainer.passes
    if steps is None:
        return 0
    if steps.unit == "steps":
        return steps.count * passes
    return steps.count if steps.unit == "updates" and updates_per_step(run) == passes else None


@written_by(write_duration)
def duration(theirs: Theirs) -> Mapping[str, Any]:
    """`max_steps`, where it is positive, counts updates and beats the epochs."""
    steps, epochs = theirs["max_steps"], theirs["num_train_epochs"]
    return {"trainer.duration": f"{steps} updates" if steps > 0 else f"{epochs} epochs"}


def write_measuring(run: Run) -> Mapping[str, Any]:
    """By updates, or each epoch."""
    often = run.evaluate.every
    if not run.data.eval or often is None:
        return {"eval_strategy": "no"}
    if often.unit == "epochs":
        return {"eval_strategy": "epoch" if often.count == 1 else None}
    updates = _in_updates(run, often)
    return {"eval_strategy": "steps" if updates else None, "eval_steps": updates}


@written_by(write_measuring)
def measuring(theirs: Theirs) -> Mapping[str, Any]:
    """By updates or by epochs; `do_eval` alone measures at the end. The best model is the one with the
    highest reward; without evaluation it is the last."""
    often = {"steps": f"{theirs['eval_steps']} updates", "epoch": "1 epochs", "no": "never"}
    best = {"metric": "eval/validation/reward", "mode": "max"}
    return {
        "evaluate.every": often[theirs["eval_strategy"]],
        "evaluate.at_start": False,
        "checkpoint.best": best if evaluates(theirs) else None,
    }


def write_saving(run: Run) -> Mapping[str, Any]:
    """By updates; 0 saves at the end alone."""
    return {"save_steps": _in_updates(run, run.checkpoint.every)}


@written_by(write_saving)
def saving(theirs: Theirs) -> Mapping[str, Any]:
    """Each checkpoint holds the model as a Hugging Face folder too."""
    steps = theirs["save_steps"]
    return {
        "checkpoint.every": f"{steps} updates" if steps > 0 else "never",
        "checkpoint.export": True,
    }


def write_folder(run: Run) -> Mapping[str, Any]:
    """The output."""
    return {"output_model_path": str(run.folder_path)}


@written_by(write_folder)
def folder(theirs: Theirs) -> Mapping[str, Any]:
    """The run's folder is the output, where there is one."""
    settings = {"project": "grpo", "name": "run"}
    where = theirs["output_model_path"]
    return settings | ({"output": "outputs"} if where is None else {"folder": where})


def write_lengths(run: Run) -> Mapping[str, Any]:
    """The two limits."""
    return {
        "max_prompt_length": run.data.max_prompt_tokens,
        "max_completion_length": run.data.max_response_tokens,
    }


@written_by(write_lengths)
def lengths(theirs: Theirs) -> Mapping[str, Any]:
    """A prompt that is longer loses its beginning."""
    return {
        "data.max_prompt_tokens": theirs["max_prompt_length"],
        "data.max_response_tokens": theirs["max_completion_length"],
        "data.overlong": "left",
    }


def write_sampling(run: Run) -> Mapping[str, Any]:
    """How completions to train on are drawn."""
    said = run.rollout.sampling
    return {"temperature": said.temperature, "top_p": said.top_p}


@written_by(write_sampling)
def sampling(theirs: Theirs) -> Mapping[str, Any]:
    """How completions to train on are drawn; those that are measured are drawn alike."""
    return {
        "rollout.sampling.temperature": theirs["temperature"],
        "rollout.sampling.top_p": theirs["top_p"],
    }
