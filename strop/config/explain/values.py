"""The values of a loaded run, each with its unit, source and effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strop.config.load.config_tree import Source
from strop.config.load.loader import LoadedRun
from strop.config.redact import redact
from strop.config.schema.walk import Leaf, leaves
from strop.config.units import Amount

_UNITS = {
    "_tokens": "tokens",
    "_seconds": "seconds",
    "tasks_per_step": "tasks",
    "tasks_per_update": "tasks",
    "limit_tasks": "tasks",
    "rollouts_per_task": "rollouts",
    "max_sequences": "sequences",
    "epochs_per_step": "epochs",
    "keep": "checkpoints",
    "workers": "processes",
    "max_error_fraction": "fraction",
}


@dataclass(frozen=True, slots=True)
class ExplainedValue:
    """Value of a run, as `strop explain` prints it."""

    field: str
    value: str
    unit: str
    foreign_key: str
    """Key of another dialect that determined the value, with its own value; empty for a run file."""
    source: Source
    location: str
    """Location of the source, without that key."""
    effect: str


def explain_values(loaded: LoadedRun) -> list[ExplainedValue]:
    """Return every value of the run, in the run file's order."""
    return [_explain_value(leaf, loaded.sources[".".join(leaf.keys)]) for leaf in leaves(loaded.run)]


def _explain_value(leaf: Leaf, source: Source) -> ExplainedValue:
    return ExplainedValue(
        field=".".join(leaf.keys),
        value=format_value(leaf.keys[-1], leaf.value),
        unit="" if leaf.value is None else unit_of(leaf.keys[-1], leaf.value),
        foreign_key=source.foreign_key,
        source=source,
        location=_location(source),
        effect=" ".join(leaf.effect.split()),
    )


def _location(source: Source) -> str:
    """`ppo.yaml:3 (data.val_files)` becomes `ppo.yaml:3`, and `data.seed (documented default)` `documented default`."""
    key = source.foreign_key.partition("=")[0]
    text = str(source)
    if not key:
        return text
    if source.kind == "override":
        return "override"
    return text.removesuffix(f" ({key})").removeprefix(f"{key} (").removesuffix(")")


def unit_of(name: str, value: Any) -> str:
    """Return the unit of a value, from its amount or its field's name; empty if it has none."""
    if isinstance(value, Amount):
        return value.unit
    if isinstance(value, bool):
        return ""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def format_value(name: str, value: Any) -> str:
    """Format a value for printing, without its unit."""
    if isinstance(value, Amount):
        return str(value).split()[0]
    if value is None:
        return "never" if name.endswith("every") else "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(str(redact(item, name)) for item in value) + "]"
    return str(redact(value, name))
