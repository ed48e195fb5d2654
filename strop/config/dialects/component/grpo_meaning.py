"""What the inputs of `group_relative_policy_optimization` mean.

What its page leaves unsaid is TRL's at the page's time: no weight decay, an adapter of rank 16, the
standard deviation plus 1e-4, the mean over all tokens of an update.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.config.dialects.row import unless
from strop.config.dialects.theirs import Theirs
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
ALL_OPTIMIZERS = (
    "adamw_torch",
    "adamw_torch_fused",
    "adafactor",
    "ademamix",
    "sgd",
    "adagrad",
    "rmsprop",
    "galore_adamw",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_sgd",
)
ALL_SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
)


def _evaluates(theirs: Theirs) -> bool:
    return bool(theirs["do_eval"]) or theirs["eval_strategy"] != "no"


def measured(theirs: Theirs) -> str | None:
    """Off where nothing is measured."""
    return None if _evaluates(theirs) else "do_eval is False and eval_strategy is no, so nothing is measured"


by_steps = unless("eval_strategy", "steps")


def epochs(theirs: Theirs) -> str | None:
    """Steps beat epochs."""
    steps = theirs["max_steps"]
    return f"max_steps is {steps}, and steps beat epochs" if steps > 0 else None


def warms_up(theirs: Theirs) -> str | None:
    """Plain `constant` starts at its rate."""
    kind = theirs["lr_scheduler_type"]
    return "lr_scheduler_type is constant, which has no warm-up" if kind == "constant" else None


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
        raise ConfigError(
            "grpo: the tasks are in dataset_train_split and dataset_validation_split, or in dataset_name; "
            f"{what}."
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
        "data.eval": [second | shared | evaluation] if _evaluates(theirs) else [],
        "data.chat_template": str(CHAT_TEMPLATE),
        "reward.functions": [dict(part) for part in REWARDS],
    }


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


def kl(theirs: Theirs) -> Mapping[str, Any]:
    """`beta` 0 computes no reference."""
    if theirs["beta"] == 0:
        return {}
    return {"algorithm.kl_loss.estimator": "k3", "algorithm.kl_loss.coef": theirs["beta"]}


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


def duration(theirs: Theirs) -> Mapping[str, Any]:
    """`max_steps`, where it is positive, counts updates and beats the epochs."""
    steps, epochs = theirs["max_steps"], theirs["num_train_epochs"]
    return {"trainer.duration": f"{steps} updates" if steps > 0 else f"{epochs} epochs"}


def optimizer(theirs: Theirs) -> Mapping[str, Any]:
    """Without weight decay, as Hugging Face's trainer has it where nobody says otherwise."""
    name = theirs["optim"]
    kind = "adamw" if name.startswith("adamw_torch") else name
    fused = {"trainer.optimizer.fused": name == "adamw_torch_fused"} if kind == "adamw" else {}
    return {
        "trainer.optimizer.type": kind,
        "trainer.optimizer.lr": theirs["learning_rate"],
        "trainer.optimizer.weight_decay": 0.0,
        **fused,
    }


def grad_norm(theirs: Theirs) -> Mapping[str, Any]:
    """0 bounds nothing. What moves the weights during backward has no whole gradient to bound."""
    bound, name = theirs["max_grad_norm"], theirs["optim"]
    if bound > 0 and name in ("lomo", "adalomo"):
        raise theirs.fault(
            "optim",
            f"optim {name} moves the weights during backward, so max_grad_norm ({bound:g}) has no whole "
            "gradient to bound; write max_grad_norm 0 with it.",
        )
    return {"trainer.max_grad_norm": bound if bound > 0 else None}


def schedule(theirs: Theirs) -> Mapping[str, Any]:
    """Counted in updates; plain `constant` has no warm-up, and `polynomial` ends at a rate of 1e-7."""
    kind = theirs["lr_scheduler_type"]
    percent = 0 if kind == "constant" else round(100 * theirs["warmup_ratio"], 10)
    if kind == "reduce_lr_on_plateau" and not _evaluates(theirs):
        raise theirs.fault(
            "lr_scheduler_type",
            "lr_scheduler_type reduce_lr_on_plateau follows what is measured, and nothing is; write "
            "eval_strategy steps or epoch.",
        )
    last = {"trainer.schedule.min_ratio": min(1.0, 1e-7 / theirs["learning_rate"])}
    return {
        "trainer.schedule.type": "constant" if kind == "constant_with_warmup" else kind,
        "trainer.schedule.counts": "updates",
        "trainer.schedule.warmup": f"{percent} %",
        **(last if kind == "polynomial" and theirs["learning_rate"] > 0 else {}),
    }


def measuring(theirs: Theirs) -> Mapping[str, Any]:
    """By updates or by epochs; `do_eval` alone measures at the end."""
    often = {"steps": f"{theirs['eval_steps']} updates", "epoch": "1 epochs", "no": "never"}
    return {"evaluate.every": often[theirs["eval_strategy"]], "evaluate.at_start": False}


def saving(theirs: Theirs) -> Mapping[str, Any]:
    """Each checkpoint holds the model as a Hugging Face folder too."""
    steps = theirs["save_steps"]
    return {
        "checkpoint.every": f"{steps} updates" if steps > 0 else "never",
        "checkpoint.export": True,
    }


def folder(theirs: Theirs) -> Mapping[str, Any]:
    """The run's folder is the output, where there is one."""
    settings = {"project": "grpo", "name": "run"}
    where = theirs["output_model_path"]
    return settings | ({"output": "outputs"} if where is None else {"folder": where})


def lengths(theirs: Theirs) -> Mapping[str, Any]:
    """A prompt that is longer loses its beginning."""
    return {
        "data.max_prompt_tokens": theirs["max_prompt_length"],
        "data.max_response_tokens": theirs["max_completion_length"],
        "data.overlong": "left",
    }


def sampling(theirs: Theirs) -> Mapping[str, Any]:
    """How completions to train on are drawn; those that are measured are drawn alike."""
    return {
        "rollout.sampling.temperature": theirs["temperature"],
        "rollout.sampling.top_p": theirs["top_p"],
    }
