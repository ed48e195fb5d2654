"""Rows of a dialect's ledger: a foreign key, its default, the values that it accepts, and how Strop treats it; and
conversions of one value, for rows of one key and one field.

A key that has a meaning only together with others has a `KeyConverter` instead. Notes and rows of placement keys that
several tools share say what Strop does instead of the requested placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import isfinite
from typing import Any, Literal, Protocol

from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key, to_plain
from strop.config.schema import Run
from strop.errors import ConfigError
from strop.printable import closest
from strop.workers.json_text import parse_json


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values that a key accepts."""

    description: str
    """Noun phrase that completes "the key must be ..." in an error."""
    accepts: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number: with NaN or infinity no key means anything."""
    return _is_integer(value) or (isinstance(value, float) and isfinite(value))


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _from_json(text: str) -> Any:
    """The value that a text is in JSON; None for other texts."""
    try:
        return parse_json(text)
    except ValueError:
        return None


ANY = ValueType("anything", lambda _: True)
BOOLEAN = ValueType("true or false", lambda value: isinstance(value, bool))
INTEGER = ValueType("an integer", _is_integer)
NUMBER = ValueType("a number", _is_number)
NUMBER_LIST = ValueType(
    "a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value))
)
BETAS = ValueType(
    "a list of two numbers",
    lambda value: NUMBER_LIST.accepts(number_list(value)) and len(number_list(value)) == 2,
)
"""Type of AdamW's betas, a list that may be quoted, so that Hydra passes it as text."""
STRING = ValueType("a string", lambda value: isinstance(value, str))
STRING_OR_LIST = ValueType(
    "a string or a list of strings", lambda value: isinstance(value, str) or _is_string_list(value)
)
STRING_LIST = ValueType("a list of strings", lambda value: value == [] or _is_string_list(value))
MAPPING_LIST = ValueType("a list of mappings", lambda value: value in (None, [], {}))
"""Type of a list whose items have rows of their own. The list's own row sees only an empty list."""
MAPPING = ValueType("a mapping", lambda value: isinstance(value, dict))


def number_list(value: Any) -> Any:
    """The numbers of BETAS."""
    return _from_json(value) if isinstance(value, str) else value


_WORDS = {
    **dict.fromkeys(("yes", "y", "on", "true", "1"), True),
    **dict.fromkeys(("no", "n", "off", "false", "0"), False),
}


def typed_value(value: Any, value_type: ValueType) -> Any:
    """The value that OmegaConf converts `value` to where a key has this type; `value` itself where it accepts it, and
    where no conversion gives an accepted value."""
    if value_type.accepts(value) or not isinstance(value, str | int):
        return value
    candidates: list[Any] = [_WORDS[str(value).lower()]] if str(value).lower() in _WORDS else []
    if isinstance(value, str):
        for convert in (int, float):
            try:
                candidates.append(convert(value))
            except ValueError:
                continue
        candidates += [value.lower(), None] if value.lower() == "null" else [value.lower()]
    return next((each for each in candidates if value_type.accepts(each)), value)


def one_of(*values: Any) -> ValueType:
    """The type that accepts only the given values."""
    return ValueType(" or ".join(map(str, values)), lambda value: value in values)


def nullable(value_type: ValueType) -> ValueType:
    """The same type with null accepted too."""
    return replace(
        value_type,
        description=f"{value_type.description}, or null",
        accepts=lambda value: value is None or value_type.accepts(value),
    )


def value_type_of(default: Any) -> ValueType:
    """The type that a key's default implies; ANY where the default implies none."""
    for python_type, value_type in (
        (bool, BOOLEAN),
        (int, INTEGER),
        (float, NUMBER),
        (list, STRING_OR_LIST),
        (dict, MAPPING),
    ):
        if isinstance(default, python_type):
            return value_type
    return STRING if isinstance(default, str) and "${" not in default else ANY


