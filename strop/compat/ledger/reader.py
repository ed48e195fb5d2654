"""Reader of foreign configurations: converts the keys of a dialect to a run, or reports why it cannot; and Hydra
overrides (`key=value`) applied to a configuration's values, as verl's programs accept them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    KeyOwnerHint,
    Ledger,
    ReadFunction,
    in_effect,
    no_key_owner,
    typed_value,
)
from strop.config.load.config_tree import (
    MISSING,
    ConfigTree,
    KeyPath,
    Source,
    UnresolvedError,
    iter_values,
    references,
    resolve_interpolations,
    split_key,
)
from strop.config.load.loader import LoadedRun, run_sources, validate
from strop.config.load.overrides import apply_override, override_source, parse_valid_overrides
from strop.config.load.yaml_file import read_yaml
from strop.config.machine import OverriddenKey, placement_error
from strop.config.redact import redact, redacted_repr
from strop.config.schema import Run
from strop.config.units import format_value
from strop.errors import ConfigError, FaultKind, config_error

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


class ForeignConfig:
    """Values of a foreign configuration: `foreign["data.train_batch_size"]` is the value that is set, or the
    documented default, with interpolations resolved. Implements ForeignValues."""

    def __init__(
        self, ledger: Ledger, tree: ConfigTree, *, here: bool = False, key_owner: KeyOwnerHint = no_key_owner
    ) -> None:
        """`key_owner` completes the messages about unknown keys, which are added to the faults of `tree`, as
        are values that cannot be resolved or have a wrong type: these keys then have their defaults."""
        self.ledger = ledger
        self.here = here
        self.tree = tree
        self.reads: set[str] = set()
        """Keys that were read since a caller cleared the set."""
        self.written: Mapping[str, KeyMapping] = dict(_written_rows(ledger, tree, (), key_owner))
        self._aliases = {row.alias_of: key for key, row in self.written.items() if row.alias_of}
        for key, name, message in self._contradictions():
            tree.add_fault(FaultKind.UNSUPPORTED, message, split_key(key), split_key(name))
        self._values = self._resolve()
        wrong = list(self._wrong_types())
        for dotted, kind, message in wrong:
            tree.add_fault(kind, message, split_key(dotted))
        if wrong:
            self._values = self._resolve()

    def _resolve(self) -> ConfigTree:
        """The values of all keys; one that cannot be resolved becomes a fault."""
        absent: set[KeyPath] = set()
        while True:
            merged = self._merged()
            for keys in absent:
                merged.replace_value(keys, None)
            try:
                values = resolve_interpolations(merged.values, self.tree.locator(self.ledger.dialect))
                return self._without_nulls(self._typed(values))
            except UnresolvedError as error:
                if not merged.has(error.keys) or error.keys in absent:
                    raise config_error([*self.tree.faults, *error.faults]) from None
                named = references(str(merged.get(error.keys)), error.keys)
                if not any(self.is_doubtful(".".join(keys)) for keys in named):
                    self.tree.faults += error.faults
                written = next((key for key in self.written if self._is_inside(error.keys, key)), None)
                if written is None or split_key(written) in self.tree.faulty:
                    absent.add(error.keys)
                self.tree.faulty.add(split_key(written) if written else error.keys)

    def _without_nulls(self, values: ConfigTree) -> ConfigTree:
        """The values, with the defaults of keys whose interpolation is a null that leaves them unset."""
        for dotted, row in self.written.items():
            keys = split_key(dotted)
            if row.null_is_unset and keys not in self.tree.faulty and values.get(keys) is None:
                values.replace_value(keys, row.default)
        return values

    def _typed(self, values: dict[str, Any]) -> ConfigTree:
        """The values, converted to the types of their keys where the tool does that."""
        tree = ConfigTree(values)
        if not self.ledger.converts_text:
            return tree
        rows = {row.key: row for row in self.ledger.rows if not row.is_repeated} | dict(self.written)
        for dotted, row in rows.items():
            value = tree.get(split_key(dotted))
            converted = typed_value(value, row.value_type)
            if converted is not value:
                tree.replace_value(split_key(dotted), converted)
        return tree

    @staticmethod
    def _is_inside(keys: KeyPath, dotted: str) -> bool:
        above = split_key(dotted)
        return keys[: len(above)] == above

    def _merged(self) -> ConfigTree:
        """The documented defaults and the values that are set, without those of faulty keys."""
        merged = ConfigTree(self.ledger.defaults())
        for dotted, row in self.written.items():
            if split_key(dotted) in self.tree.faulty:
                continue
            value, source = self.tree.get(split_key(dotted)), self.source(dotted)
            if self._is_empty_section(row, dotted, value) and merged.get(split_key(dotted)):
                continue  # It keeps the defaults of its keys.
            merged.set(split_key(dotted), value, source)
            if row.alias_of:
                merged.set(split_key(row.alias_of), value, source)
        for name, source in self.variables():
            merged.set((name,), self.tree.get((name,)), source)
        return merged

    def variables(self) -> Iterator[tuple[str, Source]]:
        """Names that the command line adds at the top level for interpolations, each with its source."""
        for name in map(str, self.tree.get(())):
            source = self.tree.nearest_source((name,))
            if source is not None and _is_variable(self.ledger, self.tree, (name,)):
                yield name, source

    def _is_empty_section(self, row: KeyMapping, dotted: str, value: Any) -> bool:
        """Whether a section of keys with rows of their own is null or empty."""
        if row.key == f"{dotted}.*":
            return not isinstance(value, dict) or not value
        return self.ledger.has_rows_inside(dotted) and (value is None or value == {})

    def __getitem__(self, dotted: str) -> Any:
        self.reads.add(dotted)
        return self._values.get(split_key(dotted))

    def has_row(self, dotted: str) -> bool:
        """Whether the dialect's ledger has a row for the key."""
        return self.ledger.find(dotted) is not None

    def is_set(self, dotted: str) -> bool:
        """Whether a file or an override sets the key, by one of its names."""
        self.reads.add(dotted)
        return dotted in self.written or dotted in self._aliases

    def written_keys(self, row: KeyMapping) -> list[str]:
        """The keys of a row that are set; a row for user-named sections has one key per such section."""
        if ".*." not in row.key:
            return [row.key] if self.is_set(row.key) else []
        return [key for key, each in self.written.items() if each is row]

    def source(self, dotted: str) -> Source:
        """The place where a key is set, or the origin of its default."""
        dotted = self._aliases.get(dotted, dotted)
        source = self.tree.source(split_key(dotted))
        if source is None:
            row = self.ledger.find(dotted)
            origin = "documented default" if row is None or row.default_stated else "unstated default"
            return Source("dialect", f"{dotted} ({origin})")
        return source if source.kind == "override" else Source(source.kind, f"{source.location} ({dotted})")

    def error_for(self, dotted: str, reason: str) -> ConfigError:
        """The error for a foreign value that is not accepted.

        Its location is where the key is set; for a key that is not set, where a key that `reason` names is
        set, or else the section that would contain the key.
        """
        if self.is_set(dotted):
            return ConfigError(f"{self.source(dotted)}: {reason}")
        keys = split_key(dotted)
        where = self.tree.source_named_in(reason) or self.tree.nearest_source(keys) or self.ledger.dialect
        return ConfigError(f"{where}: {reason}")

    def is_doubtful(self, dotted: str) -> bool:
        """Whether the key, a key inside it or the key that it is a name of has a fault."""
        if not self.tree.faulty:
            return False
        row = self.ledger.find(dotted)
        names = {dotted, row.alias_of if row else "", self._aliases.get(dotted, "")} - {""}
        return any(
            faulty[: len(keys)] == keys or keys[: len(faulty)] == faulty
            for keys in map(split_key, names)
            for faulty in self.tree.faulty
        )

    def _wrong_types(self) -> Iterator[tuple[str, FaultKind, str]]:
        """Keys whose values have a wrong type, each with a message."""
        for dotted, row in self.written.items():
            value = self._values.get(split_key(dotted))
            if split_key(dotted) not in self.tree.faulty and not row.value_type.accepts(value):
                got, where = redacted_repr(value, dotted), self.source(dotted)
                message = f"{where}: {dotted} must be {row.value_type.description}, got {got}."
                yield dotted, FaultKind.WRONG_TYPE, message

    def _contradictions(self) -> Iterator[tuple[str, str, str]]:
        """Keys that are set by two of their names to different values: both names, and a message."""
        for key, name in self._aliases.items():
            first, second = (self.tree.get(split_key(each)) for each in (key, name))
            if key in self.written and None not in (first, second) and first != second:
                message = f"{name} is another name of {key}, which is {first!r}; write one."
                yield key, name, f"{self.source(name)}: {message}"


