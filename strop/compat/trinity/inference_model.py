"""Ledger rows of Trinity's inference models: `explorer.rollout_model` and `explorer.auxiliary_models`.

Where `engine_type` is set to vLLM or SGLang, the options of the rollout model decide `rollout.engine`. With `--here`,
and where the type is not set, the native sampler answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING_LIST,
    NO_SHARDS,
    STRING,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    SupportCheck,
    ValueType,
    mapped,
    named,
    never,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    refused,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.formats import EXPERIENCE
from strop.compat.trinity.presets import DISTILLED, advantage, is_offline, repeat_times
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.config.schema.rollout import NativeEngineConfig, SglangEngineConfig, VllmEngineConfig

_NATIVE = "the native sampler in the trainer's process"
_MODEL = "explorer.rollout_model"
_EXTRA = f"{_MODEL}.extra_engine_args."
_DATA_PARALLEL, _EXPERTS = f"{_MODEL}.data_parallel_size", f"{_MODEL}.enable_expert_parallel"
_ENGINE_TYPES = {"vllm": "vllm", "vllm_async": "vllm", "sglang": "sglang"}
"""Engine of Strop for each engine type."""
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Numbers of parts, of which the native sampler supports 1."""
_DTYPES = ("bfloat16", "float16", "float32")
_SAME_NAME = ("enable_prefix_caching", "enforce_eager", "dtype", "seed", "gpu_memory_utilization")
_ENGINE_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "tensor_parallel_size": "tensor_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
        **{name: name for name in (*_SAME_NAME, "enable_chunked_prefill")},
    },
    "sglang": {
        "tensor_parallel_size": "tensor_parallel",
        "dtype": "dtype",
        "gpu_memory_utilization": "mem_fraction_static",
    },
}
"""Field of the engine's section for each option that Trinity passes to an engine."""


def serving_engine(foreign: ForeignValues) -> str | None:
    """The serving engine that the configuration asks for and `--here` does not replace."""
    key = f"{_MODEL}.engine_type"
    return _ENGINE_TYPES.get(foreign[key]) if foreign.is_set(key) and not foreign.here else None


def _data_parallel_size(foreign: ForeignValues) -> int:
    """Number of engines for each of Trinity's: one for every data-parallel rank of vLLM."""
    return int(foreign[_DATA_PARALLEL]) if serving_engine(foreign) == "vllm" else 1


def gpus_per_engine(foreign: ForeignValues) -> int:
    """Number of GPUs of each of Trinity's engines, with all its data-parallel ranks."""
    tensor_parallel = int(foreign[f"{_MODEL}.tensor_parallel_size"])
    if serving_engine(foreign) != "vllm":
        return tensor_parallel
    return tensor_parallel * int(foreign[f"{_MODEL}.pipeline_parallel_size"]) * _data_parallel_size(foreign)


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write the options of a serving engine; none for another engine."""
    section = run.rollout.engine
    if not isinstance(section, VllmEngineConfig | SglangEngineConfig):
        return {}
    written = {
        f"{_MODEL}.{key}": getattr(section, field) for key, field in _ENGINE_OPTIONS[section.type].items()
    }
    if section.dtype == "model":
        written[f"{_MODEL}.dtype"] = run.model.compute_dtype or run.model.dtype
    given = {key: value for key, value in written.items() if value is not None}
    extra = {f"{_EXTRA}{name}": value for name, value in section.engine_kwargs.items()}
    return {f"{_MODEL}.engine_type": section.type, **given, **extra}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the options of a serving engine; none for the native sampler."""
    name = serving_engine(foreign)
    if name is None:
        return {}
    options = {field: foreign[f"{_MODEL}.{key}"] for key, field in _ENGINE_OPTIONS[name].items()}
    extra = {key.removeprefix(_EXTRA): foreign[key] for key in foreign.written if key.startswith(_EXTRA)}
    if name == "vllm" and foreign[_EXPERTS]:
        extra["enable_expert_parallel"] = True
    if extra:
        options["engine_kwargs"] = extra
    return {f"rollout.engine.{field}": value for field, value in {"type": name, **options}.items()}


def _is_served(foreign: ForeignValues, value: Any) -> bool:
    return serving_engine(foreign) is not None


