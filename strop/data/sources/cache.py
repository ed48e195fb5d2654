"""Cache of datasets on this machine: large files as Arrow, and the results of checks, by fingerprint.

`$STROP_CACHE`, else `strop` in `$XDG_CACHE_HOME` or `~/.cache`; a temporary folder of this process where it cannot be
written. Entries that were not used for 30 days are deleted when another one is written. An entry whose files are not
those that were written, such as one that a power cut left half on the disk, counts as none and is written again.

The digest of a dataset's content, its rows in order, is a part of such fingerprints.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from strop.config.paths import existing_path
from strop.data.sources.rows import DatasetRows
from strop.workers.json_text import parse_json

_MAX_AGE_SECONDS = 30 * 24 * 3600
_DONE = "entry.json"
"""Last file of an entry, with the checksums of the others; an entry without it is incomplete."""
_FACTS = "facts.json"
_BLOCK = 1 << 20


@cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="strop-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """The folder of the cache, which exists."""
    written = os.environ.get("STROP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(written or Path(base) / "strop").expanduser()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return _temporary_folder()


def cache_key(*parts: Any) -> str:
    """A name for the entry that these JSON values determine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def find_entry(key: str) -> tuple[Path, dict[str, Any]] | None:
    """Folder and facts of a complete entry; None if there is none."""
    folder = cache_folder() / key
    if not _is_complete(folder):
        return None
    try:
        facts: dict[str, Any] = parse_json((folder / _FACTS).read_text(encoding="utf-8"))
        os.utime(folder / _DONE)
    except OSError:  # another process deletes the entry, or owns it
        return None
    return folder, facts


def _is_complete(folder: Path) -> bool:
    """Whether a folder has the files that were written into it, unchanged."""
    try:
        return bool(parse_json((folder / _DONE).read_text(encoding="utf-8")) == _checksums(folder))
    except (OSError, ValueError):
        return False


def _checksums(folder: Path) -> dict[str, int]:
    """Checksum of each file of an entry but the last one."""
    return {file.name: _checksum(file) for file in folder.iterdir() if file.name != _DONE}


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            value = zlib.crc32(block, value)
    return value


@dataclass(slots=True)
class NewEntry:
    """An entry that is being written."""

    folder: Path
    """Folder to fill."""
    entry: Path
    """Folder of the complete entry."""
    facts: dict[str, Any] = field(default_factory=dict)
    """JSON values to keep with it."""


@contextmanager
def new_entry(key: str, *, temporary: bool = False) -> Iterator[NewEntry]:
    """A folder to fill, which becomes the entry when the block ends without an exception.

    A temporary entry is for this process only.
    """
    root = _temporary_folder() if temporary else cache_folder()
    _delete_old_entries(root)
    new = NewEntry(Path(tempfile.mkdtemp(prefix=f".{key}-", dir=root)), root / key)
    try:
        yield new
        (new.folder / _FACTS).write_text(json.dumps(new.facts), encoding="utf-8")
        (new.folder / _DONE).write_text(json.dumps(_checksums(new.folder)), encoding="utf-8")
        _rename(new.folder, new.entry)
    except BaseException:
        shutil.rmtree(new.folder, ignore_errors=True)
        raise


def _rename(folder: Path, target: Path) -> None:
    """Another process may have written the same entry meanwhile: then its entry stays.

    Only a folder that a rename has met is removed, if it is incomplete: a complete one may take the place of one that
    was missing at any moment before the rename, and its process reads it from then on.
    """
    try:
        folder.rename(target)
        return
    except OSError:
        if not target.is_dir():
            raise
    if _is_complete(target):
        shutil.rmtree(folder, ignore_errors=True)
    else:  # a file is damaged, or the deletion of an old entry was interrupted
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _delete_old_entries(root: Path) -> None:
    oldest = time.time() - _MAX_AGE_SECONDS
    for folder in root.iterdir():
        with suppress(OSError):
            done = folder / _DONE
            used = (done if done.exists() else folder).stat().st_mtime
            if folder.is_dir() and used < oldest:
                shutil.rmtree(folder, ignore_errors=True)


def content_digest(path: str | tuple[str, ...], rows: DatasetRows) -> str:
    """Digest of the rows of `path`. Of files so large that they are converted into the cache, the bytes count, and of
    such a dataset at a URL or on the hub its version there."""
    if rows.fingerprint is None:
        digest = hashlib.sha256()
        for row in rows.scan(("",)):
            digest.update(json.dumps(row, sort_keys=True, default=_digestible).encode() + b"\n")
        return digest.hexdigest()
    if all(existing_path(each) for each in ((path,) if isinstance(path, str) else path)):
        return files_digest(path)
    return hashlib.sha256(json.dumps(rows.fingerprint).encode()).hexdigest()


def files_digest(path: str | tuple[str, ...]) -> str:
    """Digest of the bytes of files, and of all files in folders; of a path that does not exist, its name."""
    digest = hashlib.sha256()
    for each in (path,) if isinstance(path, str) else path:
        found = existing_path(each)
        if found is None:
            digest.update(each.encode())
            continue
        for file in _files(found):
            digest.update(str(file.relative_to(found)).encode() + file_digest(file).encode())
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """Digest of a file's bytes; `unreadable: ...` where its reader will say what is wrong."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in sorted(path.rglob("*")) if file.is_file() and file.name[0] not in "._")


def _digestible(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)
