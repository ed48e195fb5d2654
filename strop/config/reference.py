"""Reference page of the run file, with every section and field, and its JSON Schema; both come from the schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from inspect import get_annotations
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined

from strop.config.explain import unit_of
from strop.config.load.config_tree import split_key
from strop.config.schema.base import Section
from strop.config.schema.run import Run, section_types
from strop.config.units import AllowedUnits, Amount

Kind = type[Section]
Path = tuple[str, ...]

_HEADER = ("field", "takes", "unit", "default", "effect")
_INTRO = """\
# The run file

A run file is a YAML file. This page lists every section and field; unknown keys are errors. A field without a
default is required. `${data.max_prompt_tokens}` is the value of another key, `${oc.env:NAME,default}` that of an
environment variable. A section with several types has the key `type`, and the name of a type is short for a
section with its defaults: `algorithm: grpo` is `algorithm: {type: grpo}`. Each type has its own fields; the
fields of another type are unknown keys. An amount is a number with a unit: `20 steps`, `5 epochs`, `10 %`.

The `run.yaml` in a run's folder has `${oc.env:NAME}` where a text came from an environment variable
and is no local path, and `***` in place of passwords, tokens and keys. Messages and
logs name the variable too. A resume compares the variable's
value with a slow hash at the end of the file. Limits of a file: 200,000 bytes, 50 nested sections, 10,000 values
with aliases replaced, integers of 64 bits.

