"""Fingerprint of a model folder's content, independent of its path."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from strop.config.paths import existing_path, gguf_file
from strop.workers.json_text import parse_object

_BLOCK_BYTES = 4096
_BLOCKS = 256
"""Number of blocks read from each weight file, evenly spaced: training changes weights everywhere."""
WRITER_KEYS = ("transformers_version", "_name_or_path", "name_or_path")
"""Keys of config.json and tokenizer_config.json that say how the file was written."""


def model_fingerprint(path: str) -> str:
    """`contents 3f9a61c20d4e` for a local model's configuration and weights; the name for a model on the hub."""
    if (file := gguf_file(path)) is not None:
        digest = hashlib.sha256()
        _add_weights(digest, file)
        return f"contents {digest.hexdigest()[:12]}"
    folder = existing_path(path)
    if folder is None or not folder.is_dir():
        return path
    digest = hashlib.sha256(_configuration(folder).encode())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.name.encode())
        _add_weights(digest, file)
    return f"contents {digest.hexdigest()[:12]}"


def _configuration(folder: Path) -> str:
    file = folder / "config.json"
    text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
    try:
        values = parse_object(text)
    except ValueError:
        return text  # loading the model reports the fault
    return json.dumps({key: values[key] for key in values if key not in WRITER_KEYS}, sort_keys=True)


def _add_weights(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        for offset in range(0, size, max(_BLOCK_BYTES, size // _BLOCKS)):
            file.seek(offset)
            digest.update(file.read(_BLOCK_BYTES))