def _written_rows(
    ledger: Ledger, tree: ConfigTree, above: KeyPath, key_owner: KeyOwnerHint
) -> Iterator[tuple[str, KeyMapping]]:
    """The keys that are set, each with its row; unknown keys become faults of the tree."""
    values = tree.get(above)
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        keys = (*above, str(name))
        dotted = ".".join(keys)
        row = ledger.find(dotted)
        inside = _has_keys(value) and ledger.is_section(dotted)
        if "." in str(name):
            tree.add_fault(
                FaultKind.UNKNOWN_KEY,
                f"{tree.nearest_source(keys)}: {name} contains a dot; nest the sections in the file instead.",
            )
        elif value in ({}, None) and ledger.is_section(dotted) and ledger.find_exact(dotted) is None:
            continue  # a section without keys
        elif (
            row is not None
            and not (value and inside)
            and (row.key == dotted or not ledger.is_section(dotted))
        ):
            if not _is_unset(row, value):
                yield dotted, row
        elif inside:
            yield from _written_rows(ledger, tree, keys, key_owner)
        elif ledger.is_section(dotted):
            got = redacted_repr(value, str(name))
            tree.add_fault(
                FaultKind.WRONG_TYPE,
                f"{tree.nearest_source(keys)}: {dotted} is a section and needs keys inside it; got {got}.",
                keys,
            )
        elif not _is_variable(ledger, tree, keys):
            where, hint = tree.nearest_source(keys), ledger.unknown_key_hint(dotted, key_owner)
            message = f"{where}: {ledger.dialect} has no key {dotted}{hint}"
            tree.add_fault(FaultKind.UNKNOWN_KEY, message, *ledger.possibly_meant(dotted))


