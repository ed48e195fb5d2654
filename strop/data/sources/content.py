"""Digest of a dataset's content: its rows, in order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.config.paths import existing_path
from strop.data.sources.rows import DatasetRows

_BLOCK = 2**20


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
