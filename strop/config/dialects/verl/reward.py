"""verl's `reward_model` and `custom_reward_function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    TEXT,
    TEXTS,
    UNSET,
    WHOLE,
    beyond_the_page,
    mapped,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    same_as,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.engine import NO_SHARDS
from strop.config.dialects.verl.model import imports
from strop.config.schema import Run
from strop.config.schema.reward import RewardModel as Model

_MODEL = "reward.models.0"


def write_reward(run: Run) -> Mapping[str, Any]:
    """A function in a file; a built-in one is chosen by each row's source; or a model."""
    if run.reward.models and not run.reward.functions:
        return {"reward_model.enable": True, **_write_model(run, run.reward.models[0])}
    parts = run.reward.functions
    path, _, name = parts[0].function.rpartition(":") if parts else ("", "", "")
    if not path:
        return {"custom_reward_function.path": None}
    return {"custom_reward_function.path": path, "custom_reward_function.name": name}


@written_by(write_reward)
def reward(theirs: Theirs) -> Mapping[str, Any]:
    """A function of one's own, or else the built-in one for each row's `data_source`; or a model's score."""
    if not switches.reward_model(theirs):
        return {"reward.models": [model(theirs)]}
    path, name = theirs["custom_reward_function.path"], theirs["custom_reward_function.name"]
    return {"reward.functions": [{"function": "by_source" if path is None else f"{path}:{name}"}]}


def _write_model(run: Run, said: Model) -> Mapping[str, Any]:
    own = said.tokenizer == (run.model.tokenizer or run.model.path)
    values = {
        "model.path": said.path,
        "model.trust_remote_code": said.trust_remote_code,
        "max_length": said.max_tokens,
        "micro_batch_size_per_gpu": int(said.batch.count) if said.batch.unit == "sequences" else None,
    }
    kept = {name: value for name, value in values.items() if value is not None}
    kept |= {"model.input_tokenizer": None} if own else {}
    return {f"reward_model.{name}": value for name, value in kept.items()}


def model(theirs: Theirs) -> dict[str, Any]:
    """A reward model computes in bfloat16. Where its chat template is the policy's, it reads its tokens."""
    longest = theirs["data.max_prompt_length"] + theirs["data.max_response_length"]
    settings = {
        "path": theirs["reward_model.model.path"],
        "dtype": "bfloat16",
        "batch": f"{theirs['reward_model.micro_batch_size_per_gpu']} sequences",
        "max_tokens": theirs["reward_model.max_length"] or longest,
        "overlong": "right",
        "trust_remote_code": theirs["reward_model.model.trust_remote_code"],
    }
    if theirs["reward_model.model.input_tokenizer"] is None:
        settings["tokenizer"] = theirs["data.tokenizer"] or theirs["actor_rollout_ref.model.path"]
    return settings


def write_overlong(run: Run) -> Mapping[str, Any]:
    """The switch, and what stands behind it."""
    at, said = (
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        getattr(run.algorithm, "overlong_penalty", None),
    )
    if said is None:
        return {f"{at}.enable": False}
    return {f"{at}.enable": True, f"{at}.len": said.buffer_tokens, f"{at}.penalty_factor": said.factor}


@written_by(write_overlong)
def overlong(theirs: Theirs) -> Mapping[str, Any]:
    """DAPO's penalty for long answers, where it is on."""
    if switches.overlong_buffer(theirs):
        return {}
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    if theirs[f"{buffer}.len"] is None:
        raise theirs.fault(f"{buffer}.enable", f"{buffer}.enable is True; write {buffer}.len too, in tokens.")
    return {
        "algorithm.overlong_penalty.buffer_tokens": theirs[f"{buffer}.len"],
        "algorithm.overlong_penalty.factor": theirs[f"{buffer}.penalty_factor"],
    }


REWARD_MODEL = (
    mapped(
        "reward_model.enable",
        False,
        "reward.models",
        read=reward,
        note="its score counts alone, in place of the reward function's, as with verl's reward managers",
    ),
    mapped(
        "reward_model.model.input_tokenizer",
        "${actor_rollout_ref.model.path}",
        _MODEL + ".tokenizer",
        read=reward,
        kind=or_null(TEXT),
        off=switches.reward_model,
        note="null shows it the policy's own tokens, else the text, in its own chat template",
    ),
    mapped(
        "reward_model.model.path",
        "~/models/Anomy-RM-v0.1",
        _MODEL + ".path",
        read=reward,
        off=switches.reward_model,
    ),
    mapped(
        "reward_model.model.external_lib",
        "${actor_rollout_ref.model.external_lib}",
        "model.imports",
        read=imports,
        kind=or_null(TEXTS),
        off=switches.reward_model,
    ),
    mapped(
        "reward_model.model.trust_remote_code",
        False,
        _MODEL + ".trust_remote_code",
        read=reward,
        off=switches.reward_model,
    ),
    *(
        placement(
            f"reward_model.model.fsdp_config.{name}",
            default,
            NO_SHARDS,
            can=only(default),
            off=switches.reward_model,
        )
        for name, default in (("min_num_params", 0), ("param_offload", False))
    ),
    mapped(
        "reward_model.micro_batch_size_per_gpu",
        16,
        _MODEL + ".batch",
        read=reward,
        off=switches.reward_model,
        note="counts sequences",
    ),
    mapped(
        "reward_model.max_length",
        None,
        _MODEL + ".max_tokens",
        read=reward,
        kind=or_null(WHOLE),
        off=switches.reward_model,
        note="what is longer loses its end; null is max_prompt_length + max_response_length",
    ),
    no_effect(
        "reward_model.reward_manager",
        "naive",
        "answers are always scored side by side, with the same values; dapo's penalty has keys of its own",
        kind=one_of("naive", "prime", "dapo"),
    ),
    *beyond_the_page(
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.enable",
            False,
            "algorithm.overlong_penalty",
            read=overlong,
        ),
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.len",
            UNSET,
            "algorithm.overlong_penalty.buffer_tokens",
            read=overlong,
            kind=WHOLE,
            off=switches.overlong_buffer,
        ),
        mapped(
            "reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor",
            1.0,
            "algorithm.overlong_penalty.factor",
            read=overlong,
            off=switches.overlong_buffer,
        ),
        no_effect(
            "reward_model.reward_kwargs.overlong_buffer_cfg.log",
            False,
            "the penalty is always in the metrics",
        ),
        refused(
            "reward_model.reward_kwargs.max_resp_len",
            "${data.max_response_length}",
            "write data.max_response_length, which is the same thing",
            can=same_as("data.max_response_length"),
        ),
    ),
)

CUSTOM_REWARD = (
    mapped(
        "custom_reward_function.path",
        None,
        "reward.functions.0.function",
        read=reward,
        kind=or_null(TEXT),
        off=switches.rule,
        note="null chooses a built-in reward by each row's data_source",
    ),
    mapped(
        "custom_reward_function.name",
        "compute_score",
        "reward.functions.0.function",
        read=reward,
        off=switches.custom_function,
    ),
)
