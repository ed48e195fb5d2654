"""Check of a configuration's text while it is edited: every fault with its line and key, and what loads."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.compat.detect import detect_dialect
from strop.config.load.config_tree import ConfigTree, KeyPath
from strop.config.load.loader import Job
from strop.config.load.yaml_file import read_yaml
from strop.config.preflight import missing_files
from strop.errors import ConfigError, StropError
from strop.reading import read_any
from strop.studio.files import document_name

_NEEDED = ("model.path", "data.train.path", "reward")
"""Keys of a run file that a new file has without values."""
_DOTTED = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*")
EDITABLE = ("strop", "trinity")
"""Dialects of the forms."""


@dataclass(frozen=True, slots=True)
class PlacedFault:
    """A fault with its place in the text."""

    message: str
    line: int | None
    """Line in the text, from 1; None for a fault that names none."""
    key: str
    """Dotted key in the text; empty for a fault that names none."""
    is_unanswered: bool = False
    """Whether the key has the empty text of a new file."""


@dataclass(frozen=True, slots=True)
class CheckedText:
    """Result of the check of a configuration's text."""

    dialect: str
    values: dict[str, Any]
    """Values as they are written; empty for a text that is not YAML."""
    job: Job | None
    """Job that the text configures; None if it cannot be loaded. Files that it names may be missing."""
    faults: tuple[PlacedFault, ...]

    @property
    def notes(self) -> list[str]:
        """Notices about values: overridden on this machine, without effect, or with a deprecated name."""
        stages = self.job.loaded.runs if self.job else ()
        overridden = [f"overridden: {key}" for stage in stages for key in stage.overridden]
        return [*overridden, *(note for stage in stages for note in stage.notes)]


def check_text(text: str, name: str, *, dialect: str | None = None, here: bool = False) -> CheckedText:
    """Check the text of a file `name`; `dialect` None detects it. Raises like `document_name`."""
    own_name = document_name(name)
    empty: tuple[PlacedFault, ...] = ()
    with tempfile.TemporaryDirectory(prefix="strop-studio-") as folder:
        path = Path(folder) / own_name
        path.write_text(text, encoding="utf-8")
        tree = ConfigTree()
        try:
            if text.strip():
                tree = read_yaml(path)
            dialect = dialect or (detect_dialect(tree) if tree.values else "strop")
            empty = tuple(_empty(path, tree))
            job = read_any(path, here=here, dialect=dialect)
        except ConfigError as error:
            found = (_place(fault.message, path, tree) for fault in error.faults)
            return CheckedText(dialect or "strop", tree.values, None, _joined(empty, found))
        except StropError as error:
            return CheckedText(dialect or "strop", tree.values, None, (_place(str(error), path, tree),))
        missing = [message for stage in job.loaded.runs for message in missing_files(stage)]
        found = (_place(each, path, tree) for each in missing)
        return CheckedText(dialect, tree.values, job, _joined(empty, found))


def _empty(path: Path, tree: ConfigTree) -> Iterator[PlacedFault]:
    """Faults of keys whose value is an empty text, which would name the current folder."""
    for key in _NEEDED:
        keys = tuple(key.split("."))
        if tree.get(keys) == "":
            found = _place(f"{tree.sources[keys]}: {key}: empty; write a value.", path, tree)
            yield replace(found, is_unanswered=True)


def _joined(first: tuple[PlacedFault, ...], others: Iterable[PlacedFault]) -> tuple[PlacedFault, ...]:
    """The faults, without others at the same keys as the first ones."""
    keys = {fault.key for fault in first}
    return (*first, *(fault for fault in others if fault.key not in keys))


def _place(message: str, path: Path, tree: ConfigTree) -> PlacedFault:
    """Split the place that a message begins with from the message, and find the key that it is about."""
    message = message.replace(str(path), path.name)
    place = rf"{re.escape(path.name)}(?::(\d+))?(?::\d+)?(?: \([^()]*\))?: (.*)"
    match = re.match(place, message, re.DOTALL)
    if match is None:
        return PlacedFault(message, None, "")
    line, rest = int(match[1]) if match[1] else None, match[2]
    named = re.match(r"([A-Za-z_][\w.-]*): ", rest)
    written = [keys for keys, source in tree.sources.items() if keys and _line(source.location) == line]
    above = tuple(named[1].split(".")) if named else ()
    key = _deepest(rest, [keys for keys in written if keys[: len(above)] == above]) or ".".join(above)
    fault = PlacedFault(rest, line, key)
    return replace(fault, line=next(iter(_lines(key, tree)), None)) if line is None and key else fault


def _deepest(text: str, written: list[KeyPath]) -> str:
    """The key among those of a line that the text names; else the shortest one."""
    words = set(_DOTTED.findall(text))
    named = [keys for keys in written if keys[-1] in words or ".".join(keys) in words]
    chosen: KeyPath = max(named, key=len) if named else min(written, key=len) if written else ()
    return ".".join(chosen)


def _lines(key: str, tree: ConfigTree) -> Iterator[int]:
    source = tree.nearest_source(tuple(key.split(".")))
    line = _line(source.location) if source else None
    if line is not None:
        yield line


def _line(location: str) -> int | None:
    number = location.rpartition(":")[2]
    return int(number) if number.isdigit() else None
