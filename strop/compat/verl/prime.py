"""Ledger rows of verl's recipe PRIME: its process reward model, the weights of rewards, and the choice of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    mapped,
    no_effect,
    not_on_page,
    refused,
    same_as,
    written_by,
)
from strop.compat.ledger.value_types import ANY, INTEGER, NUMBER, NUMBER_LIST, nullable, one_of
from strop.compat.verl import switches
from strop.compat.verl.lr_schedule import by_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import PrimeConfig

_MODEL = "reward_model.model"
_OPTIM = f"{_MODEL}.optim"
_FIELD = "algorithm.process_reward"
_UPDATE = "reward_model.mini_batch_size"
_FACTOR = "data.oversample_factor"
_BOUNDS = {"accuracy_lower_bound": "min_mean_reward", "accuracy_upper_bound": "max_mean_reward"}


def write_prime(run: Run) -> Mapping[str, Any]:
    """Write the keys of the recipe, whose advantages verl calls `rloo`."""
    algorithm = run.algorithm
    if not isinstance(algorithm, PrimeConfig):
        return {}
    section, chosen = algorithm.process_reward, algorithm.oversampling
    tasks = section.tasks_per_update or run.trainer.tasks_per_update or run.trainer.tasks_per_step
    warmup = section.schedule.warmup
    steps = warmup.count if warmup.unit == "steps" else -1
    return {
        "algorithm.reward_gt_coef": algorithm.outcome_coef,
        "algorithm.reward_dpo_coef": algorithm.process_coef,
        "reward_model.enable": True,
        f"{_MODEL}.path": (section.model or run.model).path,
        f"{_MODEL}.update": "before" if section.update_first else "after",
        f"{_MODEL}.beta_train": section.beta,
        "reward_model.prime_norm": "batch_norm" if section.normalize else "none",
        _UPDATE: tasks * algorithm.rollouts_per_task,
        f"{_OPTIM}.lr": section.optimizer.lr,
        f"{_OPTIM}.weight_decay": section.optimizer.weight_decay,
        f"{_OPTIM}.grad_clip": section.max_grad_norm,
        f"{_OPTIM}.lr_warmup_steps": steps,
        f"{_OPTIM}.lr_warmup_steps_ratio": warmup.count / 100 if warmup.unit == "%" else 0.0,
        _FACTOR: chosen.factor if chosen else 1,
        **({f"data.{key}": getattr(chosen, name) for key, name in _BOUNDS.items()} if chosen else {}),
        **({"data.filter_truncate": chosen.prefer_complete} if chosen else {}),
    }


@written_by(write_prime)
def prime(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the recipe, where one of its keys is set. The learning rate is constant after its warm-up."""
    if switches.prime(foreign):
        return {}
    settings = {
        "model.path": foreign[f"{_MODEL}.path"] if foreign.is_set(f"{_MODEL}.path") else None,
        "beta": foreign[f"{_MODEL}.beta_train"],
        "normalize": foreign["reward_model.prime_norm"] == "batch_norm",
        "update_first": foreign[f"{_MODEL}.update"] == "before",
        "tasks_per_update": _tasks_per_update(foreign),
        "max_grad_norm": foreign[f"{_OPTIM}.grad_clip"],
        "optimizer.lr": foreign[f"{_OPTIM}.lr"],
        "optimizer.weight_decay": foreign[f"{_OPTIM}.weight_decay"],
        "schedule.interval": "steps",
        "schedule.warmup": _warmup(foreign),
    }
    if foreign[f"{_OPTIM}.betas"] is not None:
        settings["optimizer.betas"] = foreign[f"{_OPTIM}.betas"]
    return {
        "algorithm.outcome_coef": foreign["algorithm.reward_gt_coef"],
        "algorithm.process_coef": foreign["algorithm.reward_dpo_coef"],
        **{f"{_FIELD}.{name}": value for name, value in settings.items() if value is not None},
        **_oversampling(foreign),
    }


def _warmup(foreign: ForeignValues) -> str:
    if by_steps(foreign, _OPTIM):
        return f"{foreign[f'{_OPTIM}.lr_warmup_steps']} steps"
    return f"{foreign[f'{_OPTIM}.lr_warmup_steps_ratio'] * 100} %"