class ForeignValues(Protocol):
    """Values of a foreign configuration by dotted key, as the converters read them."""

    @property
    def here(self) -> bool:
        """Whether the run ignores its requested placement and uses this machine (`--here`)."""

    @property
    def written(self) -> Mapping[str, KeyMapping]:
        """The keys that a file or an override sets, each with its row."""

    def has_row(self, dotted: str) -> bool:
        """Whether the dialect's ledger has a row for the key."""

    def __getitem__(self, dotted: str) -> Any:
        """The value that is set for the key, or the documented default, with interpolations resolved."""

    def is_set(self, dotted: str) -> bool:
        """Whether a file or an override sets the key."""

    def error_for(self, dotted: str, reason: str) -> ConfigError:
        """The error that says where the key is set and why its value is not accepted."""


Disposition = Literal["mapped", "accepted without effect", "refused", "placement"]
"""Treatment of a key in Strop: it decides fields of the run, it has no meaning in Strop, Strop does not
support it, or it decides no field and only where and how fast the run executes. There is no fifth kind of key."""
ReadFunction = Callable[[ForeignValues], Mapping[str, Any]]
"""Converter from foreign values to values by dotted run-file field. Keys that have a meaning only together
share one converter."""
WriteFunction = Callable[[Run], Mapping[str, Any]]
"""Converter from a run to values by dotted foreign key: all keys that the matching ReadFunction reads, as far
as they can express the run."""
SupportCheck = Callable[[ForeignValues, Any], bool]
"""Whether Strop supports a value (second argument) that is set for a refused key or a placement key."""
InactiveCheck = Callable[[ForeignValues], str | None]
"""The reason why a key has no effect given the other values, such as a switch that is off; None where the key
has an effect."""


class Unset(Enum):
    """Type of the marker for a key that has no default."""

    UNSET = "unset"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True)
class KeyConverter:
    """A pair of functions that convert keys with a common meaning to run-file fields and back."""

    read: ReadFunction
    write: WriteFunction
    off: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Values of keys with which the others decide nothing, such as a switch's, so that `read` is not called; UNSET
    stands for a key that is not set."""

    def __call__(self, foreign: ForeignValues) -> Mapping[str, Any]:
        """Foreign values to run-file values."""
        is_off = self.off and all(
            not foreign.is_set(key) if value is UNSET else foreign[key] == value
            for key, value in self.off.items()
        )
        return {} if is_off else self.read(foreign)


@dataclass(frozen=True, slots=True)
class ValueConversion:
    """Conversion of one key's value into that of one field, and back; `conversions` has the common ones."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    """Returns UNSET for a value that the key cannot express; the key is then not written."""

    def between(self, key: str, field: str) -> KeyConverter:
        """The converter of a row. A field of a section that the run lacks is not written."""

        def read(foreign: ForeignValues) -> Mapping[str, Any]:
            return {field: self.read(foreign[key])}

        def write(run: Run) -> Mapping[str, Any]:
            value: Any = run
            for name in field.split("."):
                value = getattr(value, name, UNSET)
            written = UNSET if value is UNSET else self.write(value)
            return {} if written is UNSET else {key: written}

        return KeyConverter(read, write)