def _is_variable(ledger: Ledger, tree: ConfigTree, keys: KeyPath) -> bool:
    """Whether a key is a name of the user's own at the top level: Hydra's `+name=value` or `++name=value` that neither
    the tool nor a misspelling explains, or a key of a file to which another value refers."""
    source = tree.nearest_source(keys)
    name = keys[0]
    if len(keys) > 1 or source is None or ledger.has(name) or ledger.is_section(name):
        return False
    if source.kind == "file":
        return any(path[0] == name for path in _referred(tree))
    added = source.kind == "override" and source.location.partition("=")[0] in (f"+{name}", f"++{name}")
    return added and not ledger.possibly_meant(name)


def _referred(tree: ConfigTree) -> Iterator[KeyPath]:
    """The paths to which texts of the configuration refer, those included that a later value replaced."""
    texts = [(at, text) for at, text in iter_values(tree.values) if isinstance(text, str)]
    for at, text in (*texts, *tree.replaced):
        yield from references(text, at)


def _is_unset(row: KeyMapping, value: Any) -> bool:
    """Whether a value leaves its key unset: a null that stands for the default, or OmegaConf's mark of a missing
    value where none is needed."""
    if value == MISSING:
        return row.is_placement or row.disposition != "mapped"
    return value is None and row.null_is_unset


def _has_keys(value: Any) -> bool:
    """Whether the value is a mapping or a list of mappings."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(v, dict) for v in value))


CompleteFunction = Callable[[ConfigTree], None]
"""Changes the run-file values of a converted configuration, each with its source."""
EnvironmentFunction = Callable[[ForeignValues], Mapping[str, str]]
"""Environment variables of a configuration's run, by their names."""
_REQUIRED = ("model.path", "data.train.path")
"""Run-file fields that have no default."""
_LONG_REASON = 120
"""Length, in characters, above which a reason is given for the first of several refused keys only."""


