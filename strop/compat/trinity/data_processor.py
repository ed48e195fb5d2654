"""Ledger rows of Trinity's `data_processor` and `service` sections: operators on the rows of the training taskset
before the run, and on rollouts between scoring and the buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    INTEGER,
    MAPPING,
    MAPPING_LIST,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    ValueType,
    always,
    any_inactive,
    mapped,
    no_effect,
    nullable,
    placement,
    refused,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.tasksets import OPERATORS, PASS_RATES, tasks
from strop.config.schema import Run
from strop.config.schema.buffer import (
    CorrectnessFilterConfig,
    CustomOperatorConfig,
    DataJuicerConfig,
    ExperienceOperatorConfig,
    RewardFilterConfig,
    RewardShapingConfig,
    RewardStdFilterConfig,
    RewardTermConfig,
)
from strop.config.schema.data import DifficultyOrderConfig
from strop.config.schema.task_pipeline import (
    DataJuicerSection,
    DataJuicerTasksConfig,
    EndpointModelConfig,
    EngineModelConfig,
    LlmScoreConfig,
    OrderConfig,
    TaskOperatorConfig,
    TaskPipelineConfig,
)
from strop.errors import ConfigError

_SERVICE = "service.data_juicer"


def _value(foreign: ForeignValues, key: str, default: Any = None) -> Any:
    """The value of a key without a default of its own."""
    return foreign[key] if foreign.is_set(key) else default


def _has_service(foreign: ForeignValues) -> bool:
    """Whether the file names a service, or has one started."""
    return _is_started(foreign) or bool(foreign[f"{_SERVICE}.server_url"])


def _read_service(foreign: ForeignValues, at: str) -> dict[str, Any]:
    """The fields of an operator; auto_start wins over server_url. Raises ConfigError without a service."""
    if _is_started(foreign):
        port = _value(foreign, f"{_SERVICE}.port")
        return {"port": port} if port else {}
    if foreign[f"{_SERVICE}.server_url"] is None:
        raise foreign.error_for(
            at,
            f"{at} is data_juicer: write {_SERVICE}.server_url, the address of a service that runs, or "
            f"{_SERVICE}.auto_start: true, and Strop starts one with the interpreter in STROP_DATA_JUICER_PYTHON.",
        )
    return {"url": foreign[f"{_SERVICE}.server_url"]}


def _write_service(section: DataJuicerSection) -> Iterator[tuple[str, Any]]:
    """The keys of an operator's service."""
    if section.url is not None:
        yield f"{_SERVICE}.server_url", section.url
        return
    yield f"{_SERVICE}.auto_start", True
    if section.port:
        yield f"{_SERVICE}.port", section.port


def _is_started(foreign: ForeignValues) -> bool:
    """Whether the file has a service started."""
    return bool(_value(foreign, f"{_SERVICE}.auto_start"))


_OPERATIONS = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide"}
_WITHOUT_EFFECT = ("invalid_reward_filter", PASS_RATES)
"""Operators that a run has anyway: a rollout without a valid reward is never trained on, and the metrics of each step
and task, and `data.order`, have the pass rate."""
_MASK_TRUNCATED = "mask_response_truncated"
"""Operator that is a field of the algorithm in Strop: truncated responses have no loss, and still count in the
advantages of their group."""
_DYNAMIC_SAMPLING = "dapo_dynamic_sampling"
_JUICER_FIELDS = {"config_path": "config", "operators": "operators", "np": "processes"}
_MADE: Mapping[str, tuple[str, ...]] = {
    "reward_filter": ("threshold",),
    "reward_std_filter": ("threshold",),
    _DYNAMIC_SAMPLING: ("metric_key", "correct_threshold"),
    _MASK_TRUNCATED: (),
    "reward_shaping_mapper": ("reward_shaping_configs",),
    "data_juicer": tuple(_JUICER_FIELDS),
}
"""Arguments of each operator that changes something."""


