"""Contents of run folders, read again only where their files have changed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from strop.errors import RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.reader import RunData, read_run
from strop.runs.rollout_index import RolloutIndex
from strop.runs.sessions import SESSIONS_FILE

Version = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Cached:
    version: Version
    data: RunData


class RunCache:
    """Contents and rollout indexes of run folders; several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[Path, _Cached] = {}
        self._indexes: dict[Path, RolloutIndex] = {}

    def read(self, path: Path) -> RunData:
        """The contents of a run folder. Raises `RunFolderError`."""
        version = folder_version(path)
        with self._lock:
            known = self._runs.get(path)
        if known is None or known.version != version:
            known = _Cached(version, read_run(path))
            with self._lock:
                self._runs[path] = known
        return known.data

    def rollouts(self, path: Path) -> RolloutIndex:
        """The index of a run's rollouts, with the files that exist now."""
        with self._lock:
            index = self._indexes.setdefault(path, RolloutIndex(RunFolder(path)))
        index.refresh()
        return index


def folder_version(path: Path) -> Version:
    """Times and sizes of the files that a run rewrites; they change with every step."""
    folder = RunFolder(path)
    files = (folder.metrics, folder.explorer.metrics, path / SESSIONS_FILE, folder.run_file)
    return tuple(_version(file) for file in files)


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    return status.st_mtime_ns, status.st_size
