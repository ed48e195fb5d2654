"""Reading of YAML files to a `ConfigTree`, in which each value has its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from strop.config.data_files import data_file_name
from strop.config.load.config_tree import ConfigTree, KeyPath, Source
from strop.config.load.yaml_parser import YamlLimitError, parse_yaml
from strop.errors import ConfigError
from strop.workers.regular_file import open_regular

_MAX_SHOWN = 5
"""Maximum number of files that a message lists."""
MAX_BYTES = 200_000
"""Maximum size of a configuration file."""


def read_yaml(path: Path, *, regular: bool = False) -> ConfigTree:
    """Read a YAML mapping as OmegaConf does (`1e-6` is a number, a duplicate key is an error).

    A FIFO is read to its end, unless only `regular` files are wanted: those that another file names.

    Raises ConfigError for a file that is missing, empty or not a mapping, and for a syntax error,
    with its line and column.
    """
    _require_configuration(path)
    try:
        node, values = parse_yaml(read_bounded(path, regular=regular))
    except YamlLimitError as error:
        raise ConfigError(f"{path}:{error.line}: {error.problem}.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: this is not valid YAML: {reason}.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: this is not valid YAML: {reason}.") from None
    if node is None:
        raise ConfigError(f"{path}: the file is empty; write a run file (`strop init` does).")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected `key: value` lines, got {_kind(values)}.")
    sources: dict[KeyPath, Source] = {}
    _mark(node, path, (), sources)
    return ConfigTree(values, sources)


def _require_configuration(path: Path) -> None:
    """Raise ConfigError for a file of rows, and for a folder, with the command that reads it."""
    if path.is_file() and path.suffix != ".json" and data_file_name(path.name) is not None:
        raise ConfigError(
            f"{path}: this is a file of rows, and no run file. `strop init --train {path}` writes a run file for it; "
            f"in one that you have, write data.train.path={path}."
        )
    if not path.is_dir():
        return
    if (path / "config.json").is_file():
        raise ConfigError(
            f"{path}: this is a model's folder, and no run file. `strop init --model {path}` writes a run file for it, "
            f"and `strop chat {path}` talks with the model."
        )
    found = ", ".join(sorted(each.name for each in path.glob("*.y*ml"))[:_MAX_SHOWN])
    raise ConfigError(
        f"{path}: this is a folder, and no run has started in it. Name "
        f"{f'a file in it: {found}' if found else 'a run file, or the folder of a run, <output>/<project>/<name>'}."
    )


def read_bounded(path: Path, *, regular: bool = False) -> str:
    """Read a text file of a configuration. Raises ConfigError if it is missing, too large, or not UTF-8.

    A FIFO is read to its end, unless only `regular` files are wanted: those that another file names.
    """
    try:
        with open_regular(path) if regular else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path}: the file is larger than {MAX_BYTES:,} bytes, the limit of a configuration."
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not a text file in UTF-8: {error.reason} at byte {error.start}."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from None


def _kind(values: Any) -> str:
    return "a list" if isinstance(values, list) else f"the single value {str(values)[:40]!r}"


def _mark(node: yaml.Node, path: Path, at: KeyPath, sources: dict[KeyPath, Source]) -> None:
    """Record the line of every node. Merges (`<<`) are already resolved in constructed nodes."""
    sources.setdefault(at, Source("file", f"{path}:{node.start_mark.line + 1}"))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = f"{path}:{key.start_mark.line + 1}"
            if key.tag != "tag:yaml.org,2002:str":
                raise ConfigError(
                    f"{where}: the key {str(key.value)[:60]!r} is not a string; write it in quotes."
                )
            inside = (*at, key.value)
            sources[inside] = Source("file", where)
            _mark(value, path, inside, sources)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, path, (*at, str(index)), sources)
