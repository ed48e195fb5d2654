"""Opening and saving of configuration files below Studio's folders; a file changed since it was opened stays."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from strop.config.load.yaml_file import read_bounded
from strop.config.paths import SCRIPT_SUFFIXES, expand_user
from strop.errors import ConfigError
from strop.studio.settings import StudioSettings
from strop.workers.files import atomic_write


def document_name(name: str) -> str:
    """Name, without folders, of a configuration's file; `run.yaml` where it has none.

    Raises `ConfigError` for a script or notebook, which reading would execute, and for what no file can be called.
    """
    own = Path(name).name
    _require_possible(Path(own))
    if Path(name).suffix in SCRIPT_SUFFIXES:
        raise ConfigError(
            f"{name} is a Python script, and Studio edits configurations. In a terminal, strop check {name} and strop "
            f"train {name} run it, and strop convert {name} --output run.yaml writes its run file, which Studio opens."
        )
    return "run.yaml" if own in ("", "..") else own


def require_allowed(path: Path, settings: StudioSettings) -> Path:
    """The path, if it is one of this Studio.

    Raises `ConfigError` for one outside of its folders, and for what no file can be called.
    """
    _require_possible(path)
    if not settings.allows(path):
        raise ConfigError(
            f"{path} is outside of {settings.folder}, where Studio was started, and of the folder of runs "
            f"{settings.runs}. Start Studio in a folder above that file, or with --anywhere."
        )
    return path


def _require_possible(path: Path) -> None:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # said where the file is used
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{str(path)!r:.200} cannot be the name of a file here: {reason}.") from None


def open_file(name: str, settings: StudioSettings) -> str:
    """The text of a configuration file. Raises `ConfigError`."""
    document_name(name)
    return read_bounded(require_allowed(expand_user(name), settings), regular=True)


def save_file(name: str, text: str, known: str, settings: StudioSettings) -> str:
    """Save a text; returns its digest, which `known` is at the next time. Raises `ConfigError`.

    `known` is the digest of the file's text as it was opened or saved last; empty for a new file.
    """
    path = require_allowed(expand_user(name.strip()), settings)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{name!r} is not the name of a YAML file; write one that ends in .yaml.")
    if path.exists() and digest(open_file(str(path), settings)) not in (known, digest(text)):
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
