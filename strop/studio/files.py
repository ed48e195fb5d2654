"""Opening and saving of configuration files; a file that has changed since it was opened is not replaced."""

from __future__ import annotations

import hashlib
from pathlib import Path

from strop.config.load.yaml_file import read_bounded
from strop.config.paths import expand_user
from strop.errors import ConfigError
from strop.workers.atomic_write import atomic_write


def open_file(name: str) -> str:
    """The text of a configuration file. Raises `ConfigError`."""
    return read_bounded(expand_user(name))


def save_file(name: str, text: str, known: str) -> str:
    """Save a text; returns its digest, which `known` is at the next time. Raises `ConfigError`.

    `known` is the digest of the file's text as it was opened or saved last; empty for a new file.
    """
    path = expand_user(name.strip())
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{name!r} is not the name of a YAML file; write one that ends in .yaml.")
    if path.exists() and digest(open_file(str(path))) not in (known, digest(text)):
        changed = "has changed since it was opened" if known else "exists"
        raise ConfigError(f"{path} {changed}. Save under another name, or open that file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None
    return digest(text)


def digest(text: str) -> str:
    """Digest by which two texts are compared."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def default_name(project: str) -> str:
    """Name of a file that does not exist yet."""
    names = (f"{project}{number}.yaml" for number in ("", *range(2, 1000)))
    return next((name for name in names if not Path(name).exists()), f"{project}.yaml")
