"""Compatibility of explorer and trainer: each registers its settings in the synchronizer's folder.

sync/
  explorer.json, trainer.json    the settings of each running role
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from strop.errors import RunFolderError
from strop.workers.cleanup import cleanup
from strop.workers.files import atomic_write

SyncRole = Literal["explorer", "trainer"]
_MAX_FIELDS_SHOWN = 8


@contextmanager
def registered_peer(folder: Path, role: SyncRole, settings: Mapping[str, str]) -> Iterator[None]:
    """A context in which this role's settings, by field, are registered for its peer.

    Raises `RunFolderError`, which names the fields, if the peer has registered other settings.
    """
    own = _file(folder, role)
    # An earlier process of this role was killed, or still runs and will be replaced.
    _require_same_settings(role, settings, folder, role)
    # Written before the peer's file is read: of two processes that start together, one sees the other.
    written = _write_settings(own, settings)
    with cleanup(partial(_unregister, own, written)):
        _require_same_settings(role, settings, folder, "trainer" if role == "explorer" else "explorer")
        yield


def _unregister(own: Path, written: str) -> None:
    """Delete the role's file, unless a later process of the role has replaced it."""
    if own.exists() and own.read_text(encoding="utf-8") == written:
        own.unlink()


def _file(folder: Path, role: SyncRole) -> Path:
    return folder / f"{role}.json"


def _write_settings(path: Path, settings: Mapping[str, str]) -> str:
    process = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}"
    text = json.dumps({"who": process, "said": dict(settings)}, indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
        return text
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror}). Explorer and trainer register in the folder "
            "`synchronizer.folder`; set it to one that both can write to."
        ) from error


def _require_same_settings(
    role: SyncRole, settings: Mapping[str, str], folder: Path, other: SyncRole
) -> None:
    path = _file(folder, other)
    try:
        registered: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    peer: dict[str, str] = registered["said"]
    fields = [field for field in dict.fromkeys((*settings, *peer)) if settings.get(field) != peer.get(field)]
    if not fields:
        return
    named = [f"{f} is {_show(settings.get(f))} here and {_show(peer.get(f))} there" for f in fields]
    rest = f"; and {len(named) - _MAX_FIELDS_SHOWN} more" if len(named) > _MAX_FIELDS_SHOWN else ""
    raise RunFolderError(
        f"This {role} and the {other} registered in {folder} ({registered['who']}) do not belong to one run: "
        f"{'; '.join(named[:_MAX_FIELDS_SHOWN])}{rest}. Start both with the same run file; only addresses "
        f"and machine settings may differ. If that {other} no longer runs, delete {path}; and give each run "
        "a `synchronizer.folder` of its own."
    )


def _show(value: str | None) -> str:
    return "unset" if value is None else value