def written_by(
    write: WriteFunction, *, off: Mapping[str, Any] | None = None
) -> Callable[[ReadFunction], KeyConverter]:
    """Decorator that pairs a read function with the function that writes the same keys."""
    return lambda read: KeyConverter(read, write, off or {})


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """One row of a ledger: a foreign key, its default, its disposition and the run-file fields it decides."""

    key: str
    """Dotted foreign key. `section.*` covers every key of the section that has no row of its own; a `*`
    between dots covers a name that the user chooses."""
    default: Any
    disposition: Disposition
    fields: tuple[str, ...] = ()
    """Dotted run-file fields that the key decides, alone or together with other keys."""
    read: ReadFunction | None = None
    """Converter to run-file values; None copies the value of a mapped key unchanged."""
    note: str = ""
    """Explanation shown to users. Refused keys: what to write instead. Placement keys: what Strop does
    instead. Other keys: what a user should know."""
    value_type: ValueType = ANY
    supported: SupportCheck | None = None
    """Check of a refused key's value, and of a value that needs hardware or an engine; None accepts every value."""
    inactive: InactiveCheck | None = None
    is_placement: bool = False
    """Whether the key decides where or how fast the run executes, so that `--here` replaces a value that `supported`
    rejects."""
    default_stated: bool = True
    """Whether the seed page states the default; otherwise the default is the foreign tool's own at the time
    of the page."""
    on_page: bool = True
    """Whether the seed page lists the key."""
    deprecated: str = ""
    """Notice that names the replacement, shown where the key is set; empty for a key in use."""
    warn: InactiveCheck | None = None
    """Check that returns a notice about the value that is set, or None."""
    alias_of: str = ""
    """Key of which this one is another name, in another version of the foreign tool; empty for none."""
    since: str = ""
    """First version of the foreign tool that has the key; empty if the seed page's version has it."""
    until: str = ""
    """Last version of the foreign tool that has the key; empty if the latest known version has it."""
    null_is_unset: bool = False
    """Whether null, which the foreign tool's own files have here, leaves the key unset."""

    @property
    def write(self) -> WriteFunction | None:
        """Converter from a run to this key and to the keys that share its read function."""
        return self.read.write if isinstance(self.read, KeyConverter) else None

    @property
    def is_repeated(self) -> bool:
        """Whether the key belongs to list items or to sections that the user names; it then exists only
        where a user writes such an item or section."""
        return ".0." in self.key or ".*." in self.key

    def as_entry(self) -> dict[str, Any]:
        """The row as `strop keys` prints it."""
        default = None if self.default is UNSET else self.default
        marks = (
            "" if self.default_stated else "default unstated",
            self.since and f"since {self.since}",
            self.until and f"until {self.until}",
            self.deprecated and "deprecated",
            self.alias_of and f"another name of {self.alias_of}",
            self.note,
        )
        return {
            "key": self.key,
            "disposition": self.disposition,
            "field": ", ".join(self.fields),
            "default": default,
            "since": self.since,
            "until": self.until,
            "note": "; ".join(mark for mark in marks if mark),
        }


def mapped(
    key: str,
    default: Any,
    *fields: str,
    read: ReadFunction | None = None,
    converts: ValueConversion | None = None,
    value_type: ValueType | None = None,
    inactive: InactiveCheck | None = None,
    note: str = "",
    deprecated: str = "",
    warn: InactiveCheck | None = None,
) -> KeyMapping:
    """A key that decides run-file fields: unchanged, as `read` has it with other keys, or, for one field, by the
    conversion of its value."""
    if converts is not None:
        (field,) = fields
        read = converts.between(key, field)
    return KeyMapping(
        key,
        default,
        "mapped",
        fields,
        read,
        note,
        value_type or value_type_of(default),
        inactive=inactive,
        deprecated=deprecated,
        warn=warn,
    )


def refused(
    key: str,
    default: Any,
    note: str,
    *,
    supported: SupportCheck | None = None,
    value_type: ValueType = ANY,
    inactive: InactiveCheck | None = None,
) -> KeyMapping:
    """A key that Strop does not support: only its default, or a value that `supported` accepts, may be
    set."""
    return KeyMapping(
        key,
        default,
        "refused",
        note=note,
        value_type=value_type,
        supported=supported or only(default),
        inactive=inactive,
    )


def placement(
    key: str,
    default: Any,
    instead: str,
    *,
    supported: SupportCheck | None = None,
    value_type: ValueType | None = None,
    inactive: InactiveCheck | None = None,
    fields: tuple[str, ...] = (),
    read: ReadFunction | None = None,
) -> KeyMapping:
    """A key that decides where or how fast a run executes; `--here` overrides values that `supported`
    rejects, none by default. With `fields` it is a mapped key."""
    return KeyMapping(
        key,
        default,
        "mapped" if fields else "placement",
        fields,
        read,
        instead,
        value_type or value_type_of(default),
        supported or always,
        inactive,
        is_placement=True,
    )