`strop schema > strop.schema.json` writes a JSON Schema, with which an editor completes and checks a run file
whose first line is `# yaml-language-server: $schema=strop.schema.json`. `strop explain run.yaml` prints the
values of a run. Deprecated keys, values and metrics are listed in `strop/config/aliases.py`; they still load,
with a notice, and `strop convert run.yaml` rewrites a file with the current names.
"""


def page() -> str:
    """Return the page."""
    return _Writer().write()


def field_link(field: str) -> str:
    """Return a link to a field; its name as code if the run file has no such field."""
    place = _anchor_path(tuple(key for key in split_key(field) if not key.isdigit()))
    return f"[{field}](run-file.md#{'.'.join(place)})" if place else inline_code(field)


def _anchor_path(keys: Path) -> Path:
    """Return the path under which a field is described; fields of a base class are described once."""
    homes = _section_paths()
    kinds: tuple[Kind, ...] = (Run,)
    place: Path = ()
    for key in keys:
        kind = next((kind for kind in kinds if key in kind.model_fields), None)
        if kind is None:
            return ()
        shared = [base for base in _bases(kind) if base in homes and key in base.model_fields]
        below = section_types(kind.model_fields[key].annotation)
        if key != "type":
            place = homes[below[0]] if below else (*(homes[shared[0]] if shared else place), key)
        kinds = below
    return place


class _Writer:
    def __init__(self) -> None:
        self._homes = _section_paths()
        self._anchors: set[str] = set()

    def write(self) -> str:
        lines = [GENERATED_NOTICE, _INTRO, *self._fields((), Run, list(Run.model_fields))]
        lines += self._inside((), (Run,))
        return "\n".join(lines) + "\n"

    def _section(self, path: Path, field: FieldInfo) -> Iterator[str]:
        kinds = section_types(field.annotation)
        text = [_sentence(field.description or kinds[0].__doc__ or "")]
        text += ["A list; the fields of an item are:"] if "list" in type_of(field) else []
        bases = [base for base in _bases(kinds[0]) if base in self._homes]
        text += [f"It has the fields of {self._link(self._homes[base])}, and:" for base in bases]
        yield from self._heading(".".join(path), ".".join(path), _heading_mark(path))
        yield from (" ".join(text), "")
        if "type" in kinds[0].model_fields:
            yield from self._kinds(path, kinds)
        else:
            own = [name for name in kinds[0].model_fields if not any(name in b.model_fields for b in bases)]
            yield from self._fields(path, kinds[0], own)
        yield from self._inside(path, kinds)

    def _kinds(self, path: Path, kinds: tuple[Kind, ...]) -> Iterator[str]:
        name = ".".join(path)
        mark = _heading_mark(path) + "#"
        bases = list(dict.fromkeys(base for kind in kinds for base in _bases(kind)))
        numbers = {base: f"{name}:{number}" for number, base in enumerate(bases, 1)}
        rows = []
        for kind in kinds:
            label = kind.model_fields["type"].default
            fields = [f"[shared {numbers[base][-1]}](#{numbers[base]})" for base in _bases(kind)]
            fields += [f"[its own](#{name}:{label})"] if _own(kind) else []
            rows.append((inline_code(label), _sentence(kind.__doc__ or ""), ", ".join(fields)))
        yield from table(("type", "description", "fields"), rows)
        for base in bases:
            yield from self._heading(numbers[base], f"{name}, shared {numbers[base][-1]}", mark)
            yield from (_sentence(base.__doc__ or ""), "", *self._fields(path, base, _own(base)))
        for kind in kinds:
            label = kind.model_fields["type"].default
            if _own(kind):
                yield from self._heading(f"{name}:{label}", f"{name}: {label}", mark)
                yield from (_sentence(kind.__doc__ or ""), "", *self._fields(path, kind, _own(kind)))

    def _inside(self, path: Path, kinds: tuple[Kind, ...]) -> Iterator[str]:
        """Yield the sections below, each once, at its shallowest path."""
        fields = {name: field for kind in kinds for name, field in reversed(kind.model_fields.items())}
        for name, field in reversed(fields.items()):
            below = section_types(field.annotation)
            if below and self._homes[below[0]] == (*path, name):
                yield from self._section((*path, name), field)

    def _fields(self, path: Path, kind: Kind, names: list[str]) -> list[str]:
        rows = []
        for name in names:
            if name == "type":
                continue
            field, dotted = kind.model_fields[name], ".".join((*path, name))
            mark = "" if section_types(field.annotation) else self._anchor(dotted)
            effect = _sentence(field.description or "")
            rows.append(
                (
                    mark + inline_code(name),
                    self._takes(field),
                    unit_of_field(name, field),
                    inline_code(default_of(field)),
                    effect,
                )
            )
        return table(_HEADER, rows)

    def _takes(self, field: FieldInfo) -> str:
        below = section_types(field.annotation)
        words = type_of(field)
        return words.replace("section", self._link(self._homes[below[0]])) if below else words

    def _heading(self, anchor: str, title: str, level: str) -> tuple[str, ...]:
        return ("", self._anchor(anchor), "", f"{level} {title}", "")

    def _link(self, path: Path) -> str:
        name = ".".join(path)
        return f"[{name}](#{name})"

    def _anchor(self, name: str) -> str:
        """Return an anchor at the first use of a name, and an empty text after that."""
        if name in self._anchors:
            return ""
        self._anchors.add(name)
        return anchor_tag(name)


@cache
def _section_paths() -> dict[Kind, Path]:
    """Return the path under which each section is described, its shallowest one."""
    homes: dict[Kind, Path] = {}
    waiting: list[tuple[Kind, Path]] = [(Run, ())]
    for kind, path in waiting:
        for name, field in kind.model_fields.items():
            for inside in section_types(field.annotation):
                if inside not in homes:
                    homes[inside] = (*path, name)
                    waiting.append((inside, (*path, name)))
    return homes


def _bases(kind: Kind) -> list[Kind]:
    """Return the base sections that declare fields, the most general first."""
    return [base for base in kind.__mro__[:0:-1] if issubclass(base, Section) and _own(base)]


def _own(kind: Kind) -> list[str]:
    """Return the fields that a class declares itself, except `type`."""
    declared = get_annotations(kind)
    return [name for name in kind.model_fields if name in declared and name != "type"]


def _heading_mark(path: Path) -> str:
    return "##" if len(path) == 1 else "###"


def _sentence(text: str) -> str:
    return " ".join(text.split())


INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}
"""Schema of an interpolation such as `${data.max_prompt_tokens}`, which is allowed for any value."""


def json_schema() -> dict[str, Any]:
    """Return the schema in draft 7, which every editor supports. Descriptions are the fields' docstrings.

    It has keys, types, bounds and shorthands. `strop check` also checks sections against each other.
    """
    schema = Run.model_json_schema(schema_generator=_Generator)
    definitions = {name: _refusing_unknown_keys(section) for name, section in schema.pop("$defs").items()}
    definitions["interpolation"] = INTERPOLATION
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A run file of Strop",
        **_refusing_unknown_keys(schema),
        "$defs": definitions,
    }


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, Section):
            return dft.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        return str(dft) if isinstance(dft, Amount) else super().encode_default(dft)


def _refusing_unknown_keys(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Convert a section to draft 7, with an interpolation as an alternative for every value."""
    properties = {name: _field(field) for name, field in schema.get("properties", {}).items()}
    rest = {key: value for key, value in schema.items() if key not in ("properties", "title")}
    rest["description"] = " ".join(rest.get("description", "").split())
    return {**rest, "properties": properties}


def _field(field: JsonSchemaValue) -> JsonSchemaValue:
    annotations: JsonSchemaValue = {key: field[key] for key in ("description", "default") if key in field}
    if "description" in annotations:
        annotations["description"] = " ".join(annotations["description"].split())
    if isinstance(annotations.get("default"), dict):
        del annotations["default"]  # The fields of the section have their own defaults.
    value = _value({key: item for key, item in field.items() if key not in annotations})
    if "const" in value:
        return {**annotations, **value}
    alternatives = value["anyOf"] if set(value) == {"anyOf"} else [value]
    return {**annotations, "anyOf": [*alternatives, {"$ref": "#/$defs/interpolation"}]}


