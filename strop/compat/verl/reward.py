"""Ledger rows of verl's `reward_model`, `custom_reward_function` and `reward`, and of the recipe PRIME, whose reward
model is trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NO_SHARDS,
    NUMBER,
    NUMBER_LIST,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    empty,
    falsy,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.compat.verl import switches
from strop.compat.verl.model import imports
from strop.compat.verl.optim import by_steps
from strop.config.schema import Run
from strop.config.schema.algorithm import PrimeConfig
from strop.config.schema.reward import RewardModelConfig as Model
from strop.config.schema.reward import SandboxFusionConfig

_REWARD_MODEL = "reward.models.0"
BY_SOURCE = "verl_by_source"
"""Built-in reward with verl's extraction rules and values for each of its data sources."""
_ARGUMENTS = "custom_reward_function.reward_kwargs"
_LATER = {"version": "0.9"}
_LATER_KEY = "data.dataloader_num_workers"
"""Key without effect that all later versions have and verl 0.3.1 does not, so that a converted configuration
is of a later version, but not of the latest ones, in which other keys have another meaning."""


def write_reward(run: Run) -> Mapping[str, Any]:
    """Write the reward model or the reward function; without a file, verl selects a built-in function by
    source."""
    if run.reward.models and not run.reward.functions:
        return {"reward_model.enable": True, **_write_model(run, run.reward.models[0])}
    parts = run.reward.functions
    path, _, name = parts[0].function.rpartition(":") if parts else ("", "", "")
    if not path:
        later = parts and parts[0].function == BY_SOURCE and parts[0].args == _LATER
        return {"custom_reward_function.path": None, **({_LATER_KEY: 4} if later else {})}
    args = {f"{_ARGUMENTS}.{key}": value for key, value in parts[0].args.items()}
    return {"custom_reward_function.path": path, "custom_reward_function.name": name, **args}