def write_pipeline(run: Run) -> Mapping[str, Any]:
    """Write the operators. Raises ConfigError for an operator that Trinity does not have."""
    values: dict[str, Any] = {}
    operators = [_experience_operator(section) for section in run.buffer.pipeline]
    if getattr(run.algorithm, "mask_truncated", False):
        operators.append({"name": _MASK_TRUNCATED})
    if isinstance(run.data.order, DifficultyOrderConfig):
        operators.insert(0, {"name": PASS_RATES})
    for index, operator in enumerate(operators):
        values |= {f"{OPERATORS}.{index}.{key}": value for key, value in operator.items()}
    for section in run.buffer.pipeline:
        if isinstance(section, DataJuicerConfig):
            values |= dict(_write_service(section))
    return values


def _experience_operator(section: ExperienceOperatorConfig) -> dict[str, Any]:
    match section:
        case RewardFilterConfig():
            return {"name": "reward_filter", "args": {"threshold": section.min_reward}}
        case RewardStdFilterConfig():
            if section.deviation == "sample":
                raise ConfigError(
                    "buffer.pipeline: Trinity's reward_std_filter has the population's standard deviation."
                )
            return {"name": "reward_std_filter", "args": {"threshold": section.threshold}}
        case CorrectnessFilterConfig():
            if section.metric is None:
                raise ConfigError(
                    f"buffer.pipeline: Trinity's {_DYNAMIC_SAMPLING} compares a metric by its name; write its metric."
                )
            args = {"metric_key": section.metric, "correct_threshold": section.threshold}
            return {"name": _DYNAMIC_SAMPLING, "args": args}
        case RewardShapingConfig():
            terms = [_term(term) for term in section.terms]
            return {"name": "reward_shaping_mapper", "args": {"reward_shaping_configs": terms}}
        case DataJuicerConfig():
            args = {name: getattr(section, field) for name, field in _JUICER_FIELDS.items()}
            return {"name": "data_juicer", "args": {k: v for k, v in args.items() if v is not None}}
        case CustomOperatorConfig():
            raise ConfigError(f"buffer.pipeline: Trinity has no operator {section.operator}.")
        case _:
            raise ConfigError(f"buffer.pipeline: Trinity has no operator {section.type}.")


def _term(term: RewardTermConfig) -> dict[str, Any]:
    names = {name: foreign for foreign, name in _OPERATIONS.items()}
    return {"stats_key": term.stat, "op_type": names[term.operation], "weight": term.weight}


