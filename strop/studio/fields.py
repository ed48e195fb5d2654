"""Fields of the expert's form for a run file, from its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from strop.config.load.config_tree import KeyPath
from strop.config.reference import default_of, format_yaml, type_of, unit_of_field
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.config.schema.reward import expand_reward
from strop.config.schema.run import section_types


@dataclass(frozen=True, slots=True)
class FormField:
    """One value of a form."""

    key: str
    """Dotted key."""
    label: str
    value: str
    """Value as YAML on one line; empty if it is not written."""
    default: str
    help: str
    kind: str = ""
    """Accepted values in words, with their unit."""
    choices: tuple[str, ...] = ()
    """Accepted values of a field with few of them; empty for any text."""
    note: str = ""
    """Treatment of the key by Strop, for a foreign configuration."""


@dataclass(frozen=True, slots=True)
class FormSection:
    """A section of a form, with the sections inside it."""

    key: str
    label: str
    help: str
    fields: tuple[FormField, ...] = ()
    sections: tuple[FormSection, ...] = ()
    is_written: bool = False
    add: str = ""
    """Key at which a further item, or the missing section, is added; empty if there is nothing to add."""
    is_removable: bool = False
    is_item: bool = False
    possible: tuple[FormField, ...] = ()
    """Fields, at all depths, of what `add` adds, and of the section's other types."""

    def names(self) -> list[str]:
        """Keys of all fields, and of what can be added or removed."""
        own = [one.key for one in self.fields] + ([f"+{self.add}"] if self.add else [])
        own += [f"-{self.key}"] if self.is_removable else []
        return own + [key for section in self.sections for key in section.names()]


def run_file_sections(values: Mapping[str, Any]) -> list[FormSection]:
    """The expert's form for a run file with these values."""
    expanded = dict(values)
    if expand_reward(values.get("reward")) is not values.get("reward"):
        expanded["reward"] = expand_reward(values["reward"])
    whole = _section(Run, (), "", expanded, "")
    general = FormSection("", "General", "Names, folders and seed of the run.", whole.fields, is_written=True)
    return [general, *whole.sections]


def _section(kind: type[Section], keys: KeyPath, label: str, values: Any, text: str) -> FormSection:
    """The section of one class with its fields and the sections in them."""
    written = values if isinstance(values, Mapping) else {}
    fields: list[FormField] = []
    sections: list[FormSection] = []
    for name, info in kind.model_fields.items():
        inside, value = (*keys, name), written.get(name)
        kinds = section_types(info.annotation)
        if name == "type" or (not keys and name == "stages"):
            continue
        if not kinds:
            fields.append(_field(name, info, inside, value))
        elif _is_list(info.annotation):
            sections.append(_list(kinds, inside, name, value, _text(info, kinds)))
        else:
            sections.append(_one_of(kinds, info, inside, name, value))
    return FormSection(".".join(keys), label, text, tuple(fields), tuple(sections), bool(written))


def _one_of(
    kinds: Sequence[type[Section]], info: FieldInfo, keys: KeyPath, name: str, value: Any
) -> FormSection:
    """A section of one of several types, or one that may be missing."""
    text, default = _text(info, kinds), info.get_default(call_default_factory=True, validated_data={})
    key = ".".join(keys)
    if isinstance(value, str):
        value = {"type": value} if "type" in kinds[0].model_fields else value
    written = value if isinstance(value, Mapping) else {}
    if "type" in kinds[0].model_fields:
        by_type = {str(kind.model_fields["type"].default): kind for kind in kinds}
        usual = str(getattr(default, "type", "") or "")
        chosen = by_type.get(str(written.get("type", usual)))
        choice = FormField(
            f"{key}.type",
            "type",
            format_yaml(written["type"]) if "type" in written else "",
            usual or "none",
            (chosen.__doc__ or "").split("\n")[0] if chosen else "Kind of this section.",
            "one of the types",
            tuple(by_type),
        )
        inside = (
            FormSection(key, name, text) if chosen is None else _section(chosen, keys, name, written, text)
        )
        fields = (choice, *inside.fields)
        shown = {one.key for one in all_fields((replace(inside, fields=fields),), possible=True)}
        others = [
            replace(one, note=f"type: {name}")
            for name, kind in by_type.items()
            for one in _possible(kind, keys)
            if kind is not chosen and one.key not in shown
        ]
        return replace(inside, fields=fields, is_written=bool(written), possible=_each_once(others))
    if default in (None, PydanticUndefined) and value is None and not info.is_required():
        return FormSection(key, name, text, add=key, possible=_possible(kinds[0], keys))
    found = _section(kinds[0], keys, name, written, text)
    return replace(found, is_removable=default is None and value is not None)


