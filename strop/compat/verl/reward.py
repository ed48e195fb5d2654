"""Ledger rows of verl's `reward_model` and `custom_reward_function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import INTEGER, STRING, STRING_OR_LIST, nullable
from strop.compat.verl import switches
from strop.compat.verl.model import imports
from strop.config.schema import Run
from strop.config.schema.reward import RewardModelConfig as Model
from strop.config.schema.sandbox import SandboxFusionConfig

_MODEL = "reward.models.0"
BY_SOURCE = "verl_by_source"
"""Built-in reward with verl's extraction rules and values for each of its data sources."""
_ARGUMENTS = "custom_reward_function.reward_kwargs"
_LATER = {"version": "0.9"}
_LATER_KEY = "data.dataloader_num_workers"
"""Key without effect that all later versions have and the seed page's does not, so that a converted configuration
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
        return {"reward.models": [model(foreign)]}
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
    """verl's scorers by `data_source`, of the seed page's version or, with a later key, of the latest."""
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


def model(foreign: ForeignValues) -> dict[str, Any]:
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


def write_overlong_penalty(run: Run) -> Mapping[str, Any]:
    """Write the switch and, where it is on, the overlong penalty."""
    at, penalty = (
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        getattr(run.algorithm, "overlong_penalty", None),
    )
    if penalty is None:
        return {f"{at}.enable": False}
    return {f"{at}.enable": True, f"{at}.len": penalty.buffer_tokens, f"{at}.penalty_factor": penalty.factor}


@written_by(write_overlong_penalty)
def overlong_penalty(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read DAPO's overlong penalty, where it is on."""
    if switches.overlong_buffer(foreign):
        return {}
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    if foreign[f"{buffer}.len"] is None:
        raise foreign.error_for(
            f"{buffer}.enable", f"{buffer}.enable is True; also write {buffer}.len, in tokens."
        )
    return {
        "algorithm.overlong_penalty.buffer_tokens": foreign[f"{buffer}.len"],
        "algorithm.overlong_penalty.factor": foreign[f"{buffer}.penalty_factor"],
    }


def write_sandbox(run: Run) -> Mapping[str, Any]:
    """Write the server that runs programs; null for programs that run on this machine."""
    sandbox, at = run.reward.sandbox, "reward_model.sandbox_fusion"
    if not isinstance(sandbox, SandboxFusionConfig):
        return {f"{at}.url": None}
    return {f"{at}.url": sandbox.url, f"{at}.memory_limit_mb": sandbox.memory_mb}


@written_by(write_sandbox)
def sandbox(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the server that runs programs."""
    at = "reward_model.sandbox_fusion"
    if switches.sandbox_fusion(foreign):
        return {}
    memory = foreign[f"{at}.memory_limit_mb"]
    return {"reward.sandbox": {"type": "sandbox_fusion", "url": foreign[f"{at}.url"], "memory_mb": memory}}


REWARD_MODEL = (
    mapped(
        "reward_model.enable",
        False,
        "reward.models",
        read=reward,
        note="only its score counts, instead of the reward function's, as with verl's reward managers",
    ),
    mapped(
        "reward_model.model.input_tokenizer",
        "${actor_rollout_ref.model.path}",
        _MODEL + ".tokenizer",
        read=reward,
        value_type=nullable(STRING),
        inactive=switches.reward_model,
        note="null: the model reads the policy's tokens; else the text in its own chat template",
    ),
    mapped(
        "reward_model.model.path",
        "~/models/Anomy-RM-v0.1",
        _MODEL + ".path",
        "algorithm.process_reward.model.path",
        read=reward,
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
    mapped(
        "reward_model.model.trust_remote_code",
        False,
        _MODEL + ".trust_remote_code",
        read=reward,
        inactive=switches.reward_model,
    ),
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
    mapped(
        "reward_model.micro_batch_size_per_gpu",
        16,
        _MODEL + ".microbatch",
        read=reward,
        inactive=switches.reward_model,
        note="counts sequences",
    ),
    mapped(
        "reward_model.max_length",
        None,
        _MODEL + ".max_tokens",
        read=reward,
        value_type=nullable(INTEGER),
        inactive=switches.reward_model,
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
    *not_on_page(
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
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
            False,
            "algorithm.overlong_penalty",
            read=overlong_penalty,
        ),
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.len",
            UNSET,
            "algorithm.overlong_penalty.buffer_tokens",
            read=overlong_penalty,
            value_type=INTEGER,
            inactive=switches.overlong_buffer,
        ),
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
            1.0,
            "algorithm.overlong_penalty.factor",
            read=overlong_penalty,
            inactive=switches.overlong_buffer,
        ),
        no_effect(
            "reward_model.reward_kwargs.overlong_buffer_cfg.log",
            False,
            "the metrics always include the penalty",
        ),
        refused(
            "reward_model.reward_kwargs.max_resp_len",
            "${data.max_response_length}",
            "write data.max_response_length, which has the same meaning",
            supported=same_as("data.max_response_length"),
        ),
    ),
)

CUSTOM_REWARD = (
    mapped(
        "custom_reward_function.path",
        None,
        "reward.functions.0.function",
        read=reward,
        value_type=nullable(STRING),
        inactive=switches.rule_reward,
        note="null selects a built-in reward by each row's data_source",
    ),
    mapped(
        "custom_reward_function.name",
        "compute_score",
        "reward.functions.0.function",
        read=reward,
        value_type=nullable(STRING),
        inactive=switches.custom_function,
    ),
)
