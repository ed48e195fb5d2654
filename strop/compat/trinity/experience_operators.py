"""Ledger rows of Trinity's experience pipeline: operators between scoring and the buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    mapped,
    unstated_defaults,
    written_by,
)
from strop.compat.ledger.value_types import BOOLEAN, INTEGER, MAPPING, STRING, nullable
from strop.compat.trinity.juicer_service import SERVICE, read_service, write_service
from strop.compat.trinity.selectors import OPERATORS, PASS_RATES
from strop.config.schema import Run
from strop.config.schema.pipeline import (
    CorrectnessFilterConfig,
    CustomOperatorConfig,
    DataJuicerConfig,
    ExperienceOperatorConfig,
    RewardFilterConfig,
    RewardShapingConfig,
    RewardStdFilterConfig,
    RewardTermConfig,
)
from strop.config.schema.task_order import DifficultyOrderConfig
from strop.errors import ConfigError

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
    operators = [_operator(section) for section in run.buffer.pipeline]
    if getattr(run.algorithm, "mask_truncated", False):
        operators.append({"name": _MASK_TRUNCATED})
    if isinstance(run.data.order, DifficultyOrderConfig):
        operators.insert(0, {"name": PASS_RATES})
    for index, operator in enumerate(operators):
        values |= {f"{OPERATORS}.{index}.{key}": value for key, value in operator.items()}
    for section in run.buffer.pipeline:
        if isinstance(section, DataJuicerConfig):
            values |= dict(write_service(section))
    return values


def _operator(section: ExperienceOperatorConfig) -> dict[str, Any]:
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
            args = {"config_path": section.config, "operators": section.operators, "np": section.processes}
            return {
                "name": "data_juicer",
                "args": {key: value for key, value in args.items() if value is not None},
            }
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
        if (section := _section(foreign, f"{OPERATORS}.{index}", operator)) is not None
    ]
    found: dict[str, Any] = {"buffer.pipeline": sections} if sections else {}
    if any(operator.get("name") == _MASK_TRUNCATED for operator in operators.values()):
        found["algorithm.mask_truncated"] = True
    return found


def _section(foreign: ForeignValues, at: str, operator: Mapping[str, Any]) -> dict[str, Any] | None:
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
            terms = [_shaping_term(foreign, at, each) for each in args.get("reward_shaping_configs") or []]
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
    service = read_service(foreign, f"{at}.name")
    written = {_JUICER_FIELDS[name]: value for name, value in args.items() if value is not None}
    if "config" in written:
        written.pop("operators", None)  # Trinity's service reads the recipe only
    return {"type": "data_juicer", **service, **written}


def _shaping_term(foreign: ForeignValues, at: str, written: Mapping[str, Any]) -> dict[str, Any]:
    operation = written.get("op_type", "ADD")
    if operation not in _OPERATIONS or "stats_key" not in written:
        raise foreign.error_for(
            f"{at}.args",
            f"{at}.args.reward_shaping_configs has an item {dict(written)}; each has a stats_key, an op_type "
            f"({', '.join(_OPERATIONS)}) and a weight.",
        )
    weight = written.get("weight", 1.0)
    return {"stat": written["stats_key"], "operation": _OPERATIONS[operation], "weight": weight}


SERVICE_ROWS: tuple[KeyMapping, ...] = (
    mapped(
        f"{SERVICE}.auto_start",
        UNSET,
        "buffer.pipeline",
        read=pipeline,
        value_type=nullable(BOOLEAN),
        note="Strop starts the service with the interpreter in STROP_DATA_JUICER_PYTHON",
    ),
    mapped(
        f"{SERVICE}.port",
        UNSET,
        "buffer.pipeline",
        read=pipeline,
        value_type=nullable(INTEGER),
        note="the port of a service that auto_start starts",
    ),
)
ROWS: tuple[KeyMapping, ...] = (
    mapped(
        f"{OPERATORS}.0.name",
        UNSET,
        "buffer.pipeline",
        "algorithm.mask_truncated",
        read=pipeline,
        value_type=STRING,
        note=f"{', '.join(_MADE)}; {' and '.join(_WITHOUT_EFFECT)} change nothing",
    ),
    *unstated_defaults(
        mapped(
            f"{SERVICE}.server_url",
            None,
            "buffer.pipeline",
            read=pipeline,
            value_type=nullable(STRING),
            note="address of a service that runs; the operator data_juicer uses it",
        )
    ),
    mapped(f"{OPERATORS}.0.args", UNSET, "buffer.pipeline", read=pipeline, value_type=nullable(MAPPING)),
)