def _supported(key: str) -> SupportCheck:
    native = only(1) if key in _SIZES else never

    def check(foreign: ForeignValues, value: Any) -> bool:
        if serving_engine(foreign) is None:
            return native(foreign, value)
        return key != "dtype" or value in _DTYPES

    return check


def _passed_only_to(engines: Collection[str]) -> InactiveCheck:
    """Check that an option is inactive with a serving engine to which Trinity does not pass it."""

    def inactive(foreign: ForeignValues) -> str | None:
        name = serving_engine(foreign)
        return None if name is None or name in engines else f"Trinity does not pass it to {name}"

    return inactive


def _option_row(key: str, default: Any, instead: str = _NATIVE) -> KeyMapping:
    """The row of an option that decides a field of a serving engine; the native sampler does not use it."""
    field_of = {name: options[key] for name, options in _ENGINE_OPTIONS.items() if key in options}
    return placement(
        f"{_MODEL}.{key}",
        default,
        instead,
        value_type=ANY,
        supported=_supported(key),
        inactive=_passed_only_to(field_of),
        fields=tuple(f"rollout.engine.{field}" for field in dict.fromkeys(field_of.values())),
        read=engine,
    )


_TOOL_CALLS: Mapping[str | None, str] = {
    None: "auto",
    "hermes": "hermes",
    "llama3_json": "llama3_json",
    "llama4_json": "llama3_json",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "mistral": "mistral",
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
    "openai": "gpt_oss",
}
"""Strop's parser of tool calls by vLLM's name; the first name of a parser is written."""
_REASONING: Mapping[str | None, str] = {None: "none", "deepseek_r1": "deepseek_r1", "qwen3": "qwen3"}


def _parser_row(name: str, parsers: Mapping[str | None, str], null: str) -> KeyMapping:
    return mapped(
        f"{_MODEL}.{name}",
        None,
        f"rollout.endpoint.{name}",
        converts=named(parsers),
        value_type=nullable(one_of(*(parser for parser in parsers if parser is not None))),
        note=null,
    )


RUNNERS, _ENGINES = "explorer.runner_per_model", f"{_MODEL}.engine_num"


def write_engines(run: Run) -> Mapping[str, Any]:
    """Write the engines, and the runners per engine where that is an integer."""
    engines = run.rollout.pool.engines if run.rollout.pool else 1
    written: dict[str, Any] = {_ENGINES: engines}
    per_runner = engines * getattr(run.algorithm, "rollouts_per_task", 1)
    limit = run.rollout.max_concurrent_rollouts
    if limit is not None and limit % per_runner == 0:
        written[RUNNERS] = limit // per_runner
    return written