def read_dialect(
    ledger: Ledger,
    tree: ConfigTree,
    *,
    here: bool,
    key_owner: KeyOwnerHint = no_key_owner,
    complete: CompleteFunction | None = None,
    environment: EnvironmentFunction | None = None,
) -> LoadedRun:
    """Convert a dialect's configuration to a run; `complete` may change its run-file values before their check, and
    `environment` names environment variables that it sets.

    Raises ConfigError with all keys and values that are not accepted, and PlacementError if only a placement
    is set that this machine does not have and `here` does not override it.
    """
    foreign = ForeignConfig(ledger, tree, here=here, key_owner=key_owner)
    with notices_on_error(foreign):
        overridden = _check_support(foreign)
        run, fields = _run_of(foreign, complete)
    return LoadedRun(
        run,
        run_sources(run, fields.source),
        overridden,
        tuple(usage_notes(foreign)),
        environment=environment(foreign) if environment else {},
    )


@contextmanager
def notices_on_error(foreign: ForeignConfig) -> Iterator[None]:
    """Give a ConfigError the notices about the keys that have no fault."""
    try:
        yield
    except ConfigError as error:
        error.notices = tuple(usage_notes(foreign))
        raise


def read_ignoring_placement(ledger: Ledger, tree: ConfigTree) -> Run:
    """The run on a machine that has everything its placement requests. Raises ConfigError."""
    foreign = ForeignConfig(ledger, tree)
    _find_refused(foreign)
    return _run_of(foreign)[0]


def check_values(foreign: ForeignConfig) -> tuple[OverriddenKey, ...]:
    """Check the type and support of every value that is set; returns the placement keys that `--here`
    overrides.

    Raises ConfigError with all faults, and PlacementError if the only ones are placement that this machine
    does not have.
    """
    overridden = _check_support(foreign)
    raise_faults(foreign)
    return overridden


def raise_faults(foreign: ForeignConfig) -> None:
    """Raise ConfigError with all faults that were found; return if there are none."""
    if foreign.tree.faults:
        raise config_error(foreign.tree.faults)


def _check_support(foreign: ForeignConfig) -> tuple[OverriddenKey, ...]:
    """The placement keys that `--here` overrides. Values that are not supported become faults."""
    _find_refused(foreign)
    overridden = tuple(
        OverriddenKey(key, redact(foreign[key], key), row.note)
        for key, row in _unsupported(foreign)
        if row.is_placement
    )
    if overridden and not foreign.here:
        foreign.tree.faults += placement_error(overridden).faults
    return overridden


def _find_refused(foreign: ForeignConfig) -> None:
    """Add the refused values to the faults; a long reason is in the message of the first of its keys."""
    explained: dict[str, str] = {}
    for key, row in [(key, row) for key, row in _unsupported(foreign) if row.disposition == "refused"]:
        value = redacted_repr(foreign[key], key)
        first = explained.setdefault(row.note, key)
        repeats = first != key and len(row.note) > _LONG_REASON
        why = f", for the reason given for {first}." if repeats else f": {row.note}."
        message = f"{foreign.source(key)}: {key}={value} is not supported{why}"
        foreign.tree.add_fault(FaultKind.UNSUPPORTED, message, split_key(key))


def _unsupported(foreign: ForeignConfig) -> Iterator[tuple[str, KeyMapping]]:
    """The active keys whose values are not supported."""
    for key, row in foreign.written.items():
        if row.supported is None or foreign.is_doubtful(key):
            continue
        if row.inactive is not None and row.inactive(foreign):
            continue
        if not row.supported(foreign, foreign[key]):
            yield key, row


def _run_of(foreign: ForeignConfig, complete: CompleteFunction | None = None) -> tuple[Run, ConfigTree]:
    """The run, and its fields with their sources. Raises ConfigError with all faults."""
    fields = _convert(foreign)
    if complete is not None:
        complete(fields)
    for key, field in _missing(foreign, fields):
        message = str(foreign.error_for(key, f"{key} is missing; it is required."))
        fields.add_fault(FaultKind.UNSUPPORTED, message, split_key(field))
    fields.faults[:0] = foreign.tree.faults
    fields.faulty |= {
        split_key(field)
        for row in foreign.ledger.rows
        for field in row.fields
        if foreign.is_doubtful(row.key)
    }
    return validate(fields.values, fields, foreign.ledger.dialect), fields