@written_by(write_reward)
def reward(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the reward: a reward model's score, a user's function, or the built-in function for each row's
    `data_source`."""
    if not switches.reward_model(foreign):
        _refuse_scoring_function(foreign)
        return {"reward.models": [reward_model(foreign)]}
    path, name = foreign["custom_reward_function.path"], foreign["custom_reward_function.name"]
    if path is not None and name is None:
        raise foreign.error_for(
            "custom_reward_function.name",
            f"custom_reward_function.name is null, but custom_reward_function.path is {path}; write the name of the "
            "function in this file.",
        )
    own = _built_in(foreign) if path is None else {"function": f"{path}:{name}", **_arguments(foreign)}
    return {"reward.functions": [own]}


def _built_in(foreign: ForeignValues) -> dict[str, Any]:
    """verl's scorers by `data_source`, of verl 0.3.1 or, with a later key, of the latest."""
    return {"function": BY_SOURCE, **({"args": _LATER} if switches.is_later(foreign) else {})}


def _arguments(foreign: ForeignValues) -> dict[str, Any]:
    """Keyword arguments of the user's function."""
    sections = (_ARGUMENTS, f"reward.{_ARGUMENTS}")
    args = {
        key.removeprefix(f"{section}."): foreign[key]
        for section in sections
        for key in foreign.written
        if key.startswith(f"{section}.")
    }
    return {"args": args} if args else {}


def _refuse_scoring_function(foreign: ForeignValues) -> None:
    """Since verl 0.6, a reward function next to a reward model asks the model itself."""
    if foreign.is_set("reward.custom_reward_function.path") or (
        foreign["custom_reward_function.path"] is not None and switches.is_later(foreign)
    ):
        raise foreign.error_for(
            "custom_reward_function.path",
            "custom_reward_function.path is set, and reward_model.enable is True: in this version of verl the "
            "function asks the reward model's server, whose address and tokenizer it receives; Strop starts no server "
            "for a function. Serve the model yourself, write reward_model.enable=False, and pass the address as "
            "custom_reward_function.reward_kwargs; or write a run file with the model in rollout.auxiliary_models and "
            "a judge that asks it (reward.judges, url: auxiliary).",
        )


def _write_model(run: Run, reward_model: Model) -> Mapping[str, Any]:
    policy_tokens = reward_model.tokenizer == (run.model.tokenizer or run.model.path)
    values = {
        "model.path": reward_model.path,
        "model.trust_remote_code": reward_model.trust_remote_code,
        "max_length": reward_model.max_tokens,
        "micro_batch_size_per_gpu": int(reward_model.microbatch.count)
        if reward_model.microbatch.unit == "sequences"
        else None,
    }
    kept = {name: value for name, value in values.items() if value is not None}
    kept |= {"model.input_tokenizer": None} if policy_tokens else {}
    return {f"reward_model.{name}": value for name, value in kept.items()}


def reward_model(foreign: ForeignValues) -> dict[str, Any]:
    """Read the reward model, which computes in bfloat16. With the policy's chat template it reads the
    policy's tokens."""
    longest = foreign["data.max_prompt_length"] + foreign["data.max_response_length"]
    settings = {
        "path": foreign["reward_model.model.path"],
        "dtype": "bfloat16",
        "microbatch": f"{foreign['reward_model.micro_batch_size_per_gpu']} sequences",
        "max_tokens": foreign["reward_model.max_length"] or longest,
        "overlong": "right",
        "trust_remote_code": foreign["reward_model.model.trust_remote_code"],
    }
    if foreign["reward_model.model.input_tokenizer"] is None:
        settings["tokenizer"] = foreign["data.tokenizer"] or foreign["actor_rollout_ref.model.path"]
    return settings


_BUFFER = "reward_model.reward_kwargs.overlong_buffer_cfg"


def write_overlong_penalty(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, the overlong penalty."""
    penalty = getattr(run.algorithm, "overlong_penalty", None)
    if penalty is None:
        return {f"{_BUFFER}.enable": False}
    return {
        f"{_BUFFER}.enable": True,
        f"{_BUFFER}.len": penalty.buffer_tokens,
        f"{_BUFFER}.penalty_factor": penalty.factor,
    }


@written_by(write_overlong_penalty, off={f"{_BUFFER}.enable": False})
def overlong_penalty(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read DAPO's overlong penalty, where it is on."""
    if switches.overlong_buffer(foreign):
        return {}
    if foreign[f"{_BUFFER}.len"] is None:
        raise foreign.error_for(
            f"{_BUFFER}.enable", f"{_BUFFER}.enable is True; also write {_BUFFER}.len, in tokens."
        )
    return {
        "algorithm.overlong_penalty.buffer_tokens": foreign[f"{_BUFFER}.len"],
        "algorithm.overlong_penalty.factor": foreign[f"{_BUFFER}.penalty_factor"],
    }


_SANDBOX = "reward_model.sandbox_fusion"


def write_sandbox(run: Run) -> Mapping[str, Any]:
    """Write the server that runs programs; null for programs that run on this machine."""
    sandbox = run.reward.sandbox
    if not isinstance(sandbox, SandboxFusionConfig):
        return {f"{_SANDBOX}.url": None}
    return {f"{_SANDBOX}.url": sandbox.url, f"{_SANDBOX}.memory_limit_mb": sandbox.memory_mb}


@written_by(write_sandbox, off={f"{_SANDBOX}.url": None})
def sandbox(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the server that runs programs."""
    url, memory = (foreign[f"{_SANDBOX}.{name}"] for name in ("url", "memory_limit_mb"))
    return {"reward.sandbox": {"type": "sandbox_fusion", "url": url, "memory_mb": memory}}


_PRIME_MODEL = "reward_model.model"
_PRIME_OPTIM = f"{_PRIME_MODEL}.optim"
_PRIME = "algorithm.process_reward"
_UPDATE = "reward_model.mini_batch_size"
_FACTOR = "data.oversample_factor"
_ACCURACY_BOUNDS = {"accuracy_lower_bound": "min_mean_reward", "accuracy_upper_bound": "max_mean_reward"}


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
        f"{_PRIME_MODEL}.path": (section.model or run.model).path,
        f"{_PRIME_MODEL}.update": "before" if section.update_first else "after",
        f"{_PRIME_MODEL}.beta_train": section.beta,
        "reward_model.prime_norm": "batch_norm" if section.normalize else "none",
        _UPDATE: tasks * algorithm.rollouts_per_task,
        f"{_PRIME_OPTIM}.lr": section.optimizer.lr,
        f"{_PRIME_OPTIM}.weight_decay": section.optimizer.weight_decay,
        f"{_PRIME_OPTIM}.grad_clip": section.max_grad_norm,
        f"{_PRIME_OPTIM}.lr_warmup_steps": steps,
        f"{_PRIME_OPTIM}.lr_warmup_steps_ratio": warmup.count / 100 if warmup.unit == "%" else 0.0,
        _FACTOR: chosen.factor if chosen else 1,
        **(
            {f"data.{key}": getattr(chosen, name) for key, name in _ACCURACY_BOUNDS.items()} if chosen else {}
        ),
        **({"data.filter_truncate": chosen.prefer_complete} if chosen else {}),
    }


@written_by(write_prime)
def prime(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the recipe, where one of its keys is set. The learning rate is constant after its warm-up."""
    settings = {
        "model.path": foreign[f"{_PRIME_MODEL}.path"] if foreign.is_set(f"{_PRIME_MODEL}.path") else None,
        "beta": foreign[f"{_PRIME_MODEL}.beta_train"],
        "normalize": foreign["reward_model.prime_norm"] == "batch_norm",
        "update_first": foreign[f"{_PRIME_MODEL}.update"] == "before",
        "tasks_per_update": _tasks_per_update(foreign),
        "max_grad_norm": foreign[f"{_PRIME_OPTIM}.grad_clip"],
        "optimizer.lr": foreign[f"{_PRIME_OPTIM}.lr"],
        "optimizer.weight_decay": foreign[f"{_PRIME_OPTIM}.weight_decay"],
        "schedule.interval": "steps",
        "schedule.warmup": _prime_warmup(foreign),
    }
    if foreign[f"{_PRIME_OPTIM}.betas"] is not None:
        settings["optimizer.betas"] = foreign[f"{_PRIME_OPTIM}.betas"]
    return {
        "algorithm.outcome_coef": foreign["algorithm.reward_gt_coef"],
        "algorithm.process_coef": foreign["algorithm.reward_dpo_coef"],
        **{f"{_PRIME}.{name}": value for name, value in settings.items() if value is not None},
        **_oversampling(foreign),
    }


def _prime_warmup(foreign: ForeignValues) -> str:
    if by_steps(foreign, _PRIME_OPTIM):
        return f"{foreign[f'{_PRIME_OPTIM}.lr_warmup_steps']} steps"
    return f"{foreign[f'{_PRIME_OPTIM}.lr_warmup_steps_ratio'] * 100} %"


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
    bounds = {f"{at}.{field}": foreign[f"data.{key}"] for key, field in _ACCURACY_BOUNDS.items()}
    return {f"{at}.factor": int(factor), **bounds, f"{at}.prefer_complete": foreign["data.filter_truncate"]}


def _prime_row(key: str, default: Any, field: str, value_type: Any = None, note: str = "") -> Any:
    return mapped(key, default, field, read=prime, value_type=value_type, inactive=switches.prime, note=note)


_PRIME_ROWS = not_on_page(
    _prime_row("algorithm.reward_gt_coef", 5.0, "algorithm.outcome_coef"),
    _prime_row("algorithm.reward_dpo_coef", 5.0, "algorithm.process_coef"),
    _prime_row(
        f"{_PRIME_MODEL}.update",
        "before",
        f"{_PRIME}.update_first",
        one_of("before", "after"),
        "one of the keys that select PRIME: also beta_train, optim, reward_gt_coef, reward_dpo_coef, and "
        "data.filter_accuracy",
    ),
    _prime_row(f"{_PRIME_MODEL}.beta_train", 0.05, f"{_PRIME}.beta"),
    refused(
        f"{_PRIME_MODEL}.loss_type",
        "ce",
        "the recipe's other losses need a method of update that its own configuration does not have; write ce",
        inactive=switches.prime,
    ),
    refused(
        f"{_PRIME_MODEL}.ref_path",
        "${reward_model.model.path}",
        "the reference is the model that the process reward model starts from; remove it",
        supported=same_as(f"{_PRIME_MODEL}.path"),
        inactive=switches.prime,
    ),
    no_effect(f"{_PRIME_MODEL}.ref_type", "freeze", "the reference is never trained"),
    no_effect(f"{_PRIME_MODEL}.tokenizer_path", None, "the model reads the policy's tokens"),
    no_effect(f"{_PRIME_MODEL}.enable_gradient_checkpointing", None, "it changes only memory use"),
    no_effect(f"{_PRIME_MODEL}.fused_kernel_options.*", None, "Strop's own kernels are used"),
    _prime_row("reward_model.prime_norm", "batch_norm", f"{_PRIME}.normalize", one_of("batch_norm", "none")),
    refused(
        "reward_model.prime_granularity",
        "token",
        "a reward for a whole response is that of the outcome; write token",
        inactive=switches.prime,
    ),
    _prime_row(
        _UPDATE,
        "${actor_rollout_ref.actor.ppo_mini_batch_size}",
        f"{_PRIME}.tasks_per_update",
        INTEGER,
        "counts responses, unlike ppo_mini_batch_size",
    ),
    _prime_row(f"{_PRIME_OPTIM}.lr", 1e-6, f"{_PRIME}.optimizer.lr"),
    _prime_row(f"{_PRIME_OPTIM}.weight_decay", 0.0, f"{_PRIME}.optimizer.weight_decay"),
    _prime_row(f"{_PRIME_OPTIM}.betas", None, f"{_PRIME}.optimizer.betas", nullable(NUMBER_LIST)),
    _prime_row(f"{_PRIME_OPTIM}.grad_clip", 10.0, f"{_PRIME}.max_grad_norm"),
    _prime_row(f"{_PRIME_OPTIM}.lr_warmup_steps", -1, f"{_PRIME}.schedule.warmup", nullable(INTEGER)),
    _prime_row(f"{_PRIME_OPTIM}.lr_warmup_steps_ratio", 0.0, f"{_PRIME}.schedule.warmup", NUMBER),
    *(
        no_effect(f"{_PRIME_OPTIM}.{name}", None, "the recipe's learning rate is constant")
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
        _prime_row(f"data.{key}", default, f"algorithm.oversampling.{_ACCURACY_BOUNDS[key]}")
        for key, default in (("accuracy_lower_bound", 0.2), ("accuracy_upper_bound", 0.8))
    ),
    _prime_row("data.filter_truncate", True, "algorithm.oversampling.prefer_complete"),
    _prime_row(_FACTOR, 4.0, "algorithm.oversampling.factor", note="1 means none"),
)
_model_row = partial(mapped, read=reward, inactive=switches.reward_model)
_LISTED = (
    mapped(
        "reward_model.enable",
        False,
        "reward.models",
        read=reward,
        note="only its score counts, instead of the reward function's, as with verl's reward managers",
    ),
    _model_row(
        "reward_model.model.input_tokenizer",
        "${actor_rollout_ref.model.path}",
        _REWARD_MODEL + ".tokenizer",
        value_type=nullable(STRING),
        note="null: the model reads the policy's tokens; else the text in its own chat template",
    ),
    _model_row(
        "reward_model.model.path",
        "~/models/Anomy-RM-v0.1",
        _REWARD_MODEL + ".path",
        "algorithm.process_reward.model.path",
        inactive=switches.no_reward_model,
        note="under the recipe PRIME, the model that the process reward model starts from",
    ),
    mapped(
        "reward_model.model.external_lib",
        "${actor_rollout_ref.model.external_lib}",
        "model.imports",
        read=imports,
        value_type=nullable(STRING_OR_LIST),
        inactive=switches.reward_model,
    ),
    _model_row("reward_model.model.trust_remote_code", False, _REWARD_MODEL + ".trust_remote_code"),
    *(
        placement(
            f"reward_model.model.fsdp_config.{name}",
            default,
            NO_SHARDS,
            supported=only(default),
            inactive=switches.reward_model,
        )
        for name, default in (("min_num_params", 0), ("param_offload", False))
    ),
    _model_row(
        "reward_model.micro_batch_size_per_gpu", 16, _REWARD_MODEL + ".microbatch", note="counts sequences"
    ),
    _model_row(
        "reward_model.max_length",
        None,
        _REWARD_MODEL + ".max_tokens",
        value_type=nullable(INTEGER),
        note="longer sequences lose their end; null means max_prompt_length + max_response_length",
    ),
    refused(
        "reward_model.reward_manager",
        "naive",
        "a manager of a recipe, such as collabllm or elliptical, is a class that changes rewards in verl's batches, "
        "which Strop does not run; verl's own managers have no effect, because responses are always scored in parallel "
        "with the same rewards, and dapo's penalty has keys of its own. Write the reward as custom_reward_function",
        supported=only("naive", "batch", "prime", "dapo", "gdpo", "rate_limited", "remote"),
        value_type=STRING,
    ),
    _model_row(
        "custom_reward_function.path",
        None,
        "reward.functions.0.function",
        value_type=nullable(STRING),
        inactive=switches.rule_reward,
        note="null selects a built-in reward by each row's data_source",
    ),
    _model_row(
        "custom_reward_function.name",
        "compute_score",
        "reward.functions.0.function",
        value_type=nullable(STRING),
        inactive=switches.custom_function,
    ),
    *_PRIME_ROWS,
)
_row = partial(mapped, read=overlong_penalty)
_UNLISTED = not_on_page(
    mapped(
        "reward_model.sandbox_fusion.url",
        None,
        "reward.sandbox",
        read=sandbox,
        value_type=nullable(STRING),
        note="null: programs run in a sandbox of this machine",
    ),
    mapped(
        "reward_model.sandbox_fusion.memory_limit_mb",
        1024,
        "reward.sandbox.memory_mb",
        read=sandbox,
        inactive=switches.sandbox_fusion,
    ),
    no_effect(
        "reward_model.sandbox_fusion.max_concurrent",
        64,
        "at most reward.workers x reward.sandbox.concurrency programs run at the same time",
    ),
    _row(f"{_BUFFER}.enable", False, "algorithm.overlong_penalty"),
    _row(
        f"{_BUFFER}.len",
        UNSET,
        "algorithm.overlong_penalty.buffer_tokens",
        value_type=INTEGER,
        inactive=switches.overlong_buffer,
    ),
    _row(
        f"{_BUFFER}.penalty_factor",
        1.0,
        "algorithm.overlong_penalty.factor",
        inactive=switches.overlong_buffer,
    ),
    no_effect(f"{_BUFFER}.log", False, "the metrics always include the penalty"),
    refused(
        "reward_model.reward_kwargs.max_resp_len",
        "${data.max_response_length}",
        "write data.max_response_length, which has the same meaning",
        supported=same_as("data.max_response_length"),
    ),
    no_effect(
        "reward_model.launch_reward_fn_async",
        False,
        "responses are always scored while others are sampled",
        value_type=ANY,
    ),
    no_effect("reward.num_workers", 8, "responses are scored in parallel", value_type=ANY),
    no_effect("reward_model.micro_batch_size", None, "write reward_model.micro_batch_size_per_gpu"),
    *no_effects(
        "reward_model",
        (
            *("strategy", "ulysses_sequence_parallel_size", "nccl_timeout", "megatron.*"),
            "model.fsdp_config.*",
        ),
        "a single process scores",
    ),
    *no_effects(
        "reward_model", ("use_dynamic_bsz", "forward_max_token_len_per_gpu"), "it changes only memory use"
    ),
    *(
        no_effect(f"reward_model.{name}", UNSET, why)
        for name, why in (
            ("num_workers", "responses are scored in parallel"),
            ("load_weight", "the weights are always loaded"),
            ("profiler.*", "Strop does not profile a run"),
            ("model.use_shm", "the model is read from its folder"),
            ("model.use_remove_padding", "sequences are always packed"),
            ("model.use_fused_kernels", "Strop's own kernels are used"),
            ("reward_loop_source", "reward_manager names the manager"),
        )
    ),
    refused("reward_model.reward_loop_module_path", UNSET, "write a reward function", supported=empty),
    refused("reward_model.reward_loop_class_name", UNSET, "write a reward function", supported=empty),
    no_effect(
        "reward_model.param_offload", UNSET, "verl has it in reward_model.megatron; a single process scores"
    ),
    *(
        placement(
            f"{section}.{name}",
            UNSET,
            "the reward model runs in a process of its own on this machine",
            supported=falsy,
            inactive=switches.reward_model,
        )
        for section in ("reward_model", "reward.reward_model")
        for name in ("enable_resource_pool", "n_gpus_per_node", "nnodes", "rollout.*")
    ),
    *(
        refused(
            f"{section}.{name}",
            UNSET,
            (
                "Strop does not run verl's reward managers; pass a function's options as "
                "custom_reward_function.reward_kwargs"
            ),
            supported=empty,
        )
        for section, name in (("reward_model", "reward_kwargs.*"), ("reward", "reward_kwargs.*"))
    ),
    refused(
        "reward_model.model.type",
        "discriminative",
        "a generative model is asked by a reward function; write a run file with reward.judges",
        inactive=switches.reward_model,
    ),
    no_effect("sandbox_fusion.*", UNSET, "reward.sandbox_fusion decides"),
    *(
        _model_row(
            f"{section}.reward_kwargs.*",
            UNSET,
            "reward.functions.0.args",
            inactive=switches.custom_function,
            note="keyword arguments of the function",
        )
        for section in ("custom_reward_function", "reward.custom_reward_function")
    ),
    refused(
        "reward.reward_manager.source",
        "register",
        "Strop does not run a reward manager of your own; write a reward function",
    ),
    no_effect("reward.reward_manager.module.*", UNSET, "the manager is a registered one"),
)
ROWS = (*_LISTED, *_UNLISTED)
