"""Ledger rows of Trinity's task pipeline: operators on the rows of the training taskset before the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    mapped,
    never,
    no_effect,
    placement,
    refused,
    versions,
    written_by,
)
from strop.compat.ledger.value_types import INTEGER, MAPPING, NUMBER, STRING, STRING_OR_LIST, nullable
from strop.compat.trinity.juicer_service import has_service, read_service, write_service
from strop.compat.trinity.tasksets import tasks
from strop.config.schema import Run
from strop.config.schema.language_model import EndpointModelConfig, EngineModelConfig
from strop.config.schema.task_filters import LlmScoreConfig
from strop.config.schema.task_operators import DataJuicerTasksConfig, OrderConfig
from strop.config.schema.task_pipeline import TaskOperatorConfig, TaskPipelineConfig
from strop.errors import ConfigError

TASKS = "data_processor.task_pipeline"
OPERATORS = f"{TASKS}.operators"
_CRITERIA = {"llm_quality_score_filter": "quality", "llm_difficulty_score_filter": "difficulty"}
_WEIGHTS = {"quality": "llm_quality_score", "difficulty": "llm_difficulty_score"}
_ARGS = (
    "api_or_hf_model",
    "is_hf_model",
    "api_endpoint",
    "min_score",
    "max_score",
    "input_keys",
    "field_names",
    "try_num",
    "sampling_params",
)
_SAMPLING = {"temperature": "temperature", "max_tokens": "max_tokens", "max_new_tokens": "max_tokens"}
_UNKNOWN = (
    f"Strop runs {' and '.join(_CRITERIA)} itself, with a question of its own, and Data-Juicer's others by its "
    "service: write service.data_juicer with auto_start or server_url. Without a service, --here leaves them out"
)


def write_task_pipeline(run: Run) -> Mapping[str, Any]:
    """Write the pipeline. Raises ConfigError for an operator that Trinity does not have."""
    section = run.data.pipeline
    if section is None:
        return {}
    path = run.data.train.path
    values: dict[str, Any] = {
        f"{TASKS}.inputs": [path] if isinstance(path, str) else list(path),
        **_num_process(section),
    }
    if section.columns is not None:
        values[f"{TASKS}.target_fields"] = list(section.columns)
    index = 0
    for operator in section.operators:
        if isinstance(operator, DataJuicerTasksConfig):
            values |= _juicer_values(operator, index)
            index += len(operator.operators or ())
            continue
        values |= {f"{TASKS}.{key}": value for key, value in _operator(operator, index).items()}
        index += 1
    if section.export is not None:
        values |= {f"{TASKS}.output.path": section.export}
        if section.export_table is not None:
            values |= {f"{TASKS}.output.name": section.export_table, f"{TASKS}.output.storage_type": "sql"}
    return values


def _num_process(section: TaskPipelineConfig) -> dict[str, Any]:
    """The number of processes, each of which asks an endpoint for one row at a time; nothing for Strop's defaults."""
    models = [operator.model for operator in section.operators if isinstance(operator, LlmScoreConfig)]
    calls = [model.concurrency for model in models if isinstance(model, EndpointModelConfig)]
    is_default = section.processes == 1 and 1 not in calls
    return {} if is_default else {f"{TASKS}.num_process": section.processes}


def _juicer_values(section: DataJuicerTasksConfig, index: int) -> dict[str, Any]:
    values: dict[str, Any] = dict(write_service(section))
    if section.config is not None:
        if index:
            raise ConfigError("data.pipeline: Trinity has either operators or a recipe of Data-Juicer.")
        return values | {f"{TASKS}.config_path": section.config}
    for number, operator in enumerate(section.operators or (), index):
        (name, args), *_ = operator.items()
        values |= {f"{OPERATORS}.{number}.name": name, f"{OPERATORS}.{number}.args": args or {}}
    return values