def _missing(foreign: ForeignConfig, fields: ConfigTree) -> Iterator[tuple[str, str]]:
    """Required fields without a value, each after its foreign key."""
    for field in _REQUIRED:
        key = next((row.key for row in foreign.ledger.rows if field in row.fields), field)
        known = fields.get(split_key(field)) is not None or split_key(field) in fields.faulty
        if not known and not foreign.is_doubtful(key):
            yield key, field


def apply_converters(foreign: ForeignConfig) -> ConfigTree:
    """The run-file fields, with the foreign key that decided each as its source. Raises ConfigError with all
    faults of the configuration."""
    fields = _convert(foreign)
    if foreign.tree.faults or fields.faults:
        raise config_error([*foreign.tree.faults, *fields.faults])
    return fields


def _convert(foreign: ForeignConfig) -> ConfigTree:
    """Apply every read function whose keys have an effect once, in the ledger's order. Values that one does not accept
    are faults of the result, unless they may follow from another fault."""
    tree = ConfigTree()
    rows_of: dict[ReadFunction | str, list[KeyMapping]] = {}
    for row in foreign.ledger.rows:
        if (row.fields or row.read) and not row.alias_of:
            rows_of.setdefault(row.read or row.key, []).append(row)
    for read, rows in rows_of.items():
        foreign.reads.clear()
        fields = {split_key(field) for row in rows for field in row.fields}
        try:
            settings = _settings(foreign, read, rows)
        except ConfigError as error:
            if not any(map(foreign.is_doubtful, foreign.reads)):
                tree.faults += error.faults
            tree.faulty |= fields
            continue
        if any(map(foreign.is_doubtful, foreign.reads)):
            tree.faulty |= set(map(split_key, settings)) or fields
        for field, value in settings.items():
            tree.set(split_key(field), value, _source_of(foreign, field, read))
            for keys, _ in iter_values(value, split_key(field)):
                tree.sources[keys] = _source_of(foreign, ".".join(keys), read)
    return tree


def _settings(
    foreign: ForeignConfig, read: ReadFunction | str, rows: Sequence[KeyMapping]
) -> Mapping[str, Any]:
    """The run-file values of keys that have one converter, or of a key that is copied; none if all are inactive."""
    if all(row.inactive for row in rows) and all(row.inactive and row.inactive(foreign) for row in rows):
        return {}
    return {rows[0].fields[0]: foreign[read]} if isinstance(read, str) else read(foreign)


def _source_of(foreign: ForeignConfig, field: str, read: ReadFunction | str) -> Source:
    """The foreign key that decided a run-file field: one that `read` converts, or else any of the field."""
    rows = foreign.ledger.deciding(field)
    key = _deciding(foreign, [row for row in rows if row.read is read]) or _deciding(foreign, rows)
    if key is None:
        return Source("dialect", f"fixed by {foreign.ledger.dialect}")
    shown = format_value(split_key(key)[-1], foreign[key])
    return replace(foreign.source(key), foreign_key=f"{key}={shown}")


def _deciding(foreign: ForeignConfig, rows: Sequence[KeyMapping]) -> str | None:
    """The last active key that is set; if none is set, the last that is not another name of a key."""
    by_rank = [(row, row.key) for alias in (True, False) for row in rows if bool(row.alias_of) is alias]
    by_rank += [(row, key) for row in rows for key in foreign.written_keys(row)]
    return next(
        (key for row, key in reversed(by_rank) if row.inactive is None or not row.inactive(foreign)), None
    )


