"""Generator of `docs/reference/run-file.md`, with every section and field of the run file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import get_annotations

from pydantic.fields import FieldInfo

from strop.config.load.config_tree import split_key
from strop.config.reference.field_text import default_of, type_of, unit_of_field
from strop.config.reference.markdown import GENERATED_NOTICE, anchor_tag, inline_code, table
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.config.schema.walk import section_types

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
