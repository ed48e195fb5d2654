"""Whether the two halves of a run are of one run: each leaves in the synchronizer's folder what it was
started with, and compares itself with what the other has left there.

    sync/
      explorer.json, trainer.json    one for each half at work
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from strop.errors import RunFolderError

Half = Literal["explorer", "trainer"]
_MOST_NAMED = 8


@contextmanager
def at_work(folder: Path, half: Half, said: Mapping[str, str]) -> Iterator[None]:
    """Inside, the other half can see what this one was started with, field by field.

    Raises `RunFolderError`, which names the fields, where the other one has left something else.
    """
    own = _file(folder, half)
    _compare(half, said, folder, half)  # one that was killed, or is at work and will be replaced
    left = _leave(own, said)  # before the other's is read: of two that start at once, one at least sees it
    try:
        _compare(half, said, folder, "trainer" if half == "explorer" else "explorer")
        yield
    finally:
        if own.exists() and own.read_text(encoding="utf-8") == left:
            own.unlink()


def _file(folder: Path, half: Half) -> Path:
    return folder / f"{half}.json"


def _leave(path: Path, said: Mapping[str, str]) -> str:
    who = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}"
    text = json.dumps({"who": who, "said": dict(said)}, indent=1) + "\n"
    beside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        return text
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror}). Explorer and trainer meet in the folder "
            "`synchronizer.folder`, which both must be able to write."
        ) from error


def _compare(half: Half, said: Mapping[str, str], folder: Path, other: Half) -> None:
    path = _file(folder, other)
    try:
        left: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    there: dict[str, str] = left["said"]
    fields = [field for field in dict.fromkeys((*said, *there)) if said.get(field) != there.get(field)]
    if not fields:
        return
    named = [f"{f} is {_show(said.get(f))} here and {_show(there.get(f))} there" for f in fields]
    rest = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    raise RunFolderError(
        f"This {half} and the {other} that it meets in {folder} ({left['who']}) are not of one "
        f"run: {'; '.join(named[:_MOST_NAMED])}{rest}. Start both with the same run file; only where things "
        f"are may differ. If that {other} is no longer at work, delete {path}; and let each run have "
        "a `synchronizer.folder` of its own."
    )


def _show(value: str | None) -> str:
    return "unset" if value is None else value
