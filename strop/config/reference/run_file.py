"""`docs/reference/run-file.md`: every section and every field of the run file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import get_annotations

from pydantic.fields import FieldInfo

from strop.config.draft import split
from strop.config.reference.markdown import MADE, anchored, code, table
from strop.config.reference.words import default_of, type_of, unit
from strop.config.schema import Run
from strop.config.schema.base import Section
from strop.config.schema.walk import sections

Kind = type[Section]
Path = tuple[str, ...]

_HEADER = ("field", "takes", "unit", "default", "effect")
_INTRO = """\
# The run file

A run file is YAML. Every section and field is here; an unknown one is refused. What has no default must be
written. `${data.max_prompt_tokens}` stands for another value of the file, `${oc.env:NAME,default}` for an
environment variable. Where a section has kinds, `type` says which, and its name alone stands for a kind with
its defaults: `algorithm: grpo` is `algorithm: {type: grpo}`; a field that means nothing for a kind is unknown
to it. An amount is a number with its unit: `20 steps`, `5 epochs`, `10 %`.

`strop schema > strop.schema.json` writes what an editor needs to complete and check a run file; a first
line `# yaml-language-server: $schema=strop.schema.json` tells it so. `strop explain run.yaml` shows a run's
own values.
"""


def page() -> str:
    """The page."""
    return _Writer().write()


def linked(field: str) -> str:
    """A field of the run file, with the way to it; the name alone where the run file has no such field."""
    place = _place(tuple(key for key in split(field) if not key.isdigit()))
    return f"[{field}](run-file.md#{'.'.join(place)})" if place else code(field)


def _place(keys: Path) -> Path:
    """Where a field is described: a section's has one home, and what it goes on from another."""
    homes = _homes()
    kinds: tuple[Kind, ...] = (Run,)
    place: Path = ()
    for key in keys:
        kind = next((kind for kind in kinds if key in kind.model_fields), None)
        if kind is None:
            return ()
        shared = [base for base in _bases(kind) if base in homes and key in base.model_fields]
        below = sections(kind.model_fields[key].annotation)
        if key != "type":
            place = homes[below[0]] if below else (*(homes[shared[0]] if shared else place), key)
        kinds = below
    return place


class _Writer:
    def __init__(self) -> None:
        self._homes = _homes()
        self._anchors: set[str] = set()

    def write(self) -> str:
        lines = [MADE, _INTRO, *self._fields((), Run, list(Run.model_fields))]
        lines += self._inside((), (Run,))
        return "\n".join(lines) + "\n"

    def _section(self, path: Path, field: FieldInfo) -> Iterator[str]:
        kinds = sections(field.annotation)
        said = [_sentence(field.description or kinds[0].__doc__ or "")]
        said += ["A list; each item has:"] if "list" in type_of(field) else []
        bases = [base for base in _bases(kinds[0]) if base in self._homes]
        said += [f"The fields of {self._link(self._homes[base])}, and:" for base in bases]
        yield from self._heading(".".join(path), ".".join(path), "##" if len(path) == 1 else "###")
        yield from (" ".join(said), "")
        if "type" in kinds[0].model_fields:
            yield from self._kinds(path, kinds)
        else:
            own = [name for name in kinds[0].model_fields if not any(name in b.model_fields for b in bases)]
            yield from self._fields(path, kinds[0], own)
        yield from self._inside(path, kinds)

    def _kinds(self, path: Path, kinds: tuple[Kind, ...]) -> Iterator[str]:
        name = ".".join(path)
        bases = list(dict.fromkeys(base for kind in kinds for base in _bases(kind)))
        numbers = {base: f"{name}:{number}" for number, base in enumerate(bases, 1)}
        rows = []
        for kind in kinds:
            label = kind.model_fields["type"].default
            fields = [f"[shared {numbers[base][-1]}](#{numbers[base]})" for base in _bases(kind)]
            fields += [f"[its own](#{name}:{label})"] if _own(kind) else []
            rows.append((code(label), _sentence(kind.__doc__ or ""), ", ".join(fields)))
        yield from table(("type", "what it is", "fields"), rows)
        for base in bases:
            yield from self._heading(numbers[base], f"{name}, shared {numbers[base][-1]}", "####")
            yield from (_sentence(base.__doc__ or ""), "", *self._fields(path, base, _own(base)))
        for kind in kinds:
            label = kind.model_fields["type"].default
            if _own(kind):
                yield from self._heading(f"{name}:{label}", f"{name}: {label}", "####")
                yield from (_sentence(kind.__doc__ or ""), "", *self._fields(path, kind, _own(kind)))

    def _inside(self, path: Path, kinds: tuple[Kind, ...]) -> Iterator[str]:
        """The sections below, each once: where it stands least deep."""
        fields = {name: field for kind in kinds for name, field in reversed(kind.model_fields.items())}
        for name, field in reversed(fields.items()):
            below = sections(field.annotation)
            if below and self._homes[below[0]] == (*path, name):
                yield from self._section((*path, name), field)

    def _fields(self, path: Path, kind: Kind, names: list[str]) -> list[str]:
        rows = []
        for name in names:
            if name == "type":
                continue
            field, dotted = kind.model_fields[name], ".".join((*path, name))
            mark = "" if sections(field.annotation) else self._anchor(dotted)
            effect = _sentence(field.description or "")
            rows.append(
                (mark + code(name), self._takes(field), unit(name, field), code(default_of(field)), effect)
            )
        return table(_HEADER, rows)

    def _takes(self, field: FieldInfo) -> str:
        below = sections(field.annotation)
        words = type_of(field)
        return words.replace("section", self._link(self._homes[below[0]])) if below else words

    def _heading(self, anchor: str, title: str, level: str) -> tuple[str, ...]:
        return ("", self._anchor(anchor), "", f"{level} {title}", "")

    def _link(self, path: Path) -> str:
        name = ".".join(path)
        return f"[{name}](#{name})"

    def _anchor(self, name: str) -> str:
        """An anchor where the name stands first, and nothing after that."""
        if name in self._anchors:
            return ""
        self._anchors.add(name)
        return anchored(name)


@cache
def _homes() -> dict[Kind, Path]:
    """Where each section is described: there where it stands least deep."""
    homes: dict[Kind, Path] = {}
    waiting: list[tuple[Kind, Path]] = [(Run, ())]
    for kind, path in waiting:
        for name, field in kind.model_fields.items():
            for inside in sections(field.annotation):
                if inside not in homes:
                    homes[inside] = (*path, name)
                    waiting.append((inside, (*path, name)))
    return homes


def _bases(kind: Kind) -> list[Kind]:
    """The sections that it goes on from, the most general first."""
    between = [base for base in kind.__mro__[1:] if issubclass(base, Section) and base is not Section]
    return between[::-1]


def _own(kind: Kind) -> list[str]:
    """The fields that it says itself, but for its `type`."""
    said = get_annotations(kind)
    return [name for name in kind.model_fields if name in said and name != "type"]


def _sentence(text: str) -> str:
    return " ".join(text.split())