def usage_notes(foreign: ForeignConfig) -> Iterator[str]:
    """Notices about keys that are set: without effect and why, deprecated, or with a warning. Placement keys that Strop
    decides in one way are named together."""
    decided: dict[str, list[str]] = {}
    for key, row in foreign.written.items():
        if foreign.is_doubtful(key):
            continue
        if notice := _notice(foreign, row):
            yield f"{foreign.source(key)}: {notice}."
        elif (
            row.disposition == "placement"
            and row.warn is not in_effect
            and _is_replaced_unseen(foreign, key, row)
        ):
            decided.setdefault(row.note, []).append(str(foreign.source(key)))
    for note, sources in decided.items():
        yield f"{', '.join(sources)}: accepted without effect: {note}."
    for name, source in foreign.variables():
        yield (
            f"{source}: {foreign.ledger.dialect} has no key {name}, so it counts only where another value refers to it "
            f"as ${{{name}}}."
        )


class _FaultyValueError(Exception):
    """A notice depends on a value that has a fault, and is therefore not known."""


class _SoundValues(ForeignConfig):
    """Values of a configuration, of which those with a fault cannot be read."""

    def __init__(self, foreign: ForeignConfig) -> None:
        self.__dict__ = foreign.__dict__

    def __getitem__(self, dotted: str) -> Any:
        if self.is_doubtful(dotted):
            raise _FaultyValueError
        return super().__getitem__(dotted)

    def is_set(self, dotted: str) -> bool:
        if self.is_doubtful(dotted):
            raise _FaultyValueError
        return super().is_set(dotted)


def _notice(foreign: ForeignConfig, row: KeyMapping) -> str | None:
    """The notice about one key that is set; None also if it depends on a value that has a fault."""
    sound = _SoundValues(foreign) if foreign.tree.faults else foreign
    try:
        if row.inactive and (why := row.inactive(sound)):
            return f"inactive, because {why}"
        if row.deprecated:
            return f"deprecated; {row.deprecated}"
        if row.disposition == "accepted without effect":
            return f"accepted without effect: {row.note}"
        return row.warn(sound) if row.warn else None
    except _FaultyValueError:
        return None


def _is_replaced_unseen(foreign: ForeignConfig, key: str, row: KeyMapping) -> bool:
    """Whether a placement key has another value than its default, and no replacement by `--here` names it."""
    value, default = foreign[key], row.default
    if isinstance(default, str) and default.startswith("${"):
        default = foreign[default[2:-1]]
    return value != default and (row.supported is None or row.supported(foreign, value))


def config_tree_from_overrides(
    ledger: Ledger,
    overrides: Sequence[str],
    config: Path | None = None,
    *,
    key_owner: KeyOwnerHint = no_key_owner,
) -> ConfigTree:
    """The file's values with the overrides applied; the tree has the faults of the overrides."""
    tree = ConfigTree() if config is None else read_yaml(config)
    parsed = parse_valid_overrides(overrides, tree.faults)
    return apply_overrides(ledger, tree, parsed, key_owner=key_owner)


def apply_overrides(
    ledger: Ledger, tree: ConfigTree, overrides: Sequence[Override], *, key_owner: KeyOwnerHint = no_key_owner
) -> ConfigTree:
    """Apply the overrides to the tree. Overrides that Hydra would reject are faults of the tree."""
    for override in overrides:
        try:
            if not _delete_default(ledger, tree, override):
                apply_override(
                    tree,
                    override,
                    known=lambda keys: ledger.has(".".join(keys)),
                    suggest=lambda dotted: ledger.unknown_key_hint(dotted, key_owner),
                )
        except ConfigError as error:
            tree.faults += error.faults
            tree.faulty |= ledger.possibly_meant(override.key_or_group)
    return tree


def _delete_default(ledger: Ledger, tree: ConfigTree, override: Override) -> bool:
    """Whether the override deletes a key that only has its default: the key is then null.

    Raises ConfigError for a key that cannot be null.
    """
    dotted = override.key_or_group
    row = ledger.find_exact(dotted)
    if not override.is_delete() or row is None or tree.has(tuple(dotted.split("."))):
        return False
    source = override_source(override)
    if not row.value_type.accepts(None):
        raise ConfigError(f"{source}: {ledger.dialect} needs the key {dotted}, so it cannot be removed.")
    tree.set(tuple(dotted.split(".")), None, source)
    return True