def no_effect(key: str, default: Any, why: str, *, value_type: ValueType | None = None) -> KeyMapping:
    """A key that has no meaning in Strop."""
    return KeyMapping(
        key, default, "accepted without effect", note=why, value_type=value_type or value_type_of(default)
    )


def no_effects(
    section: str, names: Iterable[str], why: str, *, default: Any = UNSET, value_type: ValueType = ANY
) -> tuple[KeyMapping, ...]:
    """Keys of one section that have no meaning in Strop for one reason."""
    return tuple(no_effect(f"{section}.{name}", default, why, value_type=value_type) for name in names)


def unstated_defaults(*rows: KeyMapping) -> tuple[KeyMapping, ...]:
    """Rows for keys whose defaults the seed page does not state; the defaults are the foreign tool's own."""
    return tuple(replace(row, default_stated=False) for row in rows)


def not_on_page(*rows: KeyMapping) -> tuple[KeyMapping, ...]:
    """Rows for keys in common use that the seed page does not list; the defaults are the foreign tool's
    own."""
    return tuple(replace(row, default_stated=False, on_page=False) for row in rows)


def versions(*rows: KeyMapping, since: str = "", until: str = "") -> tuple[KeyMapping, ...]:
    """Rows for keys that not all versions of the foreign tool have; the defaults are the foreign tool's own."""
    return not_on_page(*(replace(row, since=since, until=until) for row in rows))


def placement_section(section: str, instead: str, *, inactive: InactiveCheck | None = None) -> KeyMapping:
    """All keys of a section that have no row of their own; they decide only where or how fast a run
    executes."""
    return placement(f"{section}.*", UNSET, instead, supported=never, inactive=inactive)


def aliases(rows: Iterable[KeyMapping], names: Mapping[str, str]) -> tuple[KeyMapping, ...]:
    """Rows of other names of keys; `names` has the key of each name."""
    known = {row.key: row for row in rows}
    return tuple(
        replace(known[key], key=name, default=UNSET, default_stated=False, on_page=False, alias_of=key)
        for name, key in names.items()
    )


def added_since(rows: Iterable[KeyMapping], version: str) -> tuple[KeyMapping, ...]:
    """The rows of keys that a version of the foreign tool, or a later one, added. Raises ConfigError for a
    version that is not a number."""
    first = _version(version)
    return tuple(row for row in rows if row.since and _version(row.since) >= first)


def _version(text: str) -> tuple[int, ...]:
    parts = text.removeprefix("v").split(".")
    if not all(part.isdecimal() and len(part) < 6 for part in parts):
        raise ConfigError(f"The version {text!r} is not a number; write one such as 0.9.")
    return tuple(map(int, parts))


def unset_by_null(rows: Iterable[KeyMapping], keys: Iterable[str]) -> tuple[KeyMapping, ...]:
    """The rows, with those of `keys` as if they were not written where they are null."""
    names = frozenset(keys)
    return tuple(replace(row, null_is_unset=True) if row.key in names else row for row in rows)


def only(*values: Any) -> SupportCheck:
    """Check that supports only the given values."""
    return lambda foreign, value: value in values


def same_as(key: str) -> SupportCheck:
    """Check that supports only the value of another key."""
    return lambda foreign, value: value == foreign[key]


