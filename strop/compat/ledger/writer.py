"""Writer of foreign configurations: converts a run to a dialect's keys and reports what they cannot
express."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from strop.compat.ledger.key_mapping import KeyMapping, Ledger
from strop.compat.ledger.reader import ForeignConfig, read_ignoring_placement
from strop.config.load.config_tree import ConfigTree, Source, split_key, to_plain
from strop.config.save import escape_interpolations
from strop.config.schema import Run
from strop.config.semantic_diff import FieldDifference, semantic_diff
from strop.errors import ConfigError

AcceptsValue = Callable[[str, Any], bool]
"""Whether a key may be written with a value."""
_ALWAYS_WRITTEN = (
    "model.path",
    "data.train.path",
    "trainer.tasks_per_step",
    "trainer.tasks_per_update",
    "rollout.max_concurrent_rollouts",
    "rollout.engine.type",
)
"""Fields that are always written, even where they equal the dialect's default: the model, the data, the batch
sizes, and the bound on concurrent rollouts and the engine, which apply only where they are set."""


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """A run as the keys of a dialect."""

    values: Mapping[str, Any]
    """Values by dotted key, without those that equal the dialect's defaults."""
    unsupported: tuple[FieldDifference, ...]
    """Fields that the keys do not express: `first` is the run's value, `second` the value that reading the
    keys back gives."""


def write_dialect(
    ledger: Ledger, run: Run, *, accepts: AcceptsValue = lambda key, value: True, always: Collection[str] = ()
) -> WrittenConfig:
    """Convert a run to the keys of a ledger.

    `accepts` filters keys and values; the keys in `always` are written even where they equal the default.
    Raises ConfigError where the dialect does not have the run's algorithm, or refuses the converted values.
    """
    try:
        values = {
            key: value
            for key, value in _all_values(ledger, run).items()
            if _is_accepted(ledger, key, value) and accepts(key, value)
        }
        kept = _without_defaults(ledger, values, always)
        back = read_ignoring_placement(ledger, config_tree_from_values(kept))
    except ConfigError as error:
        raise ConfigError(f"This run cannot be converted to {ledger.dialect}: {error}") from None
    if back.algorithm.type != run.algorithm.type:
        raise ConfigError(
            f"This run cannot be converted to {ledger.dialect}, which has no equivalent of the algorithm "
            f"{run.algorithm.type}."
        )
    return WrittenConfig(kept, tuple(semantic_diff(run, back)))


def config_tree_from_values(values: Mapping[str, Any]) -> ConfigTree:
    """Values by dotted key as a config tree in which they are set."""
    tree = ConfigTree()
    for name, value in unflatten(values).items():
        tree.set((name,), value, Source("python", "the converted run"))
    return tree


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.0.b": 1}` -> `{"a": [{"b": 1}]}`."""
    whole: dict[str, Any] = {}
    for dotted, value in values.items():
        section = whole
        *above, last = split_key(dotted)
        for key in above:
            section = section.setdefault(key, {})
        section[last] = value
    return {key: _restore_lists(value) for key, value in whole.items()}


def _restore_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inside = {key: _restore_lists(item) for key, item in value.items()}
    return list(inside.values()) if inside and all(key.isdigit() for key in inside) else inside


def _all_values(ledger: Ledger, run: Run) -> dict[str, Any]:
    """The values of all keys, in the ledger's order: each write function runs once, and a mapped key without
    one copies its field."""
    values: dict[str, Any] = {}
    done = set()
    for row in ledger.rows:
        if row.alias_of:
            continue
        if row.read is None and row.disposition == "mapped" and row.fields:
            values |= _copy_value(row, run)
        elif row.write is not None and row.write not in done:
            done.add(row.write)
            values |= {key: _to_yaml_value(value) for key, value in row.write(run).items()}
    order = {row.key: index for index, row in enumerate(ledger.rows)}

    def position(key: str) -> int:
        row = ledger.find(key)
        return len(order) if row is None else order[row.key]

    return dict(sorted(values.items(), key=lambda item: position(item[0])))


def _copy_value(row: KeyMapping, run: Run) -> dict[str, Any]:
    found: Any = run
    for key in split_key(row.fields[0]):
        if not hasattr(found, key):
            return {}
        found = getattr(found, key)
    return {row.key: _to_yaml_value(found)}


def _to_yaml_value(value: Any) -> Any:
    """The value as YAML; a float with an integral value becomes an integer, because some keys accept only
    those."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return escape_interpolations(to_plain(value))


def _is_accepted(ledger: Ledger, key: str, value: Any) -> bool:
    """Whether the dialect has the key and its type accepts the value."""
    row = ledger.find(key)
    if row is None or ("*" in row.key and not row.fields):
        return False
    return row.value_type.accepts(value)


def _without_defaults(ledger: Ledger, values: Mapping[str, Any], always: Collection[str]) -> dict[str, Any]:
    """Drop values that equal the dialect's defaults given the other values; in list items, drop nulls."""
    rows = {key: row for key in values if (row := ledger.find(key)) is not None}
    following = [key for key, row in rows.items() if "${" in str(row.default)]
    rest = {key: value for key, value in values.items() if key not in following}
    foreign = ForeignConfig(ledger, config_tree_from_values(rest))

    def is_kept(key: str, row: KeyMapping) -> bool:
        if row.is_repeated:
            return values[key] is not None
        if key in always or set(row.fields) & set(_ALWAYS_WRITTEN) or "oc.env" in str(row.default):
            return True
        return bool(values[key] != (foreign[key] if key in following else row.default))

    return {key: values[key] for key, row in rows.items() if is_kept(key, row)}