@written_by(write_engines)
def engines(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the engines and the rollout concurrency; a runner processes one task with all its rollouts."""
    engines = 1 if foreign.here else foreign[_ENGINES]
    processes = engines * _data_parallel_size(foreign)
    settings: dict[str, Any] = {} if processes == 1 else {"rollout.pool.engines": processes}
    if foreign.is_set(RUNNERS) and not is_offline(foreign):
        settings["rollout.max_concurrent_rollouts"] = foreign[RUNNERS] * engines * repeat_times(foreign)
    return settings


_THINKING = (
    "explorer.rollout_model.enable_thinking",
    "model.enable_thinking",
    f"{EXPERIENCE}.format.enable_thinking",
)


def write_thinking(run: Run) -> Mapping[str, Any]:
    """Write the only variable of the chat template that Trinity has."""
    args = run.data.chat_template_args
    return {_THINKING[0]: args["enable_thinking"]} if set(args) == {"enable_thinking"} else {}


@written_by(write_thinking)
def thinking(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the variable of the chat template from either key; where both are written, they must be equal."""
    written = {foreign[key] for key in _THINKING if foreign.is_set(key) and foreign[key] is not None}
    if len(written) > 1:
        raise foreign.error_for(_THINKING[0], f"{' and '.join(_THINKING)} differ; write one of them.")
    return {"data.chat_template_args": {"enable_thinking": written.pop()}} if written else {}


def _none_or_same(key: str) -> SupportCheck:
    """Check that supports null and the value of another key."""
    return lambda foreign, value: value is None or value == foreign[key]


_NO_OPTION = "the native sampler has no such option"
_OWN_OPTIONS = "Strop starts its engines with options of its own"
_DERIVED = (
    *("enable_lora", "enable_runtime_lora_updating", "lora_modules", "lora_kwargs", "rope_scaling"),
    *("rope_theta", "engine_id", "ray_namespace", "ray_actor_name", "sync_method", "checkpoint_job_dir"),
    *("cuda_visible_devices", "gpu_per_engine", "nnodes", "node_rank", "enable_return_routed_experts"),
    *("trust_remote_code", "external_model_config.*"),
)
"""Keys of an inference model that follow from other keys."""


def _endpoint_rows(section: str) -> tuple[KeyMapping, ...]:
    """Options of an inference model, since 0.6, that the native sampler does not have."""
    return (
        *no_effects(section, ("weight_sync_buffer_size",), "weights are sent without a buffer of a set size"),
        *no_effects(
            section, ("base_port", "api_key"), "an endpoint has a free port of this machine and its own token"
        ),
        *no_effects(section, ("enable_multimodal",), "format.image_key decides whether prompts have images"),
    )


ROLLOUT_MODEL = (
    *unstated_defaults(
        placement(
            f"{_MODEL}.engine_type",
            "vllm",
            _NATIVE,
            supported=_is_served,
            fields=("rollout.engine.type",),
            read=engine,
        ),
        placement(
            _ENGINES,
            1,
            "one engine runs in the explorer's process, several run in a process each; with --here, one",
            supported=lambda foreign, value: value == 1 or not foreign.here,
            fields=("rollout.pool.engines",),
            read=engines,
        ),
        _option_row("tensor_parallel_size", 1, NO_SHARDS),
    ),
    placement(f"{_MODEL}.enable_history", False, "a workflow's model calls are always recorded"),
    *not_on_page(
        _option_row("enable_prefix_caching", True),
        _option_row("enforce_eager", True),
        _option_row("dtype", "bfloat16"),
        _option_row("seed", 42),
        _option_row("gpu_memory_utilization", 0.9),
        _option_row("enable_chunked_prefill", False),
        *(
            placement(f"{_MODEL}.{name}", default, _OWN_OPTIONS, supported=_is_served, value_type=ANY)
            for name, default in (("use_v1", True), ("enable_log_requests", False), ("bundle_indices", ""))
        ),
        *(
            refused(
                f"{_MODEL}.{name}",
                None,
                f"a run has one value for all its requests; write model.{name}",
                supported=_none_or_same(f"model.{name}"),
            )
            for name in (
                *("model_path", "max_model_len", "min_response_tokens", "temperature", "top_p", "top_k"),
                *("repetition_penalty", "enable_prompt_truncation"),
            )
        ),
        *(
            no_effect(
                f"{_MODEL}.{name}", None, f"Trinity replaces it by model.{name}", value_type=nullable(INTEGER)
            )
            for name in ("max_prompt_tokens", "max_response_tokens")
        ),
        refused(f"{_MODEL}.ignore_eos", False, "it is for tests of long responses; remove it"),
        refused(
            f"{_MODEL}.chat_template", None, "write model.custom_chat_template", supported=only(None, "")
        ),
        placement(f"{_MODEL}.logprobs", None, "log-probs are always recorded"),
        placement(f"{_MODEL}.enable_openai_api", False, "the endpoint runs whenever a workflow needs it"),
        placement(f"{_MODEL}.enable_auto_tool_choice", False, "tool calls are always parsed"),
        _parser_row("tool_call_parser", _TOOL_CALLS, "null means the format of the model's chat template"),
        _parser_row("reasoning_parser", _REASONING, "null leaves the reasoning in the text of a response"),
        *(
            mapped(
                key,
                None,
                "data.chat_template_args",
                read=thinking,
                value_type=nullable(BOOLEAN),
                note="a variable of the chat template; where the key is not written, the template's default decides",
            )
            for key in _THINKING
        ),
        *no_effects(_MODEL, (*_DERIVED, "name"), "Trinity sets it itself"),
    ),
    *versions(
        _option_row("pipeline_parallel_size", 1, NO_SHARDS),
        placement(
            _DATA_PARALLEL,
            1,
            "each rank is an engine of its own; with --here, there is one engine",
            supported=_supported("data_parallel_size"),
            inactive=_passed_only_to(("vllm",)),
            fields=("rollout.pool.engines",),
            read=engines,
        ),
        placement(
            _EXPERTS,
            False,
            NO_SHARDS,
            supported=lambda foreign, value: not value or _is_served(foreign, value),
            inactive=_passed_only_to(("vllm",)),
            fields=("rollout.engine.engine_kwargs",),
            read=engine,
        ),
        placement(
            f"{_EXTRA}*",
            UNSET,
            _NO_OPTION,
            supported=_is_served,
            fields=("rollout.engine.engine_kwargs",),
            read=engine,
        ),
        *_endpoint_rows(_MODEL),
        since="0.6",
    ),
)
_AUXILIARY_MODELS = "explorer.auxiliary_models"
_AUXILIARY = f"{_AUXILIARY_MODELS}.0"
_BOUNDED = "prompts of auxiliary models are bounded by the model alone"
_OWN_TEMPLATE = "an auxiliary model has its tokenizer's chat template; remove it"
_AUXILIARY_SIZES = {"tensor_parallel_size", "pipeline_parallel_size"}
"""Options whose value 1 needs no serving engine."""


def write_auxiliary_models(run: Run) -> Mapping[str, Any]:
    """Write the teacher and the auxiliary models: their paths and response limits."""
    values: dict[str, Any] = {}
    if isinstance(run.algorithm, DistillationOnlyConfig):
        values[f"{_AUXILIARY}.model_path"] = run.algorithm.distillation.teachers[0].path
    for index, model in enumerate(run.rollout.auxiliary_models, start=len(values)):
        at = f"{_AUXILIARY_MODELS}.{index}"
        values |= {f"{at}.model_path": model.path, f"{at}.max_response_tokens": model.max_response_tokens}
        section = model.engine
        if isinstance(section, NativeEngineConfig):
            continue
        values[f"{at}.engine_type"] = section.type
        for key, field in _ENGINE_OPTIONS[section.type].items():
            value = getattr(section, field)
            if value is not None and not (key == "dtype" and value == "model"):  # the library's default
                values[f"{at}.{key}"] = value
    return values


@written_by(write_auxiliary_models)
def auxiliary_models(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the auxiliary models, without a teacher; each one's name is the last part of its path."""
    listed = [*(foreign[_AUXILIARY_MODELS] or {})]
    models = []
    for index in listed[1:] if advantage(foreign) in DISTILLED else listed:
        at = f"{_AUXILIARY_MODELS}.{index}"
        path = foreign[f"{at}.model_path"]
        if not path:
            raise foreign.error_for(
                _AUXILIARY_MODELS, f"write {at}.model_path, the folder or name of the model."
            )
        limit = foreign[f"{at}.max_response_tokens"]
        limit = foreign["model.max_response_tokens"] if limit is None else limit
        limits = {} if limit is None else {"max_response_tokens": limit}
        name = path.rstrip("/").rpartition("/")[2]
        models.append({"name": name, "path": path, **limits, **_auxiliary_engine(foreign, at)})
    return {"rollout.auxiliary_models": models} if models else {}


def _auxiliary_engine(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The section `engine` of a model that asks for a serving engine by its type or by an option; otherwise none."""
    given = {key: foreign[f"{at}.{key}"] for key in _ENGINE_OPTIONS["vllm"] if foreign.is_set(f"{at}.{key}")}
    is_typed = foreign.is_set(f"{at}.engine_type")
    is_divided = any(given.get(size, 1) > 1 for size in _AUXILIARY_SIZES)
    if foreign.here or not (is_typed or is_divided or given.keys() - _AUXILIARY_SIZES):
        return {}
    name = _ENGINE_TYPES.get(foreign[f"{at}.engine_type"]) if is_typed else "vllm"
    if name is None:
        return {}
    fields = _ENGINE_OPTIONS[name]
    return {"engine": {"type": name, **{fields[key]: value for key, value in given.items() if key in fields}}}


def _served(accepts: Callable[[Any], bool] = lambda value: True) -> SupportCheck:
    """Check of an option of serving engines; the teacher of a distillation and `--here` have none."""

    def check(foreign: ForeignValues, value: Any) -> bool:
        return not foreign.here and advantage(foreign) not in DISTILLED and accepts(value)

    return check


def _one_or_served(foreign: ForeignValues, value: Any) -> bool:
    return value == 1 or _served()(foreign, value)


def _auxiliary_row(
    key: str,
    supported: SupportCheck | None = None,
    instead: str = f"without a serving engine, {_NATIVE}",
    value_type: ValueType = ANY,
) -> KeyMapping:
    """The row of an option of a model's serving engine."""
    field = "type" if key == "engine_type" else _ENGINE_OPTIONS["vllm"][key]
    passed = key == "engine_type" or key in _ENGINE_OPTIONS["sglang"]
    return placement(
        f"{_AUXILIARY}.{key}",
        UNSET,
        instead if passed else f"{instead}; Trinity does not pass it to SGLang",
        supported=supported or _served(),
        value_type=value_type,
        fields=(f"rollout.auxiliary_models.0.engine.{field}",),
        read=auxiliary_models,
    )


_row = partial(mapped, read=auxiliary_models)
AUXILIARY_MODELS = (
    *unstated_defaults(
        _row(_AUXILIARY_MODELS, None, "rollout.auxiliary_models", value_type=nullable(MAPPING_LIST)),
        _row(
            f"{_AUXILIARY}.model_path",
            UNSET,
            "rollout.auxiliary_models.0.path",
            value_type=STRING,
            note="a workflow finds the model under the last part of this path; the first one is the teacher of "
            "on_policy_distill and jsd",
        ),
        _auxiliary_row("tensor_parallel_size", _one_or_served, NO_SHARDS, INTEGER),
    ),
    *not_on_page(
        _auxiliary_row("engine_type", _served(lambda value: value in _ENGINE_TYPES)),
        _auxiliary_row("dtype", _served(lambda value: value in _DTYPES)),
        _auxiliary_row("gpu_memory_utilization"),
        _auxiliary_row("enable_prefix_caching"),
        _auxiliary_row("enable_chunked_prefill"),
        _auxiliary_row("enforce_eager"),
        _auxiliary_row("seed"),
        placement(f"{_AUXILIARY}.engine_num", UNSET, "an auxiliary model has one engine", supported=only(1)),
        placement(f"{_AUXILIARY}.use_v1", UNSET, _OWN_OPTIONS, supported=_served()),
        _row(
            f"{_AUXILIARY}.max_response_tokens",
            None,
            "rollout.auxiliary_models.0.max_response_tokens",
            value_type=nullable(INTEGER),
            note="null means model.max_response_tokens",
        ),
        *no_effects(
            _AUXILIARY,
            ("max_model_len", "max_prompt_tokens", "min_response_tokens"),
            _BOUNDED,
            value_type=nullable(INTEGER),
        ),
        *no_effects(_AUXILIARY, ("enable_prompt_truncation",), _BOUNDED),
        *no_effects(
            _AUXILIARY,
            ("temperature", "top_p", "top_k", "logprobs", "repetition_penalty", "name"),
            "a workflow writes them in its requests",
        ),
        *no_effects(
            _AUXILIARY,
            (
                *("enable_openai_api", "enable_auto_tool_choice", "tool_call_parser", "reasoning_parser"),
                "enable_history",
            ),
            "every auxiliary model has an endpoint and parses tool calls",
        ),
        *no_effects(_AUXILIARY, ("enable_log_requests",), "the native sampler logs no requests"),
        *no_effects(_AUXILIARY, (*_DERIVED, "bundle_indices"), "Trinity sets it itself"),
        refused(f"{_AUXILIARY}.enable_thinking", False, _OWN_TEMPLATE, supported=only(False, None)),
        refused(f"{_AUXILIARY}.chat_template", None, _OWN_TEMPLATE, supported=only(None, False, "")),
        refused(
            f"{_AUXILIARY}.ignore_eos",
            None,
            "it is for tests of long responses; remove it",
            supported=only(None, False, ""),
        ),
    ),
    *versions(
        _auxiliary_row("pipeline_parallel_size", _one_or_served, NO_SHARDS, INTEGER),
        placement(f"{_AUXILIARY}.data_parallel_size", 1, NO_SHARDS, supported=only(1)),
        placement(f"{_AUXILIARY}.enable_expert_parallel", False, NO_SHARDS, supported=only(False)),
        placement(f"{_AUXILIARY}.extra_engine_args.*", UNSET, _NO_OPTION, supported=never),
        *_endpoint_rows(_AUXILIARY),
        since="0.6",
    ),
)
