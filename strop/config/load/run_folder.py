"""Run folders as configurations: the run file that a run has written, with paths that are valid where it is now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePath

from strop.config.load.config_tree import ConfigTree, Source, iter_values
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import existing_path, expand_user
from strop.workers.files import read_regular

RUN_FILE = "run.yaml"
"""Name of the resolved run file in a run's folder."""
_MARKERS = ("run.json", "metrics.jsonl", "checkpoints")
"""Entries of a folder in which a run has started."""
_PATH_KEYS = ("path", "tokenizer", "adapter", "chat_template")
"""Keys whose values may be names of files without a slash and a suffix."""


def is_run_folder(path: Path) -> bool:
    """Whether a run has started in a folder, and has written its configuration."""
    return (path / RUN_FILE).is_file() and any((path / name).exists() for name in _MARKERS)


def read_run_folder(folder: Path) -> ConfigTree:
    """The configuration of the run in a folder. Its `folder` is this folder, also if it was moved; a relative path that
    names nothing from the working directory names what it names from the directory that the run was started in, or in
    the folder itself. Raises ConfigError for a damaged run file."""
    tree = read_yaml(folder / RUN_FILE)
    places = [*_start_directories(tree, folder), folder]
    if _written_folder(tree).resolve() != folder.resolve():
        tree.set(("folder",), str(folder), Source("file", str(folder)))
    for keys, value in list(iter_values(tree.values)):
        if isinstance(value, str) and _may_be_path(keys[-1], value):
            name, colon, function = value.partition(":") if ".py:" in value else (value, "", "")
            if existing_path(name) is None:
                found = next((each / name for each in places if existing_path(each / name)), None)
                if found is not None:
                    tree.replace_value(keys, f"{found}{colon}{function}")
    return tree


def start_directory(folder: Path) -> Path | None:
    """The directory that the run in a folder was started in, if it is known and another than the working directory."""
    tree = read_yaml(folder / RUN_FILE)
    if _written_folder(tree).resolve() == folder.resolve():
        return None
    return next((each for each in _start_directories(tree, folder) if not each.samefile(Path.cwd())), None)


def _written_folder(tree: ConfigTree) -> Path:
    """The folder that the run file names."""
    values = tree.values
    default = Path(str(values.get("output"))) / str(values.get("project")) / str(values.get("name"))
    return expand_user(values.get("folder") or default)


def _start_directories(tree: ConfigTree, folder: Path) -> Iterator[Path]:
    """The directory from which the run's relative folder leads to `folder`, and that of its last session."""
    written, parts = _written_folder(tree), folder.resolve().parts
    length = len(written.parts)
    if not written.is_absolute() and parts[-length:] == written.parts:
        yield Path(*parts[:-length])
    try:
        directory = json.loads(read_regular(folder / "run.json"))["sessions"][-1].get("directory")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # a folder without sessions; what needs them names the damage
    if isinstance(directory, str) and existing_path(directory):
        yield Path(directory)


def _may_be_path(key: str, value: str) -> bool:
    """Whether a value may be a relative path: a name such as that of a column has neither a slash nor a suffix."""
    if value.startswith("~") or "://" in value or "\n" in value or PurePath(value).is_absolute():
        return False
    return key in _PATH_KEYS or "/" in value or "." in value