@written_by(write_pipeline)
def pipeline(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the operators."""
    operators = foreign[OPERATORS] or {}
    sections = [
        section
        for index, operator in operators.items()
        if (section := _experience_section(foreign, f"{OPERATORS}.{index}", operator)) is not None
    ]
    found: dict[str, Any] = {"buffer.pipeline": sections} if sections else {}
    if any(operator.get("name") == _MASK_TRUNCATED for operator in operators.values()):
        found["algorithm.mask_truncated"] = True
    return found


def _experience_section(
    foreign: ForeignValues, at: str, operator: Mapping[str, Any]
) -> dict[str, Any] | None:
    name, args = operator.get("name"), operator.get("args") or {}
    known = _MADE.get(str(name), ())
    unknown = [argument for argument in args if argument not in known]
    if unknown and name in _MADE:
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args has {', '.join(unknown)}; {name} has {', '.join(known) or 'no arguments'}.",
        )
    match name:
        case "reward_filter":
            return {"type": "reward_filter", "min_reward": args.get("threshold", 0.0)}
        case "reward_std_filter":
            return {"type": "reward_std_filter", "threshold": args.get("threshold", 0.0)}
        case "dapo_dynamic_sampling":
            metric, threshold = args.get("metric_key", "accuracy"), args.get("correct_threshold", 0.0)
            return {"type": "correctness_filter", "metric": metric, "threshold": threshold}
        case "reward_shaping_mapper":
            configs = args.get("reward_shaping_configs") or []
            listed = configs if isinstance(configs, list) else [configs]
            terms = [_shaping_term(foreign, at, each) for each in listed]
            return {"type": "reward_shaping", "terms": terms} if terms else None
        case "data_juicer":
            return _data_juicer(foreign, at, args)
    if name in (*_WITHOUT_EFFECT, _MASK_TRUNCATED):
        return None
    raise foreign.error_for(
        f"{at}.name",
        f"{at}.name is {name}, an operator that Strop does not have; it has "
        f"{', '.join((*_MADE, *_WITHOUT_EFFECT))}. Your own runs as buffer.pipeline in a run file, with type: custom.",
    )


def _data_juicer(foreign: ForeignValues, at: str, args: Mapping[str, Any]) -> dict[str, Any]:
    service = _read_service(foreign, f"{at}.name")
    written = {_JUICER_FIELDS[name]: value for name, value in args.items() if value is not None}
    if "config" in written:
        written.pop("operators", None)  # Trinity's service reads the recipe only
    return {"type": "data_juicer", **service, **written}


def _shaping_term(foreign: ForeignValues, at: str, written: Any) -> dict[str, Any]:
    values = written if isinstance(written, Mapping) else {}
    operation = values.get("op_type", "ADD")
    if not (isinstance(operation, str) and operation in _OPERATIONS and "stats_key" in values):
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args.reward_shaping_configs has an item {written}; each has a stats_key, an op_type "
            f"({', '.join(_OPERATIONS)}) and a weight.",
        )
    return {
        "stat": values["stats_key"],
        "operation": _OPERATIONS[operation],
        "weight": values.get("weight", 1.0),
    }


_TASKS = "data_processor.task_pipeline"
_TASK_OPERATORS = f"{_TASKS}.operators"
_CRITERIA = {"llm_quality_score_filter": "quality", "llm_difficulty_score_filter": "difficulty"}
_WEIGHTS = {"quality": "llm_quality_score", "difficulty": "llm_difficulty_score"}
_SCORE_ARGS = (
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
        f"{_TASKS}.inputs": [path] if isinstance(path, str) else list(path),
        **_num_process(section),
    }
    if section.columns is not None:
        values[f"{_TASKS}.target_fields"] = list(section.columns)
    index = 0
    for operator in section.operators:
        if isinstance(operator, DataJuicerTasksConfig):
            values |= _juicer_values(operator, index)
            index += len(operator.operators or ())
            continue
        values |= {f"{_TASKS}.{key}": value for key, value in _task_operator(operator, index).items()}
        index += 1
    if section.export is not None:
        values |= {f"{_TASKS}.output.path": section.export}
        if section.export_table is not None:
            values |= {f"{_TASKS}.output.name": section.export_table, f"{_TASKS}.output.storage_type": "sql"}
    return values


def _num_process(section: TaskPipelineConfig) -> dict[str, Any]:
    """The number of processes, each of which asks an endpoint for one row at a time; nothing for Strop's defaults."""
    models = [operator.model for operator in section.operators if isinstance(operator, LlmScoreConfig)]
    calls = [model.concurrency for model in models if isinstance(model, EndpointModelConfig)]
    is_default = section.processes == 1 and 1 not in calls
    return {} if is_default else {f"{_TASKS}.num_process": section.processes}


def _juicer_values(section: DataJuicerTasksConfig, index: int) -> dict[str, Any]:
    values: dict[str, Any] = dict(_write_service(section))
    if section.config is not None:
        if index:
            raise ConfigError("data.pipeline: Trinity has either operators or a recipe of Data-Juicer.")
        return values | {f"{_TASKS}.config_path": section.config}
    for number, operator in enumerate(section.operators or (), index):
        (name, args), *_ = operator.items()
        values |= {f"{_TASK_OPERATORS}.{number}.name": name, f"{_TASK_OPERATORS}.{number}.args": args or {}}
    return values


def _task_operator(section: TaskOperatorConfig, index: int) -> dict[str, Any]:
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
    if (processes := _value(foreign, f"{_TASKS}.num_process")) is not None:
        section["processes"] = processes
    if fields := _value(foreign, f"{_TASKS}.target_fields"):
        section["columns"] = [fields] if isinstance(fields, str) else fields
    return {"data.pipeline": section | dict(_export(foreign))}


def _sections(foreign: ForeignValues) -> Iterator[dict[str, Any]]:
    """The operators; neighbors that Data-Juicer runs are one. A recipe takes the place of all, as in Trinity."""
    config_key = f"{_TASKS}.config_path"
    if (recipe := _value(foreign, config_key)) and _has_service(foreign):
        yield {"type": "data_juicer", **_read_service(foreign, config_key), "config": recipe}
        return
    juicer: dict[str, Any] | None = None
    for index, operator in (foreign[_TASK_OPERATORS] or {}).items():
        at = f"{_TASK_OPERATORS}.{index}"
        if operator.get("name") not in _CRITERIA:
            if _has_service(foreign):
                if not isinstance(operator.get("name"), str):
                    raise foreign.error_for(at, f"{at}: write the operator's name.")
                juicer = juicer or {"type": "data_juicer", **_read_service(foreign, at), "operators": []}
                juicer["operators"].append({operator["name"]: operator.get("args") or {}})
            continue
        if juicer is not None:
            yield juicer
            juicer = None
        yield _task_section(foreign, at, operator)
    if juicer is not None:
        yield juicer


def _task_section(foreign: ForeignValues, at: str, operator: Mapping[str, Any]) -> dict[str, Any]:
    args = operator.get("args") or {}
    if unknown := [name for name in args if name not in _SCORE_ARGS]:
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args has {', '.join(unknown)}, which Strop's {operator['name']} does not have; it has "
            f"{', '.join(_SCORE_ARGS)}. A prompt of your own is `prompt` of the operator llm_score in a run file.",
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
    if (processes := _value(foreign, f"{_TASKS}.num_process")) is not None:
        model["concurrency"] = processes
    return model


def _order(foreign: ForeignValues, columns: set[str]) -> dict[str, Any] | None:
    """The order by priority, where weights or a limit are written. Scores that no operator computes have no weight."""
    weights = {
        column: foreign[f"{_TASKS}.priority_weights.{name}"]
        for name, column in _WEIGHTS.items()
        if foreign.is_set(f"{_TASKS}.priority_weights.{name}") and column in columns
    }
    top_k = _value(foreign, f"{_TASKS}.top_k", -1)
    if not weights and top_k == -1:
        return None
    defaults = {"llm_quality_score": 1.0, "llm_difficulty_score": -0.7}
    weights = weights or {column: defaults[column] for column in sorted(columns)}
    return {"type": "order", "weights": weights, **({"limit": top_k} if top_k != -1 else {})}


def _export(foreign: ForeignValues) -> Iterator[tuple[str, Any]]:
    path = str(_value(foreign, f"{_TASKS}.output.path") or "")
    if not path:
        return
    if _value(foreign, f"{_TASKS}.output.storage_type") == "sql" or "://" in path:
        yield "export", path if "://" in path else f"sqlite:///{path}"
        yield "export_table", foreign[f"{_TASKS}.output.name"] or "task_pipeline_output"
        return
    yield "export", path if path.endswith((".jsonl", ".parquet")) else f"{path.rstrip('/')}/output.jsonl"


_EXPERIENCES = "data_processor.experience_pipeline"


def _without_operators(*keys: str) -> InactiveCheck:
    """Check that finds a key of a pipeline inactive where none of the keys of its operators is set."""
    return lambda foreign: None if any(foreign[key] for key in keys) else "the pipeline has no operators"


_no_task_operators = _without_operators(_TASK_OPERATORS, f"{_TASKS}.config_path")
_no_operators = _without_operators(OPERATORS)


def _serves_nothing(foreign: ForeignValues) -> str | None:
    nothing = _no_task_operators(foreign) and _no_operators(foreign)
    return "no pipeline has operators" if nothing else None


def _without_start(foreign: ForeignValues) -> str | None:
    return None if _is_started(foreign) else f"{_SERVICE}.auto_start is not set"


def _with_start(foreign: ForeignValues) -> str | None:
    return f"{_SERVICE}.auto_start takes precedence" if _is_started(foreign) else None


def _row(
    key: str, value_type: ValueType, inactive: InactiveCheck | None = None, note: str = ""
) -> KeyMapping:
    """The row of a key of the task pipeline."""
    where, read = f"{_TASKS}.{key}", task_pipeline
    return mapped(
        where, UNSET, "data.pipeline", read=read, value_type=value_type, inactive=inactive, note=note
    )


_pipeline_row = partial(mapped, read=pipeline)
_SERVICE_ROWS = (
    _pipeline_row(
        f"{_SERVICE}.auto_start",
        UNSET,
        "buffer.pipeline",
        value_type=nullable(BOOLEAN),
        inactive=_serves_nothing,
        note="Strop starts the service with the interpreter in STROP_DATA_JUICER_PYTHON",
    ),
    _pipeline_row(
        f"{_SERVICE}.port",
        UNSET,
        "buffer.pipeline",
        value_type=nullable(INTEGER),
        inactive=any_inactive(_serves_nothing, _without_start),
        note="the port of a service that auto_start starts",
    ),
    *unstated_defaults(
        _pipeline_row(
            f"{_SERVICE}.server_url",
            None,
            "buffer.pipeline",
            value_type=nullable(STRING),
            inactive=any_inactive(_serves_nothing, _with_start),
            note="address of a service that runs; the operator data_juicer uses it",
        )
    ),
)
_TASK_ROWS = (
    _row(
        "num_process",
        INTEGER,
        inactive=_no_task_operators,
        note="processes, each of which asks an endpoint for one row at a time: 1 makes one call at a time",
    ),
    placement(
        f"{_TASK_OPERATORS}.0.name",
        UNSET,
        _UNKNOWN,
        supported=lambda foreign, value: value in _CRITERIA or _has_service(foreign),
        value_type=STRING,
        fields=("data.pipeline",),
        read=task_pipeline,
    ),
    _row(
        "operators.0.args",
        nullable(MAPPING),
        note=f"{', '.join(_SCORE_ARGS)}; without api_endpoint, the address is in OPENAI_BASE_URL",
    ),
    mapped(
        f"{_TASKS}.inputs",
        UNSET,
        "data.train.path",
        read=tasks,
        value_type=nullable(STRING_OR_LIST),
        inactive=_no_task_operators,
        note="files, hub names or databases; they take the place of the taskset's path",
    ),
    _row(
        "target_fields",
        nullable(STRING_OR_LIST),
        inactive=_no_task_operators,
        note="columns of the prepared rows; null or empty means all",
    ),
    *versions(
        *(_row(f"priority_weights.{name}", NUMBER) for name in _WEIGHTS),
        *(
            no_effect(f"{_TASKS}.priority_weights.{name}", UNSET, why, value_type=NUMBER)
            for name, why in (
                ("diversity", "Trinity computes no diversity for it"),
                ("usage_frequency", "no row has been used before the run"),
            )
        ),
        refused(f"{_TASKS}.priority_weights.*", UNSET, "unknown weight; remove it"),
        _row("top_k", INTEGER, note="-1 means all; the rows are sorted by priority"),
        *(_row(f"output.{name}", nullable(STRING)) for name in ("path", "storage_type", "name")),
        no_effect(f"{_TASKS}.output.*", UNSET, "the run reads the prepared rows by the taskset's own format"),
        placement(
            f"{_TASKS}.config_path",
            UNSET,
            _UNKNOWN,
            supported=lambda foreign, value: not value or _has_service(foreign),
            fields=("data.pipeline",),
            read=task_pipeline,
        ),
        since="0.3",
    ),
)
_EXPERIENCE_ROWS = (
    _pipeline_row(
        f"{OPERATORS}.0.name",
        UNSET,
        "buffer.pipeline",
        "algorithm.mask_truncated",
        value_type=STRING,
        note=f"{', '.join(_MADE)}; {' and '.join(_WITHOUT_EFFECT)} change nothing",
    ),
    _pipeline_row(f"{OPERATORS}.0.args", UNSET, "buffer.pipeline", value_type=nullable(MAPPING)),
    *versions(
        no_effect(f"{_EXPERIENCES}.save_input", True, "rollouts are always recorded"),
        no_effect(
            f"{_EXPERIENCES}.input_save_path",
            None,
            "rollouts are recorded in the run folder",
            value_type=nullable(STRING),
        ),
        *(
            refused(
                f"{_EXPERIENCES}.{name}.*",
                UNSET,
                "rollouts go from the explorer to the buffer of the trainer only; remove it",
                supported=always,
                inactive=_no_operators,
            )
            for name in ("inputs", "output")
        ),
        since="0.3",
    ),
)
ROWS = (
    *versions(
        *(
            mapped(section, None, note="each key has a row of its own", value_type=nullable(MAPPING))
            for section in ("data_processor", _TASKS, _EXPERIENCES, "service", _SERVICE)
        ),
        *(
            mapped(key, None, note="each item has rows", value_type=nullable(MAPPING_LIST))
            for key in (_TASK_OPERATORS, OPERATORS)
        ),
        since="0.3",
    ),
    *_SERVICE_ROWS,
    *_TASK_ROWS,
    *_EXPERIENCE_ROWS,
)