def always(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports every value, because Strop behaves the same for all of them."""
    return True


def never(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports no value."""
    return False


def falsy(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null, false, 0 and what is empty."""
    return not value


def empty(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports null and what is empty, also a section of nulls."""
    if isinstance(value, dict):
        return all(empty(foreign, inner) for inner in value.values())
    return value in (None, [])


def in_effect(foreign: ForeignValues) -> str | None:
    """The `warn` of a placement row whose values are honored where they are supported: no notice."""
    return None


def any_inactive(*checks: InactiveCheck) -> InactiveCheck:
    """Check that finds a key inactive where any of the given checks does; the first reason counts."""
    return lambda foreign: next(filter(None, (inactive(foreign) for inactive in checks)), None)


def also_inactive(row: KeyMapping, inactive: InactiveCheck) -> KeyMapping:
    """The same row with one more inactive check, which runs before the row's own."""
    return replace(row, inactive=any_inactive(inactive, row.inactive) if row.inactive else inactive)


def unless(key: str, *wanted: Any) -> InactiveCheck:
    """Check that finds a key inactive unless another key has one of the given values."""

    def inactive(foreign: ForeignValues) -> str | None:
        value = foreign[key]
        return None if value in wanted else f"{key} is {value}"

    return inactive


def unless_null(key: str) -> InactiveCheck:
    """Check that finds a key inactive where another key is null."""
    return lambda foreign: f"{key} is null" if foreign[key] is None else None


def named(names: Mapping[Any, Any]) -> ValueConversion:
    """Values by other names: the run's value for each of the key's; others are the same on both sides. Where several
    names have one value, the first is written."""
    back: dict[Any, Any] = {}
    for name, own in names.items():
        back.setdefault(own, name)
    return ValueConversion(lambda value: names.get(value, value), lambda value: back.get(value, value))


def scaled(factor: float) -> ValueConversion:
    """A number in another unit: the field is the key's value times `factor`; null stays null."""
    return ValueConversion(
        lambda value: None if value is None else value * factor,
        lambda value: None if value is None else value / factor,
    )


def null_means(meant: Any, *, is_written: bool = True) -> ValueConversion:
    """Null, or an empty value, means `meant`, which is written as it is, or as null unless `is_written`."""
    return ValueConversion(
        lambda value: value or meant, lambda value: None if value == meant and not is_written else value
    )


SWITCH = ValueConversion(lambda value: value, bool)
"""A switch of a field that has more values; null and false are written as false, the rest as true."""
UNCHANGED = ValueConversion(lambda value: value, lambda value: value)
"""The value itself, for a row whose other fields another row's converter sets."""
NEGATED = ValueConversion(lambda value: not value, lambda value: not value)
"""A switch with the opposite meaning."""
ZERO_IS_NULL = ValueConversion(lambda value: value or None, lambda value: value or 0)
"""A number that is 0 where the field is null."""
NAMES = ValueConversion(
    lambda value: [value] if isinstance(value, str) else value or [],
    lambda names: names[0] if len(names) == 1 else list(names) or None,
)
"""One name or a list of names, where the field is a list; null for none."""
NUMBERS = ValueConversion(number_list, list)
"""A list of numbers, or its text."""


ONE_MACHINE = "a single process on this machine"
ONE_GPU = f"{ONE_MACHINE}'s GPU, or on its CPU if there is no GPU"
NO_SHARDS = "a single process holds the whole model"
ONE_TRAINER = "a single process trains"
NO_DEEPSPEED = "a single process trains without DeepSpeed"
NATIVE_SAMPLER = "the native sampler does not use it"
TRAINER_MICRO_BATCHES = "log-probs are computed in the trainer's micro-batches"
ALWAYS_PACKED = "sequences are always packed without padding, which does not change results"
OWN_KERNELS = "Strop's own kernels are used"
NO_QUANTIZED_TRAINING = (
    "quantization-aware training rounds the weights to few bits in each forward pass; Strop trains the weights as they "
    "are; leave it False"
)
NO_RAY = "a single process runs, without Ray"


_REPLACED = (
    "Strop's own functions take the place of these kernels, with the same results: RMS norm, gated MLP, and a head "
    "that stores no logits"
)


def fused_kernels(
    key: str, *, value_type: ValueType | None = None, inactive: InactiveCheck | None = None
) -> KeyMapping:
    """A switch for fused kernels of other libraries, such as Liger's, off by default; a notice says what computes
    instead."""

    def notice(foreign: ForeignValues) -> str | None:
        return _REPLACED if foreign[key] else None

    row = placement(key, False, _REPLACED, value_type=value_type, inactive=inactive)
    return replace(row, warn=notice)


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
            for name in dict.fromkeys(row.fields):
                found.setdefault(name, []).append(row)
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
