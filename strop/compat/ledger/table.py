"""Ledger of a dialect: the table of its keys, with lookup by dotted key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key, to_plain
from strop.printable import closest


class KeyOwnerHint(Protocol):
    """Function that returns a sentence naming the configurations that have an unknown key, or an empty
    string."""

    def __call__(self, dotted: str, not_of: str, *, by_last_name: bool = True) -> str:
        """`not_of` is the dialect that does not have the key. `by_last_name` also matches the last name
        alone."""


def no_key_owner(dotted: str, not_of: str, *, by_last_name: bool = True) -> str:
    """The KeyOwnerHint of callers that do not know the other dialects: an empty string."""
    return ""


@dataclass(frozen=True)
class Ledger:
    """All rows of one dialect, in the order of its seed page."""

    dialect: str
    rows: tuple[KeyMapping, ...]
    converts_text: bool = False
    """Whether the tool converts a text to the type of its key, as OmegaConf does with a typed configuration."""

    @cached_property
    def _by_key(self) -> dict[str, KeyMapping]:
        return {row.key: row for row in self.rows}

    @cached_property
    def _with_named_sections(self) -> frozenset[str]:
        """Sections whose subsections have names that the user chooses."""
        return frozenset(row.key.partition(".*.")[0] for row in self.rows if ".*." in row.key)

    @cached_property
    def _sections(self) -> frozenset[str]:
        """Sections of the rows' keys, as rows spell them."""
        paths = [split_key(row.key) for row in self.rows]
        return frozenset(".".join(keys[:depth]) for keys in paths for depth in range(1, len(keys)))

    @cached_property
    def _by_field(self) -> dict[str, list[KeyMapping]]:
        found: dict[str, list[KeyMapping]] = {}
        for row in self.rows:
            for field in dict.fromkeys(row.fields):
                found.setdefault(field, []).append(row)
        return found

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        tree = ConfigTree()
        for row in self.rows:
            if row.default is not UNSET and not row.is_repeated:
                tree.set(split_key(row.key), row.default, Source("dialect", row.key))
        return tree.values

    def find(self, dotted: str) -> KeyMapping | None:
        """The row of a key: the key's own row, or the row of the nearest enclosing `section.*`.

        The rows of item 0 of a list apply to all its items; `*` rows apply to all sections that a user names.
        """
        dotted = self._general(dotted)
        keys = split_key(dotted)
        candidates = [dotted, *(".".join((*keys[:depth], "*")) for depth in range(len(keys), 0, -1))]
        return next((self._by_key[name] for name in candidates if name in self._by_key), None)

    def find_exact(self, dotted: str) -> KeyMapping | None:
        """The key's own row, if it has one."""
        return self._by_key.get(self._general(dotted))

    def has(self, dotted: str) -> bool:
        """Whether the ledger has this key or section."""
        return self.find(dotted) is not None or self.is_section(dotted)

    def is_section(self, dotted: str) -> bool:
        """Whether the ledger has keys inside `dotted`."""
        return self._general(dotted) in self._sections

    def has_rows_inside(self, dotted: str) -> bool:
        """Whether rows have keys inside `dotted`, spelled as rows spell it."""
        return dotted in self._sections

    def deciding(self, field: str) -> list[KeyMapping]:
        """The rows that decide a run-file field."""
        return self._by_field.get(field, [])

    def _general(self, dotted: str) -> str:
        """The key as rows spell it: 0 for the number of a list item, `*` for a name that the user chose."""
        keys = ["0" if key.isdigit() else key for key in split_key(dotted)]
        named = self._with_named_sections
        depths = range(1, len(keys))
        return ".".join((keys[0], *("*" if ".".join(keys[:d]) in named else keys[d] for d in depths)))

    def unknown_key_hint(self, dotted: str, key_owner: KeyOwnerHint = no_key_owner) -> str:
        """The end of the error for an unknown key: the closest known key, the key's owner, where to look."""
        near = self._closest_key(dotted)
        owner = key_owner(dotted, self.dialect, by_last_name=near is None)
        hint = f"; did you mean {near!r}?" if near else "."
        return f"{hint}{owner} Run `strop keys {self.dialect}` for the list of keys."

    def possibly_meant(self, dotted: str) -> set[KeyPath]:
        """The paths whose values are unknown where a key is not accepted: its own, or that of the key it
        resembles."""
        meant = dotted if self.has(dotted) else self._closest_key(dotted)
        return set() if meant is None else {split_key(meant)}

    def _closest_key(self, dotted: str) -> str | None:
        """A key whose name resembles the unknown key's: in the same section, else in another one.

        A key in another section has the same last name, or as many sections of similar names.
        """
        *above, last = split_key(dotted)
        names = [row.key for row in self.rows if not row.key.endswith("*")]
        siblings = {split_key(name)[-1]: name for name in names if split_key(name)[:-1] == tuple(above)}
        if found := closest(last, siblings):
            return siblings[found]
        by_last = {split_key(name)[-1]: name for name in reversed(names)}
        if len(split_key(dotted)) == 1 and last in by_last:
            return by_last[last]
        if whole := next((name for name in names if above and name.endswith(f".{dotted}")), None):
            return whole
        by_last = {last: name for last, name in by_last.items() if _same_section(above, name)}
        if found := closest(last, by_last):
            return by_last[found]
        alike = [name for name in names if _resembles(split_key(dotted), split_key(name))]
        return closest(dotted, alike)

    def defaults(self) -> dict[str, Any]:
        """The configuration in which no key is set; a copy, which the caller may change."""
        copied: dict[str, Any] = to_plain(self._defaults)
        return copied


def _same_section(above: Sequence[str], name: str) -> bool:
    """Whether a key is inside the section `above`, or in a section that contains it."""
    section = split_key(name)[:-1]
    depth = min(len(above), len(section))
    return depth > 0 and section[:depth] == tuple(above[:depth]) and abs(len(above) - len(section)) <= 1


def _resembles(first: KeyPath, second: KeyPath) -> bool:
    """Whether every part of one key resembles the same part of another key."""
    return len(first) == len(second) and all(
        one == other or closest(one, [other]) is not None for one, other in zip(first, second, strict=True)
    )
