"""Reader of foreign configurations: converts the keys of a dialect to a run, or reports why it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from strop.config.explain.values import format_value
from strop.config.load.config_tree import ConfigTree, Source, iter_values, split_key
from strop.config.load.loader import LoadedRun, run_sources
from strop.config.load.placement import OverriddenKey, placement_error
from strop.config.load.validation import validate
from strop.config.redact import redact, redacted_repr
from strop.config.schema import Run
from strop.dialects.ledger.foreign import ForeignConfig
from strop.dialects.ledger.key_mapping import KeyMapping, ReadFunction
from strop.dialects.ledger.table import KeyOwnerHint, Ledger, no_key_owner
from strop.errors import ConfigError

_REQUIRED = ("model.path", "data.train.path")
"""Run-file fields that have no default."""


def read_dialect(
    ledger: Ledger, tree: ConfigTree, *, here: bool, key_owner: KeyOwnerHint = no_key_owner
) -> LoadedRun:
    """Convert a dialect's configuration to a run.

    Raises ConfigError for keys and values that are not accepted, and PlacementError for a placement that is
    set and that this machine does not have, unless `here` overrides it.
    """
    foreign = ForeignConfig(ledger, tree, here=here, key_owner=key_owner)
    overridden = check_values(foreign)
    run, fields = _run_of(foreign)
    return LoadedRun(run, run_sources(run, fields.source), overridden, tuple(usage_notes(foreign)))


def read_ignoring_placement(ledger: Ledger, tree: ConfigTree) -> Run:
    """The run on a machine that has everything its placement requests. Raises ConfigError."""
    foreign = ForeignConfig(ledger, tree)
    _active_rows(foreign)
    return _run_of(foreign)[0]


def check_values(foreign: ForeignConfig) -> tuple[OverriddenKey, ...]:
    """Check the type and support of every value that is set; returns the placement keys that `--here`
    overrides.

    Raises ConfigError for a wrong or refused value, and PlacementError for a placement that this machine
    does not have.
    """
    overridden = tuple(
        OverriddenKey(key, redact(foreign[key], key), row.note)
        for key, row in _active_rows(foreign).items()
        if row.disposition == "placement" and not _is_supported(foreign, key, row)
    )
    if overridden and not foreign.here:
        raise placement_error(overridden)
    return overridden


def _active_rows(foreign: ForeignConfig) -> Mapping[str, KeyMapping]:
    """The keys that are set and active. Raises ConfigError for values of a wrong type and refused values."""
    _raise_all(_wrong_types(foreign))
    active = {
        key: row for key, row in foreign.written.items() if row.inactive is None or not row.inactive(foreign)
    }
    _raise_all(_unsupported(foreign, active))
    return active


def _run_of(foreign: ForeignConfig) -> tuple[Run, ConfigTree]:
    fields = apply_converters(foreign)
    _raise_all(_missing(foreign, fields))
    return validate(fields.values, fields, foreign.ledger.dialect), fields


def _raise_all(faults: Iterator[str]) -> None:
    found = list(faults)
    if found:
        raise ConfigError("\n".join(found))


def _wrong_types(foreign: ForeignConfig) -> Iterator[str]:
    for key, row in foreign.written.items():
        if not row.value_type.accepts(foreign[key]):
            got = redacted_repr(foreign[key], key)
            yield f"{foreign.source(key)}: {key} must be {row.value_type.description}, got {got}."


def _unsupported(foreign: ForeignConfig, active: Mapping[str, KeyMapping]) -> Iterator[str]:
    for key, row in active.items():
        if row.disposition == "refused" and not _is_supported(foreign, key, row):
            value = redacted_repr(foreign[key], key)
            yield f"{foreign.source(key)}: {key}={value} is not supported: {row.note}."


def _missing(foreign: ForeignConfig, fields: ConfigTree) -> Iterator[str]:
    for field in _REQUIRED:
        key = next((row.key for row in foreign.ledger.rows if field in row.fields), field)
        if fields.get(split_key(field)) is None:
            yield str(foreign.error_for(key, f"{key} is missing; it is required."))


def _is_supported(foreign: ForeignConfig, key: str, row: KeyMapping) -> bool:
    return row.supported is not None and row.supported(foreign, foreign[key])


def apply_converters(foreign: ForeignConfig) -> ConfigTree:
    """Apply every read function once, in the ledger's order, to get the run-file fields.

    The source of each field is the foreign key that decided it.
    """
    tree, faults = ConfigTree(), []
    for read in dict.fromkeys(
        row.read or _copy_value(row)
        for row in foreign.ledger.rows
        if (row.fields or row.read) and not row.alias_of
    ):
        try:
            settings = read(foreign)
        except ConfigError as error:
            faults.append(str(error))
            continue
        for field, value in settings.items():
            tree.set(split_key(field), value, _source_of(foreign, field, read))
            for keys, _ in iter_values(value, split_key(field)):
                tree.sources[keys] = _source_of(foreign, ".".join(keys), read)
    _raise_all(iter(faults))
    return tree


def _copy_value(row: KeyMapping) -> ReadFunction:
    return lambda foreign: {row.fields[0]: foreign[row.key]}


def _source_of(foreign: ForeignConfig, field: str, read: ReadFunction) -> Source:
    """The foreign key that decided a run-file field.

    Candidates are the active keys that `read` converts, or else all active keys of the field. The last
    candidate that is set wins; if none is set, the last candidate.
    """
    rows = [
        row
        for row in foreign.ledger.rows
        if field in row.fields and (row.inactive is None or not row.inactive(foreign))
    ]
    rows = [row for row in rows if row.read is read] or rows
    written = [key for row in rows for key in foreign.written_keys(row)]
    if not rows:
        return Source("dialect", f"fixed by {foreign.ledger.dialect}")
    key = (written or [rows[-1].key])[-1]
    shown = format_value(split_key(key)[-1], foreign[key])
    return replace(foreign.source(key), foreign_key=f"{key}={shown}")


def usage_notes(foreign: ForeignConfig) -> Iterator[str]:
    """Notices about keys that are set: without effect and why, deprecated, or with a warning."""
    for key, row in foreign.written.items():
        why = row.inactive(foreign) if row.inactive else None
        if why:
            yield f"{foreign.source(key)}: inactive, because {why}."
        elif row.deprecated:
            yield f"{foreign.source(key)}: deprecated; {row.deprecated}."
        elif row.disposition == "accepted without effect":
            yield f"{foreign.source(key)}: accepted without effect: {row.note}."
        elif row.warn and (warning := row.warn(foreign)):
            yield f"{foreign.source(key)}: {warning}."
