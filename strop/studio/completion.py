"""Completions of the editor: keys and values that fit at a place of a configuration's text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import yaml

from strop.config.load.config_tree import KeyPath
from strop.studio.fields import FormField, FormSection, all_fields

_PROBE = "strop_completion_probe"
_KEY = re.compile(r"[\w.-]+:")
_BEFORE_KEY = re.compile(r"[\s{,]")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a configuration's text, between the words around it."""

    keys: KeyPath
    """Key of the value, or of the section to which a key is added; indices of list items are digits."""
    is_value: bool
    word: str
    """Beginning of the word in front of the place."""
    text: str
    """The text without this word, which may be no YAML with it."""


def place_at(before: str, after: str) -> Place | None:
    """The place between two texts; None where the first is no YAML, and inside of quotes and comments."""
    word = "".join(takewhile(lambda one: one.isalnum() or one in "_./-", reversed(before)))[::-1]
    before = before.removesuffix(word)
    line = before.rpartition("\n")[2]
    written = line.rstrip(" \t")
    is_value = written != line and _KEY.fullmatch(_BEFORE_KEY.split(written)[-1]) is not None
    try:
        tokens = list(yaml.scan(f"{before}{_PROBE}{'' if is_value else ': '}"))
    except yaml.YAMLError:
        return None
    keys = _keys_of_probe(tokens)
    if keys is None:
        return None
    return Place(keys if is_value else keys[:-1], is_value, word, before + after)


def _keys_of_probe(tokens: Sequence[Any]) -> KeyPath | None:
    """Keys of the probe's mapping entry, its own included."""
    levels: list[
        list[str]
    ] = []  # key, and below it the index where a list begins at the key's own indentation
    for token, after in pairwise(tokens):
        match token:
            case yaml.BlockMappingStartToken() | yaml.FlowMappingStartToken():
                levels.append([""])
            case yaml.BlockSequenceStartToken():
                levels.append(["-1"])
            case yaml.FlowSequenceStartToken():
                levels.append(["0"])
            case yaml.BlockEndToken() | yaml.FlowMappingEndToken() | yaml.FlowSequenceEndToken():
                levels.pop()
            case yaml.KeyToken() if levels and isinstance(after, yaml.ScalarToken):
                levels[-1][:] = [after.value]
            case yaml.BlockEntryToken() | yaml.FlowEntryToken() if levels:
                _count(levels[-1], is_block=isinstance(token, yaml.BlockEntryToken))
            case _:
                pass
        if isinstance(after, yaml.ScalarToken) and after.value == _PROBE:
            return tuple(key for level in levels for key in level if key)
    return None


def _count(level: list[str], *, is_block: bool) -> None:
    """Go on to the next item of a list; a comma of a mapping in braces counts nothing."""
    if level[-1].lstrip("-").isdigit():
        level[-1] = str(int(level[-1]) + 1)
    elif is_block:
        level.append("0")


def key_options(
    form: Sequence[FormSection], keys: KeyPath, written: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Keys that a section can have besides the written ones: `label`, `detail` and `info`, and the text to insert."""
    above = "".join(f"{key}." for key in keys)
    helps = {section.key: section.help for section in _all_sections(form)}
    found: dict[str, dict[str, str]] = {}
    for field in all_fields(form, possible=True):
        name, _, rest = field.key.removeprefix(above).partition(".")
        if not field.key.startswith(above) or name in written or name.isdigit():
            continue
        if rest:
            found.setdefault(name, {"label": name, "info": helps.get(above + name, ""), "apply": f"{name}:"})
        else:
            found[name] = {"label": name, "detail": _detail(field), "info": field.help, "apply": f"{name}: "}
    return list(found.values())


def value_options(form: Sequence[FormSection], keys: KeyPath) -> list[str]:
    """Accepted values of a field with few of them; a section's are its types."""
    name = ".".join(keys)
    fields = {field.key: field for field in all_fields(form, possible=True)}
    chosen = fields.get(name) or fields.get(f"{name}.type")
    return [choice for choice in chosen.choices if choice] if chosen else []


def _detail(field: FormField) -> str:
    default = field.default and f"default {field.default}"
    return ", ".join(filter(None, (field.note, field.kind, default)))


def _all_sections(form: Sequence[FormSection]) -> list[FormSection]:
    return [one for section in form for one in (section, *_all_sections(section.sections))]
