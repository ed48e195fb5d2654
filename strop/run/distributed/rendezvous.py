"""Rendezvous of explorer and trainer that are started separately: a check that both belong to one run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import Any

from strop.config.environment_values import name_environment
from strop.config.redact import redact_text
from strop.config.resume_compatibility import learning_fields
from strop.config.save import fingerprint
from strop.config.schema import Run
from strop.config.schema.buffer import SqlBufferConfig
from strop.config.schema.synchronizer import CheckpointSyncConfig
from strop.models.fingerprint import model_fingerprint
from strop.runs.folder import RunFolder
from strop.sync.compatibility import SyncRole, registered_peer

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
