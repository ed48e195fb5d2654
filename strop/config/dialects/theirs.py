"""A foreign configuration, as the conversions see it: every key's value, and who wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strop.config.dialects.row import UNSET, Row
from strop.config.draft import Draft, Keys, Source, split
from strop.config.redact import brief
from strop.config.resolve import resolve
from strop.config.suggest import closest
from strop.errors import ConfigError


@dataclass(frozen=True)
class Ledger:
    """All rows of one dialect, in its page's order."""

    dialect: str
    rows: tuple[Row, ...]

    @cached_property
    def _by_key(self) -> dict[str, Row]:
        return {row.theirs: row for row in self.rows}

    @cached_property
    def _named(self) -> frozenset[str]:
        """The sections whose own sections a user names."""
        return frozenset(row.theirs.partition(".*.")[0] for row in self.rows if ".*." in row.theirs)

    def find(self, dotted: str) -> Row | None:
        """The row of a key: its own, or that of the nearest `section.*` above it.

        Item 0 of a list has the rows of all its items, and `*` those of all sections that a user names.
        """
        dotted = self._general(dotted)
        keys = split(dotted)
        candidates = [dotted, *(".".join((*keys[:depth], "*")) for depth in range(len(keys), 0, -1))]
        return next((self._by_key[name] for name in candidates if name in self._by_key), None)

    def has(self, dotted: str) -> bool:
        """Whether the key, or the section, is in the ledger."""
        return self.find(dotted) is not None or self.is_section(dotted)

    def is_section(self, dotted: str) -> bool:
        """Whether keys stand below it."""
        above = f"{self._general(dotted)}."
        return any(row.theirs.startswith(above) for row in self.rows)

    def _general(self, dotted: str) -> str:
        """The key as rows have it: with 0 for an item's number, and `*` for a name that a user chose."""
        keys = ["0" if key.isdigit() else key for key in split(dotted)]
        depths = range(1, len(keys))
        return ".".join((keys[0], *("*" if ".".join(keys[:d]) in self._named else keys[d] for d in depths)))

    def find_own(self, dotted: str) -> Row | None:
        """The row of exactly this key, if it has one."""
        return self._by_key.get(self._general(dotted))

    def suggest(self, dotted: str) -> str:
        """What to say of a key that is not in the ledger: what it may be a slip of, and whose it is."""
        from strop.config.dialects.whose import whose  # it knows all dialects, which are made with this

        near = self._near(dotted)
        owned = whose(dotted, self.dialect, by_last_name=near is None)
        hint = f"; did you mean {near!r}?" if near else "."
        return f"{hint}{owned} `strop keys {self.dialect}` lists all."

    def _near(self, dotted: str) -> str | None:
        """A key of the same section, or else of any, whose last name is like the one that was written."""
        *above, last = split(dotted)
        names = [row.theirs for row in self.rows if not row.theirs.endswith("*")]
        beside = [name for name in names if split(name)[:-1] == tuple(above)]
        for group in (beside, names):
            by_last = {split(name)[-1]: name for name in reversed(group)}
            if found := closest(last, by_last):
                return by_last[found]
        return closest(dotted, names)

    def defaults(self) -> dict[str, Any]:
        """The whole configuration where nobody wrote anything."""
        draft = Draft()
        for row in self.rows:
            if row.default is not UNSET and not row.in_list:
                draft.set(split(row.theirs), row.default, Source("dialect", row.theirs))
        return draft.values


class Theirs:
    """`theirs["data.train_batch_size"]`: the value written, or else the page's default; all interpolated."""

    def __init__(self, ledger: Ledger, draft: Draft, *, here: bool = False) -> None:
        """`here` is whether it is to run on this machine, whatever placement it asks for."""
        self.ledger = ledger
        self.here = here
        faults: list[str] = []
        self.written: Mapping[str, Row] = dict(_rows_of(ledger, draft, (), faults))
        if faults:
            raise ConfigError("\n".join(faults))
        self._draft = draft
        whole = Draft(ledger.defaults())
        for dotted in self.written:
            keys = split(dotted)
            whole.set(keys, draft.get(keys), self.source(dotted))
        self._values = Draft(resolve(whole.values, draft.locator(ledger.dialect)))

    def __getitem__(self, dotted: str) -> Any:
        return self._values.get(split(dotted))

    def wrote(self, dotted: str) -> bool:
        """Whether someone wrote it, be it in a file or as an override."""
        return dotted in self.written

    def keys_of(self, row: Row) -> list[str]:
        """The written keys of a row: itself, or of one for sections that a user names, those in each."""
        if ".*." not in row.theirs:
            return [row.theirs] if self.wrote(row.theirs) else []
        return [key for key, each in self.written.items() if each is row]

    def source(self, dotted: str) -> Source:
        """Where a key was written, or whose default it has."""
        said = self._draft.source(split(dotted))
        if said is None:
            row = self.ledger.find(dotted)
            which = "page default" if row is None or row.stated else "unstated default"
            return Source("dialect", f"{dotted} ({which})")
        return said if said.kind == "override" else Source(said.kind, f"{said.where} ({dotted})")

    def fault(self, dotted: str, reason: str) -> ConfigError:
        """The error for a value of theirs that cannot be taken: where it was written, or else another that
        the reason names, or the section that it would stand in."""
        if self.wrote(dotted):
            return ConfigError(f"{self.source(dotted)}: {reason}")
        keys = split(dotted)
        where = self._draft.named(reason) or self._draft.nearest(keys) or self.ledger.dialect
        return ConfigError(f"{where}: {reason}")


def _rows_of(ledger: Ledger, draft: Draft, above: Keys, faults: list[str]) -> Iterator[tuple[str, Row]]:
    """The written keys, each with its row; `faults` gets those that the ledger does not have."""
    values = draft.get(above)
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        keys = (*above, str(name))
        dotted = ".".join(keys)
        row = ledger.find(dotted)
        inside = _has_keys(value) and ledger.is_section(dotted)
        if "." in str(name):
            faults.append(f"{draft.nearest(keys)}: {name} has a dot in it; in a file, sections are nested.")
        elif row is not None and not (value and inside):
            yield dotted, row
        elif inside:
            yield from _rows_of(ledger, draft, keys, faults)
        elif ledger.is_section(dotted):
            got = brief(value, str(name))
            faults.append(f"{draft.nearest(keys)}: {dotted} is a section, with keys of its own; got {got}.")
        else:
            where = draft.nearest(keys)
            faults.append(f"{where}: {ledger.dialect} has no key {dotted}{ledger.suggest(dotted)}")


def _has_keys(value: Any) -> bool:
    """A mapping, or a list of mappings."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(v, dict) for v in value))
