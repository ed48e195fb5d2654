"""Traversal of the run file's schema: section classes, fields, dotted keys, and the values of a loaded
run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from strop.config.schema.base import Section
from strop.config.schema.run import Run


def section_types(annotation: Any) -> tuple[type[Section], ...]:
    """Return the section classes in a field's type, through `Annotated`, unions and tuples."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(found for part in get_args(annotation) for found in section_types(part))


def section_types_at(keys: tuple[str, ...], values: Any) -> tuple[type[Section], ...]:
    """Return the possible classes of the section at `keys` for these values; none if it is not a section."""
    kinds: tuple[type[Section], ...] = (Run,)
    for key in keys:
        if key.isdigit() or isinstance(values, list):  # an item has the type of its list
            is_item = isinstance(values, list) and key.isdigit() and int(key) < len(values)
            values = values[int(key)] if is_item else None
        else:
            fields = [kind.model_fields[key] for kind in kinds if key in kind.model_fields]
            kinds = tuple(found for field in fields for found in section_types(field.annotation))
            values = values.get(key) if isinstance(values, dict) else None
        if isinstance(values, dict) and "type" in values and len(kinds) > 1:
            kinds = tuple(
                kind
                for kind in kinds
                if "type" not in kind.model_fields or kind.model_fields["type"].default == values["type"]
            )
    return kinds


def field_at(keys: tuple[str, ...], values: Any) -> FieldInfo | None:
    """Return the field at `keys`; None if the schema has none."""
    for kind in section_types_at(keys[:-1], values):
        if keys[-1] in kind.model_fields:
            return kind.model_fields[keys[-1]]
    return None


@cache
def all_keys(kind: type[Section] = Run) -> tuple[str, ...]:
    """Return every dotted key of the run file, for all types of all unions; items of lists have no number."""
    return tuple(dict.fromkeys(_all_keys(kind, ())))


def _all_keys(kind: type[Section], above: tuple[str, ...]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield ".".join((*above, name))
        for inside in section_types(field.annotation):
            yield from _all_keys(inside, (*above, name))


@dataclass(frozen=True, slots=True)
class Leaf:
    """Value of a loaded run."""

    keys: tuple[str, ...]
    """Path to the value."""
    value: Any
    effect: str
    """Docstring of the field; for a `type`, the first line of the class's docstring."""


def leaves(section: Section, above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every value of a loaded section, in the run file's order."""
    for name, field in type(section).model_fields.items():
        value, keys = getattr(section, name), (*above, name)
        if isinstance(value, Section):
            yield from leaves(value, keys)
        elif isinstance(value, tuple) and value and all(isinstance(item, Section) for item in value):
            for index, item in enumerate(value):
                yield from leaves(item, (*keys, str(index)))
        else:
            yield Leaf(keys, value, field.description or (type(section).__doc__ or "").split("\n")[0])
