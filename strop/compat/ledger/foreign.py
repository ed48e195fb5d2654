"""A foreign configuration: the value of every key of a dialect, and where the value was set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import KeyMapping, typed_value
from strop.compat.ledger.table import KeyOwnerHint, Ledger, no_key_owner
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
from strop.config.redact import redacted_repr
from strop.errors import ConfigError, FaultKind, config_error


class ForeignConfig:
    """Values of a foreign configuration: `foreign["data.train_batch_size"]` is the value that is set, or the
    documented default, with interpolations resolved. Implements ForeignValues."""

    def __init__(
        self,
        ledger: Ledger,
        tree: ConfigTree,
        *,
        here: bool = False,
        key_owner: KeyOwnerHint = no_key_owner,
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