def _operator(section: TaskOperatorConfig, index: int) -> dict[str, Any]:
    columns = {column: name for name, column in _WEIGHTS.items()}
    if (
        isinstance(section, OrderConfig)
        and section.weights
        and {*section.weights} <= {*columns}
        and section.folds == 1
    ):
        weights = {
            f"priority_weights.{columns[column]}": weight for column, weight in section.weights.items()
        }
        return weights | {"top_k": section.limit or -1}
    if not isinstance(section, LlmScoreConfig) or section.prompt is not None:
        raise ConfigError(f"data.pipeline: Trinity has no operator {section.type} like Strop's.")
    model = section.model
    args: dict[str, Any] = {
        "min_score": section.min_score,
        "max_score": section.max_score,
        "input_keys": list(section.input_columns),
        "field_names": list(section.field_names or section.input_columns),
        "try_num": section.invalid.attempts,
        "sampling_params": {"temperature": model.temperature, "max_tokens": model.max_tokens},
    }
    if isinstance(model, EngineModelConfig):
        if model.path is None:
            raise ConfigError(
                "data.pipeline: Trinity's operators do not ask the policy; name the model's path."
            )
        args |= {"api_or_hf_model": model.path, "is_hf_model": True}
    else:
        args |= {"api_or_hf_model": model.model}
        args |= {"api_endpoint": f"{model.url.rstrip('/')}/chat/completions"} if model.url else {}
    name = next(name for name, criterion in _CRITERIA.items() if criterion == section.criterion)
    return {f"operators.{index}.name": name, f"operators.{index}.args": args}