def _list(kinds: Sequence[type[Section]], keys: KeyPath, name: str, value: Any, text: str) -> FormSection:
    items = value if isinstance(value, list) else []
    shown = []
    for number, item in enumerate(items):
        inside = (*keys, str(number))
        if "type" in kinds[0].model_fields:
            found = _typed_item(kinds, inside, number, item)
        else:
            found = _section(kinds[0], inside, f"{name} {number + 1}", item, "")
        shown.append(replace(found, is_removable=True, is_item=True))
    key = ".".join(keys)
    new = (*keys, str(len(items)))
    possible = tuple(field for kind in kinds for field in _possible(kind, new))
    return FormSection(
        key, name, text, (), tuple(shown), bool(items), add=".".join(new), possible=_each_once(possible)
    )


@lru_cache(maxsize=1024)
def _possible(kind: type[Section], keys: KeyPath) -> tuple[FormField, ...]:
    return tuple(all_fields((_section(kind, keys, "", {}, ""),), possible=True))


def _each_once(fields: Sequence[FormField]) -> tuple[FormField, ...]:
    return tuple({one.key: one for one in reversed(fields)}.values())[::-1]


def all_fields(form: Sequence[FormSection], *, possible: bool = False) -> Iterator[FormField]:
    """The fields of a form; with `possible`, those of missing sections and of other types too."""
    for section in form:
        yield from section.fields
        yield from section.possible if possible else ()
        yield from all_fields(section.sections, possible=possible)


def _typed_item(kinds: Sequence[type[Section]], keys: KeyPath, number: int, item: Any) -> FormSection:
    by_type = {str(kind.model_fields["type"].default): kind for kind in kinds}
    written = item if isinstance(item, Mapping) else {"type": item}
    chosen, key = by_type.get(str(written.get("type"))), ".".join(keys)
    choice = FormField(
        f"{key}.type", "type", str(written.get("type") or ""), "", "Kind of this item.", "", tuple(by_type)
    )
    label = f"item {number + 1}"
    found = FormSection(key, label, "") if chosen is None else _section(chosen, keys, label, written, "")
    return replace(found, fields=(choice, *found.fields))


def _field(name: str, info: FieldInfo, keys: KeyPath, value: Any) -> FormField:
    unit = unit_of_field(name, info)
    return FormField(
        ".".join(keys),
        name,
        "" if value is None and not keys else written_text(value),
        "required" if info.is_required() else default_of(info),
        " ".join((info.description or "").split()),
        ", ".join(filter(None, (type_of(info), unit and f"in {unit}"))),
        _choices(info.annotation),
    )


def written_text(value: Any) -> str:
    """A written value as YAML on one line; empty for one that is not written."""
    if value is None:
        return ""
    if isinstance(value, str) and "\n" in value:
        return value
    return format_yaml(value)


def _choices(annotation: Any) -> tuple[str, ...]:
    """Values of a Literal or a Boolean, with null if it is allowed."""
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return tuple(format_yaml(value) for value in get_args(annotation))
    parts = get_args(annotation)
    if type(None) in parts and len(parts) == 2:
        inside = _choices(next(part for part in parts if part is not type(None)))
        return (*inside, "null") if inside else ()
    return ()


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(_is_list(part) for part in get_args(annotation))


def _text(info: FieldInfo, kinds: Sequence[type[Section]]) -> str:
    return " ".join((info.description or kinds[0].__doc__ or "").split())
