"""Ledger rows of Trinity's `explorer.auxiliary_models`: further models of workflows, and the teacher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    mapped,
    no_effect,
    only,
    placement,
    refused,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import ANY, INTEGER, MAPPING_LIST, STRING, ValueType, nullable
from strop.compat.trinity.presets import DISTILLED, advantage
from strop.compat.trinity.serving_engine import DTYPES, ENGINE_OPTIONS, ENGINE_TYPES, NATIVE
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.config.schema.inference_engine import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig

_AUXILIARY_MODELS = "explorer.auxiliary_models"
_OPTIONS = tuple(ENGINE_OPTIONS["vllm"])
"""Options of serving engines."""
_SIZES = {"tensor_parallel_size", "pipeline_parallel_size"}
"""Options whose value 1 needs no serving engine."""


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
        if not isinstance(model.engine, NativeEngineConfig):
            values |= _written_engine(at, model.engine)
    return values


def _written_engine(at: str, section: VllmEngineConfig | SglangEngineConfig) -> dict[str, Any]:
    """The serving engine of a model, without the options that have the library's default."""
    options = {key: getattr(section, field) for key, field in ENGINE_OPTIONS[section.type].items()}
    if section.dtype == "model":
        del options["dtype"]
    given = {f"{at}.{key}": value for key, value in options.items() if value is not None}
    return {f"{at}.engine_type": section.type, **given}


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
        name = path.rstrip("/").rpartition("/")[2]
        models.append(
            {"name": name, "path": path, **limits, **_engine(foreign, f"{_AUXILIARY_MODELS}.{index}")}
        )
    return {"rollout.auxiliary_models": models} if models else {}


def _engine(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The section `engine` of a model that asks for a serving engine by its type or by an option; otherwise none."""
    given = {key: foreign[f"{at}.{key}"] for key in _OPTIONS if foreign.is_set(f"{at}.{key}")}
    is_typed = foreign.is_set(f"{at}.engine_type")
    is_divided = any(given.get(size, 1) > 1 for size in _SIZES)
    if foreign.here or not (is_typed or is_divided or given.keys() - _SIZES):
        return {}
    name = ENGINE_TYPES.get(foreign[f"{at}.engine_type"]) if is_typed else "vllm"
    if name is None:
        return {}
    fields = ENGINE_OPTIONS[name]
    return {"engine": {"type": name, **{fields[key]: value for key, value in given.items() if key in fields}}}


def _served(accepts: Callable[[Any], bool]) -> SupportCheck:
    """Check of an option of serving engines; the teacher of a distillation and `--here` have none."""

    def check(foreign: ForeignValues, value: Any) -> bool:
        return not foreign.here and advantage(foreign) not in DISTILLED and accepts(value)

    return check


def _one_or_served(foreign: ForeignValues, value: Any) -> bool:
    return value == 1 or _served(lambda value: True)(foreign, value)


def _engine_row(key: str, accepts: Callable[[Any], bool] = lambda value: True) -> KeyMapping:
    """The row of an option of a model's serving engine."""
    return _row(key, _served(accepts), f"without a serving engine, {NATIVE}", ANY)


def _size_row(key: str) -> KeyMapping:
    """The row of a number of parts of a model's serving engine."""
    return _row(key, _one_or_served, NO_SHARDS, INTEGER)


def _row(key: str, supported: SupportCheck, instead: str, value_type: ValueType) -> KeyMapping:
    field = "type" if key == "engine_type" else ENGINE_OPTIONS["vllm"][key]
    passed = key == "engine_type" or key in ENGINE_OPTIONS["sglang"]
    return placement(
        f"{_AUXILIARY_MODELS}.0.{key}",
        UNSET,
        instead if passed else f"{instead}; Trinity does not pass it to SGLang",
        supported=supported,
        value_type=value_type,
        fields=(f"rollout.auxiliary_models.0.engine.{field}",),
        read=auxiliary_models,
    )


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
    _size_row("tensor_parallel_size"),
)
FURTHER_ROWS = (
    _engine_row("engine_type", lambda value: value in ENGINE_TYPES),
    _engine_row("dtype", lambda value: value in DTYPES),
    *(
        _engine_row(name)
        for name in (
            "gpu_memory_utilization",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "enforce_eager",
            "seed",
        )
    ),
    placement(
        f"{_AUXILIARY_MODELS}.0.engine_num",
        UNSET,
        "an auxiliary model has one engine",
        supported=only(1),
        value_type=ANY,
    ),
    placement(
        f"{_AUXILIARY_MODELS}.0.use_v1",
        UNSET,
        "Strop starts its engines with options of its own",
        supported=_served(lambda value: True),
        value_type=ANY,
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
LATER = (
    _size_row("pipeline_parallel_size"),
    *(
        placement(f"{_AUXILIARY_MODELS}.0.{name}", default, NO_SHARDS, supported=only(default))
        for name, default in (("data_parallel_size", 1), ("enable_expert_parallel", False))
    ),
)
"""Rows of keys that recent versions added."""