def _tasks_per_update(foreign: ForeignValues) -> int:
    """The reward model's batch size counts responses; verl splits a step's responses by it."""
    responses, each = int(foreign[_UPDATE]), int(foreign["actor_rollout_ref.rollout.n"])
    tasks = int(foreign["data.train_batch_size"])
    if responses % each and responses < tasks * each:
        raise foreign.error_for(
            _UPDATE,
            f"{_UPDATE} ({responses}) counts responses, and actor_rollout_ref.rollout.n is {each}: an update would end "
            f"within the responses to one prompt. Write a multiple of {each}.",
        )
    return min(responses // each, tasks)


def _oversampling(foreign: ForeignValues) -> dict[str, Any]:
    factor = float(foreign[_FACTOR])
    if factor == 1:
        return {}
    if not factor.is_integer() or factor < 1:
        raise foreign.error_for(
            _FACTOR,
            f"{_FACTOR} is {factor}; Strop samples a whole number of tasks for each: write 2 or more.",
        )
    at = "algorithm.oversampling"
    bounds = {f"{at}.{field}": foreign[f"data.{key}"] for key, field in _BOUNDS.items()}
    return {f"{at}.factor": int(factor), **bounds, f"{at}.prefer_complete": foreign["data.filter_truncate"]}


def _row(key: str, default: Any, field: str, value_type: Any = None, note: str = "") -> Any:
    return mapped(key, default, field, read=prime, value_type=value_type, inactive=switches.prime, note=note)


ROWS = not_on_page(
    _row("algorithm.reward_gt_coef", 5.0, "algorithm.outcome_coef"),
    _row("algorithm.reward_dpo_coef", 5.0, "algorithm.process_coef"),
    _row(
        f"{_MODEL}.update",
        "before",
        f"{_FIELD}.update_first",
        one_of("before", "after"),
        "one of the keys that select PRIME: also beta_train, optim, reward_gt_coef, reward_dpo_coef, and "
        "data.filter_accuracy",
    ),
    _row(f"{_MODEL}.beta_train", 0.05, f"{_FIELD}.beta"),
    refused(
        f"{_MODEL}.loss_type",
        "ce",
        "the recipe's other losses need a method of update that its own configuration does not have; write ce",
        inactive=switches.prime,
    ),
    refused(
        f"{_MODEL}.ref_path",
        "${reward_model.model.path}",
        "the reference is the model that the process reward model starts from; remove it",
        supported=same_as(f"{_MODEL}.path"),
        inactive=switches.prime,
    ),
    no_effect(f"{_MODEL}.ref_type", "freeze", "the reference is never trained"),
    no_effect(f"{_MODEL}.tokenizer_path", None, "the model reads the policy's tokens", value_type=ANY),
    no_effect(f"{_MODEL}.enable_gradient_checkpointing", None, "it changes only memory use", value_type=ANY),
    no_effect(f"{_MODEL}.fused_kernel_options.*", None, "Strop's own kernels are used", value_type=ANY),
    _row("reward_model.prime_norm", "batch_norm", f"{_FIELD}.normalize", one_of("batch_norm", "none")),
    refused(
        "reward_model.prime_granularity",
        "token",
        "a reward for a whole response is that of the outcome; write token",
        inactive=switches.prime,
    ),
    _row(
        _UPDATE,
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{_FIELD}.tasks_per_update",
        INTEGER,
        "counts responses, unlike ppo_mini_batch_size",
    ),
    _row(f"{_OPTIM}.lr", 1e-6, f"{_FIELD}.optimizer.lr"),
    _row(f"{_OPTIM}.weight_decay", 0.0, f"{_FIELD}.optimizer.weight_decay"),
    _row(f"{_OPTIM}.betas", None, f"{_FIELD}.optimizer.betas", nullable(NUMBER_LIST)),
    _row(f"{_OPTIM}.grad_clip", 10.0, f"{_FIELD}.max_grad_norm"),
    _row(f"{_OPTIM}.lr_warmup_steps", -1, f"{_FIELD}.schedule.warmup", nullable(INTEGER)),
    _row(f"{_OPTIM}.lr_warmup_steps_ratio", 0.0, f"{_FIELD}.schedule.warmup", NUMBER),
    *(
        no_effect(f"{_OPTIM}.{name}", None, "the recipe's learning rate is constant", value_type=ANY)
        for name in ("min_lr_ratio", "warmup_style", "lr_scheduler_type", "total_training_steps")
    ),
    refused(
        "data.filter_accuracy",
        True,
        "oversampling prefers groups of medium accuracy; write data.oversample_factor=1 for none",
        supported=lambda foreign, value: value or foreign[_FACTOR] == 1,
        inactive=switches.prime,
    ),
    *(
        _row(f"data.{key}", default, f"algorithm.oversampling.{_BOUNDS[key]}")
        for key, default in (("accuracy_lower_bound", 0.2), ("accuracy_upper_bound", 0.8))
    ),
    _row("data.filter_truncate", True, "algorithm.oversampling.prefer_complete"),
    _row(_FACTOR, 4.0, "algorithm.oversampling.factor", note="1 means none"),
)
