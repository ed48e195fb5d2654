"""Names of the arguments of vLLM's and SGLang's engines, read without an import of these libraries."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from strop.config.load import recorded_arguments


@dataclass(frozen=True, slots=True)
class ArgumentNames:
    """Arguments of a library's engine."""

    names: frozenset[str]
    """All names."""
    owner: str
    """Class that has them, with the library's version, for messages."""


@dataclass(frozen=True, slots=True)
class _Library:
    title: str
    argument_class: str
    sources: Callable[[Path], Iterable[Path]]
    """Source files with the arguments, in the folder of the package."""
    classes: Collection[str] | None
    """Classes of these files whose fields are the arguments; None for all classes."""
    recorded: str
    recorded_version: str


_LIBRARIES: Mapping[str, _Library] = {
    "vllm": _Library(
        title="vLLM",
        argument_class="AsyncEngineArgs",
        sources=lambda package: [package / "engine" / "arg_utils.py"],
        classes=("EngineArgs", "AsyncEngineArgs"),
        recorded=recorded_arguments.VLLM,
        recorded_version=recorded_arguments.VLLM_VERSION,
    ),
    "sglang": _Library(
        title="SGLang",
        argument_class="ServerArgs",
        sources=lambda package: sorted((package / "srt" / "arg_groups" / "fields").glob("*.py")),
        classes=None,
        recorded=recorded_arguments.SGLANG,
        recorded_version=recorded_arguments.SGLANG_VERSION,
    ),
}


@cache
def argument_names(engine_type: str) -> ArgumentNames:
    """The arguments of the installed library of `vllm` or `sglang`; without one, those of the recorded version."""
    library = _LIBRARIES[engine_type]
    found = find_spec(engine_type)
    if found is not None and found.origin is not None:
        sources = library.sources(Path(found.origin).parent)
        names = frozenset(name for source in sources for name in _fields(source, library.classes))
        if names:
            return ArgumentNames(names, f"{library.argument_class} in the installed {library.title}")
    return ArgumentNames(
        frozenset(library.recorded.split()),
        f"{library.argument_class} in {library.title} {library.recorded_version}",
    )


def _fields(source: Path, classes: Collection[str] | None) -> frozenset[str]:
    """Annotated fields of the classes of a source file; empty if it does not exist."""
    if not source.is_file():
        return frozenset()
    definitions = (
        each
        for each in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(each, ast.ClassDef) and (classes is None or each.name in classes)
    )
    fields = (field for each in definitions for field in each.body if isinstance(field, ast.AnnAssign))
    return frozenset(field.target.id for field in fields if isinstance(field.target, ast.Name))
