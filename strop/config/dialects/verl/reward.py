"""verl's `reward_model` and `custom_reward_function`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    TEXT,
    UNSET,
    WHOLE,
    beyond_the_page,
    mapped,
    never,
    no_effect,
    one_of,
    or_null,
    refused,
    same_as,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.schema import Run

_NO_MODEL = "reward models are not built yet; leave reward_model.enable False and use a reward function"


def write_reward(run: Run) -> Mapping[str, Any]:
    """A function in a file; a built-in one is chosen by each row's source."""
    parts = run.reward.functions
    path, _, name = parts[0].function.rpartition(":") if parts else ("", "", "")
    if not path:
        return {"custom_reward_function.path": None}
    return {"custom_reward_function.path": path, "custom_reward_function.name": name}


@written_by(write_reward)
def reward(theirs: Theirs) -> Mapping[str, Any]:
    """A function of one's own, or else the built-in one for each row's `data_source`."""
    path, name = theirs["custom_reward_function.path"], theirs["custom_reward_function.name"]
    return {"reward.functions": [{"function": "by_source" if path is None else f"{path}:{name}"}]}


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
    refused("reward_model.enable", False, "reward models are not built yet; use a reward function"),
    refused(
        "reward_model.model.input_tokenizer",
        "${actor_rollout_ref.model.path}",
        _NO_MODEL,
        can=never,
        off=switches.reward_model,
    ),
    *(
        refused(f"reward_model.{name}", default, _NO_MODEL, can=never, off=switches.reward_model)
        for name, default in (
            ("model.path", "~/models/Anomy-RM-v0.1"),
            ("model.external_lib", "${actor_rollout_ref.model.external_lib}"),
            ("model.trust_remote_code", False),
            ("model.fsdp_config.min_num_params", 0),
            ("model.fsdp_config.param_offload", False),
            ("micro_batch_size_per_gpu", 16),
            ("max_length", None),
        )
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