def _value(value: JsonSchemaValue) -> JsonSchemaValue:
    """Convert a positional list, whose items have one type, to a draft 7 list of fixed length."""
    if "prefixItems" in value:
        first, *others = value["prefixItems"]
        assert all(other == first for other in others)
        value = {**{key: item for key, item in value.items() if key != "prefixItems"}, "items": first}
    return {
        key: [_value(item) for item in found] if key == "anyOf" else found for key, found in value.items()
    }


def schema_text() -> str:
    """The JSON Schema with one property per line."""
    return "\n".join(_lines(json_schema())) + "\n"


def _lines(value: dict[str, Any], above: str = "", indent: str = "") -> Iterator[str]:
    yield "{"
    last = len(value) - 1
    for number, (key, item) in enumerate(value.items()):
        comma = "," if number < last else ""
        name = f"{indent} {json.dumps(key)}: "
        if isinstance(item, dict) and item and above != "properties":
            first, *more = _lines(item, key, indent + " ")
            yield name + first
            yield from more[:-1]
            yield more[-1] + comma
        else:
            yield name + json.dumps(item, ensure_ascii=False) + comma
    yield indent + "}"


_PLAIN = {int: "integer", float: "number", bool: "true or false", str: "string", Any: "anything"}
_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def type_of(field: FieldInfo) -> str:
    """Return the type with its bounds, such as `integer > 0, or null`."""
    extra = field.json_schema_extra
    least = extra.get("minimum") if isinstance(extra, dict) else None
    words = _type(field.annotation, () if least is not None else field.metadata)
    return f"{words} ≥ {least}" if least is not None else words


def unit_of_field(name: str, field: FieldInfo) -> str:
    """Return the unit, such as `tokens`; for an amount, the units that it accepts."""
    units = _units(field.annotation, field.metadata)
    if units is not None:
        return _or([*units.units, *(["`never`"] if units.never else [])])
    return unit_of(name, field.default)


def default_of(field: FieldInfo) -> str:
    """Return the default as it would be written; empty for a required field."""
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Section):
        return _section(value)
    if value is None and _units(field.annotation, field.metadata):
        units = _units(field.annotation, field.metadata)
        return "never" if units is not None and units.never else "null"
    return format_yaml(value)


def format_yaml(value: Any) -> str:
    """Format a value as YAML on one line."""
    if value is None or value is PydanticUndefined:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_yaml, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    first, *more = str(value).splitlines() or [""]
    return f"{first} ..." if more else first


def _section(value: Section) -> str:
    """Return the section's type, and the values that differ from its defaults."""
    differing = value.model_dump(mode="json", exclude_defaults=True)
    kind = getattr(value, "type", None)
    if kind is None:
        return format_yaml(differing) if differing else ""
    return format_yaml({"type": kind, **differing}) if differing else kind


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin = get_origin(annotation)
    if _units(annotation, metadata):
        nullable = type(None) in get_args(annotation) and not _never(annotation, metadata)
        return "amount" + (", or null" if nullable else "")
    if origin is Annotated:
        inside, *more = get_args(annotation)
        return _type(inside, [part for item in more for part in getattr(item, "metadata", [item])])
    if origin in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        words = _or(list(dict.fromkeys(_type(part, metadata) for part in parts)))
        return f"{words}, or null" if type(None) in get_args(annotation) else words
    if origin is Literal:
        return _or([f"`{format_yaml(value)}`" for value in get_args(annotation)])
    if origin is tuple:
        return _list(get_args(annotation))
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    return f"{_PLAIN[annotation]} {' and '.join(_bounds(metadata))}".rstrip()


def _list(items: tuple[Any, ...]) -> str:
    each = _type(items[0])
    return f"list: {each}" if items[-1] is Ellipsis else f"list of {len(items)}: {each}"


def _bounds(metadata: Iterable[Any]) -> list[str]:
    return [
        f"{sign} {getattr(bound, name):g}"
        for bound in metadata
        for name, sign in _BOUNDS.items()
        if getattr(bound, name, None) is not None
    ]


def _never(annotation: Any, metadata: Iterable[Any]) -> bool:
    units = _units(annotation, metadata)
    return units is not None and units.never


def _units(annotation: Any, metadata: Iterable[Any]) -> AllowedUnits | None:
    """Return the units of an amount, which may be one of several alternatives."""
    found = [item for item in metadata if isinstance(item, AllowedUnits)]
    for part in (annotation, *get_args(annotation)):
        if get_origin(part) is Annotated and get_args(part)[0] in (Amount, Amount | None):
            found += [item for item in get_args(part)[1:] if isinstance(item, AllowedUnits)]
    return found[0] if found else None


def _or(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


GENERATED_NOTICE = "<!-- Generated from the code by `make docs`; do not edit. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [_row(header), _row(["---"] * len(header))]
    return [*lines, *(_row([cell.replace("|", "\\|").replace("\n", " ") for cell in row]) for row in rows)]


def inline_code(text: str) -> str:
    """Format text as code; an empty text stays empty."""
    return f"`{text}`" if text else ""


def anchor_tag(name: str) -> str:
    """Return the anchor of a link to `#name`."""
    return f'<a id="{name}"></a>'


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
