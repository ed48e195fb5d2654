"""Ledger rows of Trinity's experience pipeline: operators between scoring and the buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.schema import Run
from strop.config.schema.pipeline import (
    CustomOperatorConfig,
    DataJuicerConfig,
    ExperienceOperatorConfig,
    RewardFilterConfig,
    RewardShapingConfig,
    RewardStdFilterConfig,
    RewardTermConfig,
)
from strop.config.schema.task_order import DifficultyOrderConfig
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    mapped,
    unstated_defaults,
    written_by,
)
from strop.dialects.ledger.value_types import BOOLEAN, INTEGER, MAPPING, STRING, nullable
from strop.dialects.trinity.juicer_service import SERVICE, read_service, write_service
from strop.dialects.trinity.selectors import OPERATORS, PASS_RATES
from strop.errors import ConfigError

_OPERATIONS = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "DIV": "divide"}
_WITHOUT_EFFECT = ("invalid_reward_filter", PASS_RATES)
"""Operators that a run has anyway: a rollout without a valid reward is never trained on, and the metrics of each step
and task, and `data.order`, have the pass rate."""
_MADE = ("reward_filter", "reward_std_filter", "reward_shaping_mapper", "data_juicer")


def write_pipeline(run: Run) -> Mapping[str, Any]:
    """Write the operators. Raises ConfigError for an operator that Trinity does not have."""
    values: dict[str, Any] = {}
    operators = [_operator(section) for section in run.buffer.pipeline]
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
    sections = [
        section
        for index, operator in (foreign[OPERATORS] or {}).items()
        if (section := _section(foreign, f"{OPERATORS}.{index}", operator)) is not None
    ]
    return {"buffer.pipeline": sections} if sections else {}


def _section(foreign: ForeignValues, at: str, operator: Mapping[str, Any]) -> dict[str, Any] | None:
    name, args = operator.get("name"), operator.get("args") or {}
    match name:
        case "reward_filter":
            return {"type": "reward_filter", "min_reward": args.get("threshold", 0.0)}
        case "reward_std_filter":
            return {"type": "reward_std_filter", "threshold": args.get("threshold", 0.0)}
        case "reward_shaping_mapper":
            terms = [_shaping_term(foreign, at, each) for each in args.get("reward_shaping_configs") or []]
            return {"type": "reward_shaping", "terms": terms} if terms else None
        case "data_juicer":
            return _data_juicer(foreign, at, args)
    if name in _WITHOUT_EFFECT:
        return None
    raise foreign.error_for(
        f"{at}.name",
        f"{at}.name is {name}, an operator that Strop does not have; it has "
        f"{', '.join((*_MADE, *_WITHOUT_EFFECT))}. Your own runs as buffer.pipeline in a run file, with type: custom.",
    )


def _data_juicer(foreign: ForeignValues, at: str, args: Mapping[str, Any]) -> dict[str, Any]:
    service = read_service(foreign, f"{at}.name")
    names = {"config_path": "config", "operators": "operators", "np": "processes"}
    unknown = [name for name in args if name not in names]
    if unknown:
        raise foreign.error_for(
            f"{at}.args", f"{at}.args has {', '.join(unknown)}; data_juicer has {', '.join(names)}."
        )
    written = {names[name]: value for name, value in args.items() if value is not None}
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
