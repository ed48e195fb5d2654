"""What is in a model folder, as a short text that is the same wherever the folder stands."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from strop.config.local import existing

_BLOCK_BYTES = 4096
_BLOCKS = 256
"""So much of each file of weights is looked at, evenly spread: other training changes weights everywhere."""
_OF_THE_WRITER = ("transformers_version", "_name_or_path", "name_or_path")


def contents_of(path: str) -> str:
    """`contents 3f9a61c20d4e` of a local model's configuration and weights; the name itself of one on the
    hub."""
    folder = existing(path)
    if folder is None or not folder.is_dir():
        return path
    digest = hashlib.sha256(_configuration(folder).encode())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode())
        _add(digest, file)
    return f"contents {digest.hexdigest()[:12]}"


def _configuration(folder: Path) -> str:
    file = folder / "config.json"
    text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
    try:
        values = json.loads(text)
    except ValueError:
        return text  # who loads the model says what is wrong with it
    return json.dumps({key: values[key] for key in values if key not in _OF_THE_WRITER}, sort_keys=True)


def _add(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        for offset in range(0, size, max(_BLOCK_BYTES, size // _BLOCKS)):
            file.seek(offset)
            digest.update(file.read(_BLOCK_BYTES))
