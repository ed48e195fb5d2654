"""A foreign configuration: the value of every key of a dialect, and where the value was set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key
from strop.config.load.interpolation import resolve_interpolations
from strop.config.redact import redacted_repr
from strop.dialects.ledger.key_mapping import KeyMapping
from strop.dialects.ledger.table import KeyOwnerHint, Ledger, no_key_owner
from strop.errors import ConfigError


class ForeignConfig:
    """Values of a foreign configuration: `foreign["data.train_batch_size"]` is the value that is set, or the
    page's default, with interpolations resolved. Implements ForeignValues."""

    def __init__(
        self,
        ledger: Ledger,
        tree: ConfigTree,
        *,
        here: bool = False,
        key_owner: KeyOwnerHint = no_key_owner,
    ) -> None:
        """Raises ConfigError that lists all unknown keys of `tree`; `key_owner` completes these messages."""
        self.ledger = ledger
        self.here = here
        faults: list[str] = []
        self.written: Mapping[str, KeyMapping] = dict(_written_rows(ledger, tree, (), faults, key_owner))
        self._aliases = {row.alias_of: key for key, row in self.written.items() if row.alias_of}
        self._tree = tree
        faults += self._contradictions()
        if faults:
            raise ConfigError("\n".join(faults))
        merged = ConfigTree(ledger.defaults())
        for dotted, row in self.written.items():
            value, source = tree.get(split_key(dotted)), self.source(dotted)
            if row.key == f"{dotted}.*" and not isinstance(value, dict) and merged.get(split_key(dotted)):
                continue  # A section that is null keeps the defaults of its keys.
            merged.set(split_key(dotted), value, source)
            if row.alias_of:
                merged.set(split_key(row.alias_of), value, source)
        self._values = ConfigTree(resolve_interpolations(merged.values, tree.locator(ledger.dialect)))

    def __getitem__(self, dotted: str) -> Any:
        return self._values.get(split_key(dotted))

    def has_row(self, dotted: str) -> bool:
        """Whether the dialect's ledger has a row for the key."""
        return self.ledger.find(dotted) is not None

    def is_set(self, dotted: str) -> bool:
        """Whether a file or an override sets the key, by one of its names."""
        return dotted in self.written or dotted in self._aliases

    def written_keys(self, row: KeyMapping) -> list[str]:
        """The keys of a row that are set; a row for user-named sections has one key per such section."""
        if ".*." not in row.key:
            return [row.key] if self.is_set(row.key) else []
        return [key for key, each in self.written.items() if each is row]

    def source(self, dotted: str) -> Source:
        """The place where a key is set, or the origin of its default."""
        dotted = self._aliases.get(dotted, dotted)
        source = self._tree.source(split_key(dotted))
        if source is None:
            row = self.ledger.find(dotted)
            origin = "page default" if row is None or row.default_stated else "unstated default"
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
        where = self._tree.source_named_in(reason) or self._tree.nearest_source(keys) or self.ledger.dialect
        return ConfigError(f"{where}: {reason}")

    def _contradictions(self) -> Iterator[str]:
        """Messages about keys that are set by two of their names to different values."""
        for key, name in self._aliases.items():
            first, second = (self._tree.get(split_key(each)) for each in (key, name))
            if key in self.written and None not in (first, second) and first != second:
                yield f"{self.source(name)}: {name} is another name of {key}, which is {first!r}; write one."


def _written_rows(
    ledger: Ledger, tree: ConfigTree, above: KeyPath, faults: list[str], key_owner: KeyOwnerHint
) -> Iterator[tuple[str, KeyMapping]]:
    """The keys that are set, each with its row; messages about unknown keys go to `faults`."""
    values = tree.get(above)
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        keys = (*above, str(name))
        dotted = ".".join(keys)
        row = ledger.find(dotted)
        inside = _has_keys(value) and ledger.is_section(dotted)
        if "." in str(name):
            faults.append(
                f"{tree.nearest_source(keys)}: {name} contains a dot; nest the sections in the file instead."
            )
        elif value in ({}, None) and ledger.is_section(dotted) and ledger.find_exact(dotted) is None:
            continue  # a section without keys
        elif row is not None and not (value and inside):
            yield dotted, row
        elif inside:
            yield from _written_rows(ledger, tree, keys, faults, key_owner)
        elif ledger.is_section(dotted):
            got = redacted_repr(value, str(name))
            faults.append(
                f"{tree.nearest_source(keys)}: {dotted} is a section and needs keys inside it; got {got}."
            )
        else:
            where, hint = tree.nearest_source(keys), ledger.unknown_key_hint(dotted, key_owner)
            faults.append(f"{where}: {ledger.dialect} has no key {dotted}{hint}")


def _has_keys(value: Any) -> bool:
    """Whether the value is a mapping or a list of mappings."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(v, dict) for v in value))
