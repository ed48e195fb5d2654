"""Reading and writing of Trinity's `task_selector` or `data_selector`: the order of the training tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues
from strop.config.schema import Run
from strop.config.schema.task_order import ColumnOrderConfig, DifficultyOrderConfig

SECTIONS = ("task_selector", "data_selector")
"""Both names of the section with the order of the tasks."""
EASY_TO_HARD = "offline_easy2hard"
"""Selector that sorts the tasks by a column, the largest value first."""
DIFFICULTY_BASED = "difficulty_based"
"""Selector that estimates the pass rates of the tasks, and takes those near a target."""
SELECTORS = ("sequential", "shuffle", "random", EASY_TO_HARD, DIFFICULTY_BASED)
"""Names of the orders of the tasks."""
OPERATORS = "data_processor.experience_pipeline.operators"
PASS_RATES = "pass_rate_calculator"
"""Operator of the experience pipeline that gives a selector the pass rates."""
_KWARGS: Mapping[str, tuple[str, Any]] = {
    "m": ("counts_per_group", 16),
    "lamb": ("forgetting", 0.2),
    "rho": ("interpolation_weight", 0.2),
    "adaptive_rho": ("halve_weight", False),
    "target_reward": ("target", 1.0),
    "tau": ("temperature", 1.0),
    "do_sample": ("thompson_sampling", False),
}
"""Field of `data.order` and Trinity's default for each argument of the selector `difficulty_based`."""


def read_selector(foreign: ForeignValues, taskset: str) -> dict[str, Any]:
    """The order of the tasks of a file. Trinity reads the rows in their order, unless a selector says otherwise."""
    sections = [f"{taskset}.{name}" for name in SECTIONS]
    section = next((at for at in sections if foreign[f"{at}.selector_type"]), sections[-1])
    kind = foreign[f"{section}.selector_type"]
    if kind == DIFFICULTY_BASED:
        order = _difficulty(foreign, section)
    elif kind == EASY_TO_HARD:
        column = _columns(
            foreign, section, 1, f"{EASY_TO_HARD} sorts by one; write one, or sort the file and write"
        )
        order = {"type": "column", "column": column[0], "descending": True}
    else:
        return {"data.shuffle": kind in ("shuffle", "random")}
    return {"data.shuffle": False, **{f"data.order.{name}": value for name, value in order.items()}}


def write_selector(run: Run, at: str) -> dict[str, Any]:
    """Write the selector `at` of the run's order; an ascending order by a column has none."""
    order = run.data.order
    match order:
        case ColumnOrderConfig(descending=True) if not (order.values or run.data.shuffle):
            return {f"{at}.selector_type": EASY_TO_HARD, f"{at}.feature_keys": [order.column]}
        case DifficultyOrderConfig():
            return {
                f"{at}.selector_type": DIFFICULTY_BASED,
                f"{at}.feature_keys": [*order.columns],
                f"{at}.kwargs": {name: getattr(order, field) for name, (field, _) in _KWARGS.items()},
            }
        case _:
            return {f"{at}.selector_type": "shuffle" if run.data.shuffle else None}


def _columns(foreign: ForeignValues, section: str, count: int, instead: str) -> list[str]:
    columns: list[str] = foreign[f"{section}.feature_keys"]
    if len(columns) != count:
        raise foreign.error_for(
            f"{section}.feature_keys",
            f"{section}.feature_keys has {len(columns)} columns, and {instead} selector_type: sequential.",
        )
    return columns


def _difficulty(foreign: ForeignValues, section: str) -> dict[str, Any]:
    instead = f"{DIFFICULTY_BASED} interpolates between the pass rates of two models; write two columns, or"
    columns = _columns(foreign, section, 2, instead)
    kwargs = foreign[f"{section}.kwargs"] or {}
    unknown = [name for name in kwargs if name not in _KWARGS]
    if unknown:
        raise foreign.error_for(
            f"{section}.kwargs",
            f"{section}.kwargs has {', '.join(unknown)}; {DIFFICULTY_BASED} has {', '.join(_KWARGS)}.",
        )
    operators = [operator.get("name") for operator in (foreign[OPERATORS] or {}).values()]
    if PASS_RATES not in operators:
        raise foreign.error_for(
            f"{section}.selector_type",
            f"{section}.selector_type is {DIFFICULTY_BASED}, whose estimates Trinity updates only by the operator "
            f"{PASS_RATES}; add `- name: {PASS_RATES}` to {OPERATORS}, or write selector_type: random.",
        )
    if operators[0] != PASS_RATES:
        raise foreign.error_for(
            OPERATORS,
            f"{OPERATORS} has {PASS_RATES} after {operators[0]}, and Strop takes the pass rates before all operators; "
            "write it first.",
        )
    values = {field: kwargs.get(name, default) for name, (field, default) in _KWARGS.items()}
    return {"type": "difficulty", "columns": columns, **values}
