"""Texts of a field for the reference: its type with bounds, its unit, and its default."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from strop.config.explain.values import unit_of
from strop.config.schema.base import Section
from strop.config.units import AllowedUnits, Amount

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
