"""One row of a dialect's ledger: a key of theirs, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from strop.config.dialects.theirs import Theirs
    from strop.config.schema import Run

Fate = Literal["mapped", "accepted without effect", "refused", "placement"]
"""There is no fifth: a key is honoured, has no meaning here, cannot be had, or says where to run."""
Read = Callable[["Theirs"], Mapping[str, Any]]
"""Theirs -> ours, by dotted field. Keys that mean something only together share one read."""
Write = Callable[["Run"], Mapping[str, Any]]
"""Ours -> theirs, by dotted key: all keys that the read beside it looks at, where they can say it."""
Can = Callable[["Theirs", Any], bool]
"""Whether a value that someone wrote can be had, for keys that are refused or placement."""
Off = Callable[["Theirs"], str | None]
"""Why a key means nothing beside the others' values: the switch it stands behind; None when it counts."""


class Unset(Enum):
    """The default of a key that has none."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be written for a key."""

    words: str
    fits: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


@dataclass(frozen=True, slots=True)
class Pair:
    """How keys that mean something only together become ours, and how ours become them again."""

    read: Read
    write: Write

    def __call__(self, theirs: Theirs) -> Mapping[str, Any]:
        """Theirs -> ours."""
        return self.read(theirs)


def written_by(write: Write) -> Callable[[Read], Pair]:
    """Put beside a read what writes its keys."""
    return lambda read: Pair(read, write)


ANY = Kind("anything", lambda _: True)
YES_NO = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", _is_whole)
NUMBER = Kind("a number", _is_number)
NUMBERS = Kind("a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value)))
TEXT = Kind("text", lambda value: isinstance(value, str))
TEXTS = Kind("text, or a list of texts", lambda value: isinstance(value, str) or _is_texts(value))
LISTED = Kind("a list of mappings", lambda value: value in (None, [], {}))
"""For a list whose items have rows of their own: only an empty one comes to its own row."""
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict))


def one_of(*values: Any) -> Kind:
    """One of a few values, and nothing else."""
    return Kind(" or ".join(map(str, values)), lambda value: value in values)


def or_null(kind: Kind) -> Kind:
    """The same, or null."""
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.fits(value))


def _kind_of(default: Any) -> Kind:
    for type_, kind in ((bool, YES_NO), (int, WHOLE), (float, NUMBER), (list, TEXTS), (dict, MAPPING)):
        if isinstance(default, type_):
            return kind
    return TEXT if isinstance(default, str) and "${" not in default else ANY


@dataclass(frozen=True, slots=True)
class Row:
    """A key of theirs: what it defaults to, what becomes of it, and which fields of ours it sets."""

    theirs: str
    """Dotted. `section.*` stands for every key below it that has no row of its own, and a `*` further in
    for a name that the user chooses."""
    default: Any
    fate: Fate
    ours: tuple[str, ...] = ()
    """The fields it decides, alone or with others."""
    read: Read | None = None
    """How it is turned into ours; a mapped key without one is taken as it is."""
    note: str = ""
    """For a refused key, what to do instead; for placement, what is done instead; else what to know."""
    kind: Kind = ANY
    can: Can | None = None
    off: Off | None = None
    stated: bool = True
    """Whether the page states the default; else it is upstream's at the page's time."""
    on_page: bool = True
    deprecated: str = ""
    """What to write instead, said where someone wrote the key."""
    warn: Off | None = None
    """What to know of the value that someone wrote."""

    @property
    def write(self) -> Write | None:
        """How ours are turned into it, and into the keys that share its read."""
        return self.read.write if isinstance(self.read, Pair) else None

    @property
    def in_list(self) -> bool:
        """Whether it is a key of a list's items, or of sections that a user names: they are there only
        where someone wrote them."""
        return ".0." in self.theirs or ".*." in self.theirs

    def as_entry(self) -> dict[str, Any]:
        """The row as `strop keys` prints it."""
        default = None if self.default is UNSET else self.default
        marks = ("" if self.stated else "default unstated", self.deprecated and "deprecated", self.note)
        return {
            "key": self.theirs,
            "fate": self.fate,
            "field": ", ".join(self.ours),
            "default": default,
            "note": "; ".join(mark for mark in marks if mark),
        }


def mapped(
    theirs: str,
    default: Any,
    *ours: str,
    read: Read | None = None,
    kind: Kind | None = None,
    off: Off | None = None,
    note: str = "",
    deprecated: str = "",
    warn: Off | None = None,
) -> Row:
    """A key that becomes fields of ours."""
    kind = kind or _kind_of(default)
    return Row(theirs, default, "mapped", ours, read, note, kind, off=off, deprecated=deprecated, warn=warn)


def refused(
    theirs: str, default: Any, note: str, *, can: Can | None = None, kind: Kind = ANY, off: Off | None = None
) -> Row:
    """A key that is not honoured yet: only its default, or what `can` allows, may be written."""
    return Row(theirs, default, "refused", note=note, kind=kind, can=can or only(default), off=off)


def placement(
    theirs: str,
    default: Any,
    instead: str,
    *,
    can: Can,
    kind: Kind | None = None,
    off: Off | None = None,
    ours: tuple[str, ...] = (),
    read: Read | None = None,
) -> Row:
    """A key that says where or how fast to run; what `can` does not allow is set aside by `--here`."""
    return Row(theirs, default, "placement", ours, read, instead, kind or _kind_of(default), can, off)


def no_effect(theirs: str, default: Any, why: str, *, kind: Kind | None = None) -> Row:
    """A key that truly has no meaning here."""
    return Row(theirs, default, "accepted without effect", note=why, kind=kind or _kind_of(default))


def unstated(*rows: Row) -> tuple[Row, ...]:
    """Keys of the page whose defaults it does not state: they are upstream's."""
    return tuple(replace(row, stated=False) for row in rows)


def beyond_the_page(*rows: Row) -> tuple[Row, ...]:
    """Keys that users write although the page does not have them; their defaults are upstream's."""
    return tuple(replace(row, stated=False, on_page=False) for row in rows)


def only(*values: Any) -> Can:
    """Can be had where it is one of these values."""
    return lambda theirs, value: value in values


def same_as(key: str) -> Can:
    """Can be had where it says what another key says."""
    return lambda theirs, value: value == theirs[key]


def always(theirs: Theirs, value: Any) -> bool:
    """Whatever the value, what is done here is the same thing."""
    return True


def never(theirs: Theirs, value: Any) -> bool:
    """Cannot be had here, whatever the value."""
    return False


def either(*switches: Off) -> Off:
    """Off where any of these is."""
    return lambda theirs: next(filter(None, (off(theirs) for off in switches)), None)


def also_off(row: Row, off: Off) -> Row:
    """The same row, which means nothing either where `off` says so."""
    return replace(row, off=either(off, row.off) if row.off else off)


def unless(key: str, *wanted: Any) -> Off:
    """Counts only where another key has one of these values."""

    def off(theirs: Theirs) -> str | None:
        value = theirs[key]
        return None if value in wanted else f"{key} is {value}"

    return off