@written_by(write_task_pipeline)
def task_pipeline(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the pipeline."""
    operators = list(_sections(foreign))
    if not operators:
        return {}
    scored = {_WEIGHTS[operator["criterion"]] for operator in operators if "criterion" in operator}
    if scored and (order := _order(foreign, scored)):
        operators.append(order)
    section: dict[str, Any] = {"operators": operators}
    if foreign.is_set(f"{TASKS}.num_process"):
        section["processes"] = foreign[f"{TASKS}.num_process"]
    if foreign.is_set(f"{TASKS}.target_fields") and foreign[f"{TASKS}.target_fields"]:
        fields = foreign[f"{TASKS}.target_fields"]
        section["columns"] = [fields] if isinstance(fields, str) else fields
    return {"data.pipeline": section | dict(_export(foreign))}


def _sections(foreign: ForeignValues) -> Iterator[dict[str, Any]]:
    """The operators; neighbors that Data-Juicer runs are one. A recipe takes the place of all, as in Trinity."""
    config_key = f"{TASKS}.config_path"
    if foreign.is_set(config_key) and foreign[config_key] and has_service(foreign):
        service = read_service(foreign, config_key)
        yield {"type": "data_juicer", **service, "config": foreign[config_key]}
        return
    juicer: dict[str, Any] | None = None
    for index, operator in (foreign[OPERATORS] or {}).items():
        at = f"{OPERATORS}.{index}"
        if operator.get("name") not in _CRITERIA:
            if has_service(foreign):
                juicer = juicer or {"type": "data_juicer", **read_service(foreign, at), "operators": []}
                juicer["operators"].append({operator["name"]: operator.get("args") or {}})
            continue
        if juicer is not None:
            yield juicer
            juicer = None
        yield _section(foreign, at, operator)
    if juicer is not None:
        yield juicer


def _section(foreign: ForeignValues, at: str, operator: Mapping[str, Any]) -> dict[str, Any]:
    args = operator.get("args") or {}
    if unknown := [name for name in args if name not in _ARGS]:
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args has {', '.join(unknown)}, which Strop's {operator['name']} does not have; it has "
            f"{', '.join(_ARGS)}. A prompt of your own is `prompt` of the operator llm_score in a run file.",
        )
    if not args.get("api_or_hf_model"):
        raise foreign.error_for(
            f"{at}.args", f"{at}.args: write api_or_hf_model, the name of the model that judges."
        )
    sampling = args.get("sampling_params") or {}
    if unknown := [name for name in sampling if name not in _SAMPLING]:
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args.sampling_params has {', '.join(unknown)}; Strop has {', '.join(_SAMPLING)}.",
        )
    names = list(args.get("input_keys") or ["text"])
    return {
        "type": "llm_score",
        "criterion": _CRITERIA[operator["name"]],
        "model": _model(foreign, args) | {_SAMPLING[name]: value for name, value in sampling.items()},
        "input_columns": names,
        "field_names": list(args.get("field_names") or []),
        "min_score": args.get("min_score", 0.5),
        "max_score": args.get("max_score", 1.0),
        "invalid": {"attempts": args.get("try_num", 3)},
    }


def _model(foreign: ForeignValues, args: Mapping[str, Any]) -> dict[str, Any]:
    """The model of an operator. Each of `num_process` processes asks an endpoint for one row at a time."""
    if args.get("is_hf_model"):
        return {"type": "engine", "path": args["api_or_hf_model"]}
    model = {"type": "endpoint", "model": args["api_or_hf_model"]}
    if endpoint := args.get("api_endpoint"):
        model["url"] = str(endpoint).removesuffix("/chat/completions")
    if foreign.is_set(f"{TASKS}.num_process"):
        model["concurrency"] = foreign[f"{TASKS}.num_process"]
    return model


def _order(foreign: ForeignValues, columns: set[str]) -> dict[str, Any] | None:
    """The order by priority, where weights or a limit are written. Scores that no operator computes have no weight."""
    weights = {
        column: foreign[f"{TASKS}.priority_weights.{name}"]
        for name, column in _WEIGHTS.items()
        if foreign.is_set(f"{TASKS}.priority_weights.{name}") and column in columns
    }
    top_k = foreign[f"{TASKS}.top_k"] if foreign.is_set(f"{TASKS}.top_k") else -1
    if not weights and top_k == -1:
        return None
    defaults = {"llm_quality_score": 1.0, "llm_difficulty_score": -0.7}
    weights = weights or {column: defaults[column] for column in sorted(columns)}
    return {"type": "order", "weights": weights, **({"limit": top_k} if top_k != -1 else {})}


def _export(foreign: ForeignValues) -> Iterator[tuple[str, Any]]:
    if not foreign.is_set(f"{TASKS}.output.path") or not foreign[f"{TASKS}.output.path"]:
        return
    path = str(foreign[f"{TASKS}.output.path"])
    is_sql = (
        foreign.is_set(f"{TASKS}.output.storage_type") and foreign[f"{TASKS}.output.storage_type"] == "sql"
    )
    if is_sql or "://" in path:
        yield "export", path if "://" in path else f"sqlite:///{path}"
        yield "export_table", foreign[f"{TASKS}.output.name"] or "task_pipeline_output"
        return
    yield "export", path if path.endswith((".jsonl", ".parquet")) else f"{path.rstrip('/')}/output.jsonl"


def _is_known(foreign: ForeignValues, value: Any) -> bool:
    return value in _CRITERIA or has_service(foreign)


_FIELD = "data.pipeline"
ROWS: tuple[KeyMapping, ...] = (
    mapped(
        f"{TASKS}.num_process",
        UNSET,
        _FIELD,
        read=task_pipeline,
        value_type=INTEGER,
        note="processes, each of which asks an endpoint for one row at a time: 1 makes one call at a time",
    ),
    placement(
        f"{OPERATORS}.0.name",
        UNSET,
        _UNKNOWN,
        supported=_is_known,
        value_type=STRING,
        fields=(_FIELD,),
        read=task_pipeline,
    ),
    mapped(
        f"{OPERATORS}.0.args",
        UNSET,
        _FIELD,
        read=task_pipeline,
        value_type=nullable(MAPPING),
        note=f"{', '.join(_ARGS)}; without api_endpoint, the address is in OPENAI_BASE_URL",
    ),
    mapped(
        f"{TASKS}.inputs",
        UNSET,
        "data.train.path",
        read=tasks,
        value_type=nullable(STRING_OR_LIST),
        note="files, hub names or databases; they take the place of the taskset's path",
    ),
    mapped(
        f"{TASKS}.target_fields",
        UNSET,
        _FIELD,
        read=task_pipeline,
        value_type=nullable(STRING_OR_LIST),
        note="columns of the prepared rows; null or empty means all",
    ),
)
LATER_ROWS: tuple[KeyMapping, ...] = versions(
    *(
        mapped(f"{TASKS}.priority_weights.{name}", UNSET, _FIELD, read=task_pipeline, value_type=NUMBER)
        for name in _WEIGHTS
    ),
    *(
        no_effect(f"{TASKS}.priority_weights.{name}", UNSET, why, value_type=NUMBER)
        for name, why in (
            ("diversity", "Trinity computes no diversity for it"),
            ("usage_frequency", "no row has been used before the run"),
        )
    ),
    mapped(
        f"{TASKS}.top_k",
        UNSET,
        _FIELD,
        read=task_pipeline,
        value_type=INTEGER,
        note="-1 means all; the rows are sorted by priority",
    ),
    *(
        mapped(f"{TASKS}.output.{name}", UNSET, _FIELD, read=task_pipeline, value_type=nullable(STRING))
        for name in ("path", "storage_type", "name")
    ),
    no_effect(f"{TASKS}.output.*", UNSET, "the run reads the prepared rows by the taskset's own format"),
    refused(f"{TASKS}.priority_weights.*", UNSET, "unknown weight; remove it", supported=never),
    placement(
        f"{TASKS}.config_path",
        UNSET,
        _UNKNOWN,
        supported=lambda foreign, value: not value or has_service(foreign),
        fields=(_FIELD,),
        read=task_pipeline,
    ),
    since="0.3",
)
