"""Explorer and trainer that are started by commands of their own: each registers its settings in the folder of the
weights, and refuses a peer of another run.

sync/
  explorer.json, trainer.json    the settings of each running role
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal

from strop.config.redact import name_environment, redact_text
from strop.config.save import fingerprint
from strop.config.schema.buffer import CheckpointSyncConfig, SqlBufferConfig
from strop.config.schema.run import Run
from strop.config.semantic_diff import learning_fields
from strop.errors import RunFolderError
from strop.models.fingerprint import model_fingerprint
from strop.runs.folder import RunFolder
from strop.workers.cleanup import cleanup
from strop.workers.files import atomic_write

SyncRole = Literal["explorer", "trainer"]
_MAX_FIELDS_SHOWN = 8
_ROLE_SPECIFIC = (
    "buffer",
    "data.demonstrations",
    "rollout.engine",
    "rollout.max_concurrent_rollouts",
    "rollout.env",
)
"""Sections that may differ between explorer and trainer: addresses as seen from each machine, machine
settings, and what only one of the two uses."""
_COMPARED_BY_CONTENT = ("model.path", "data.train.path")
"""Paths that may differ, because what they lead to is compared."""


def rendezvous(run: Run, data_fingerprint: str, role: SyncRole) -> AbstractContextManager[None]:
    """A context in which this role is registered and its peer, if there is one, belongs to the same run.

    `data_fingerprint` identifies the training data. Raises `RunFolderError` for a peer of another run. In
    mode `both` nothing is compared: one run file was read for both roles.
    """
    section = run.synchronizer
    if run.mode == "both" or not isinstance(section, CheckpointSyncConfig):
        return nullcontext()
    settings = shared_settings(run, data_fingerprint)
    return registered_peer(RunFolder.of(run).path / section.folder, role, settings)


def describe_rendezvous(run: Run) -> tuple[str, ...]:
    """The note for the console that says where this role finds its peer; none in mode `both`."""
    section, buffer = run.synchronizer, run.buffer
    if run.mode == "both" or not isinstance(section, CheckpointSyncConfig):
        return ()
    folder = RunFolder.of(run).path
    peer = "trainer" if run.mode == "explore" else "explorer"
    url = (
        redact_text(buffer.url)
        if isinstance(buffer, SqlBufferConfig) and buffer.url
        else str(folder.absolute())
    )
    weights = (folder / section.folder).absolute()
    return (f"rendezvous with the {peer}: weights in {weights}, buffer {buffer_name(run)!r} in {url}",)


def shared_settings(run: Run, data_fingerprint: str) -> dict[str, str]:
    """Settings that must be equal for explorer and trainer, by field."""
    fields = {
        field: _shared_text(field, str(_without_folder(value)))
        for field, value in learning_fields(run).items()
        if field not in _COMPARED_BY_CONTENT
        and not any(f"{field}.".startswith(f"{section}.") for section in _ROLE_SPECIFIC)
    }
    return {
        "model.path": model_fingerprint(run.model.path),
        "data.train": data_fingerprint,
        "buffer.name": buffer_name(run),
        **fields,
    }


def buffer_name(run: Run) -> str:
    """The name of the run's buffer in a database that may hold the buffers of several runs."""
    return getattr(run.buffer, "name", None) or "/".join(RunFolder.of(run).path.absolute().parts[-2:])


def _shared_text(field: str, text: str) -> str:
    """The text itself; its fingerprint where it has a value from the environment, which may be a secret."""
    return text if name_environment(text) == text else fingerprint(field, text)


def _without_folder(value: Any) -> Any:
    """The value with every text that looks like a path reduced to the path's last component."""
    if isinstance(value, Mapping):
        return {key: _without_folder(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item) for item in value]
    is_path = isinstance(value, str) and "/" in value and not {"\n", "{"} & set(value)
    return PurePath(value).name if is_path else value


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
