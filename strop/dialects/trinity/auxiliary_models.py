"""Ledger rows of Trinity's `explorer.auxiliary_models`: further models of workflows, and the teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    never,
    no_effect,
    only,
    placement,
    refused,
    written_by,
)
from strop.dialects.ledger.placement_notes import NO_SHARDS
from strop.dialects.ledger.value_types import ANY, INTEGER, MAPPING_LIST, STRING, nullable
from strop.dialects.trinity.presets import DISTILLED, advantage
from strop.dialects.trinity.serving_engine import NATIVE

_AUXILIARY_MODELS = "explorer.auxiliary_models"


def write_auxiliary_models(run: Run) -> Mapping[str, Any]:
    """Write the teacher and the auxiliary models: their paths and response limits."""
    values: dict[str, Any] = {}
    first = 0
    if isinstance(run.algorithm, DistillationOnlyConfig):
        values[f"{_AUXILIARY_MODELS}.0.model_path"] = run.algorithm.distillation.teachers[0].path
        first = 1
    for index, model in enumerate(run.rollout.auxiliary_models, start=first):
        at = f"{_AUXILIARY_MODELS}.{index}"
        values |= {f"{at}.model_path": model.path, f"{at}.max_response_tokens": model.max_response_tokens}
    return values


@written_by(write_auxiliary_models)
def auxiliary_models(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the auxiliary models, without a teacher; each one's name is the last part of its path."""
    listed = [*(foreign[_AUXILIARY_MODELS] or {})]
    models = []
    for index in listed[1:] if advantage(foreign) in DISTILLED else listed:
        path = foreign[f"{_AUXILIARY_MODELS}.{index}.model_path"]
        if not path:
            raise foreign.error_for(
                _AUXILIARY_MODELS,
                f"write {_AUXILIARY_MODELS}.{index}.model_path, the folder or name of the model.",
            )
        limit = foreign[f"{_AUXILIARY_MODELS}.{index}.max_response_tokens"]
        limit = foreign["model.max_response_tokens"] if limit is None else limit
        limits = {} if limit is None else {"max_response_tokens": limit}
        models.append({"name": path.rstrip("/").rpartition("/")[2], "path": path, **limits})
    return {"rollout.auxiliary_models": models} if models else {}


ROWS = (
    mapped(
        _AUXILIARY_MODELS,
        None,
        "rollout.auxiliary_models",
        read=auxiliary_models,
        value_type=nullable(MAPPING_LIST),
    ),
    mapped(
        f"{_AUXILIARY_MODELS}.0.model_path",
        UNSET,
        "rollout.auxiliary_models.0.path",
        read=auxiliary_models,
        value_type=STRING,
        note="a workflow finds the model under the last part of this path; the first one is the teacher of "
        "on_policy_distill and jsd",
    ),
    placement(
        f"{_AUXILIARY_MODELS}.0.tensor_parallel_size",
        UNSET,
        NO_SHARDS,
        supported=only(1),
        value_type=INTEGER,
    ),
)
FURTHER_ROWS = (
    *(
        placement(f"{_AUXILIARY_MODELS}.0.{name}", UNSET, NATIVE, supported=never, value_type=ANY)
        for name in (
            "engine_type",
            "engine_num",
            "dtype",
            "gpu_memory_utilization",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "enforce_eager",
            "use_v1",
            "seed",
        )
    ),
    mapped(
        f"{_AUXILIARY_MODELS}.0.max_response_tokens",
        None,
        "rollout.auxiliary_models.0.max_response_tokens",
        read=auxiliary_models,
        value_type=nullable(INTEGER),
        note="null means model.max_response_tokens",
    ),
    *(
        no_effect(
            f"{_AUXILIARY_MODELS}.0.{name}",
            UNSET,
            "prompts of auxiliary models are bounded by the model alone",
            value_type=nullable(INTEGER),
        )
        for name in ("max_model_len", "max_prompt_tokens", "min_response_tokens")
    ),
    *(
        no_effect(
            f"{_AUXILIARY_MODELS}.0.{name}",
            UNSET,
            "a workflow writes them in its requests",
            value_type=ANY,
        )
        for name in ("temperature", "top_p", "top_k", "logprobs", "repetition_penalty", "name")
    ),
    *(
        no_effect(
            f"{_AUXILIARY_MODELS}.0.{name}",
            UNSET,
            "every auxiliary model has an endpoint and parses tool calls",
            value_type=ANY,
        )
        for name in (
            "enable_openai_api",
            "enable_auto_tool_choice",
            "tool_call_parser",
            "reasoning_parser",
            "enable_history",
        )
    ),
    refused(
        f"{_AUXILIARY_MODELS}.0.enable_thinking",
        False,
        "an auxiliary model has its tokenizer's chat template; remove it",
        supported=only(False, None),
    ),
)
"""The rows of the keys that the page does not have."""
