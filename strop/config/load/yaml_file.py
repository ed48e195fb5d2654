"""Reading of YAML files to a `ConfigTree`, in which each value has its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from strop.config.load.config_tree import ConfigTree, KeyPath, Source
from strop.errors import ConfigError


def read_yaml(path: Path) -> ConfigTree:
    """Read a YAML mapping as OmegaConf does (`1e-6` is a number, a duplicate key is an error).

    Raises ConfigError for a file that is missing, empty or not a mapping, and for a syntax error,
    with its line and column.
    """
    text = _text(path)
    try:
        loader = get_yaml_loader()(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(f"{path}: the file is empty; write a run file (docs/reference/run-file.md).")
        values = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: this is not valid YAML: {reason}.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: this is not valid YAML: {reason}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: a value in it cannot be read as YAML: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected `key: value` lines, got {_kind(values)}.")
    sources: dict[KeyPath, Source] = {}
    _mark(node, path, (), sources, frozenset())
    return ConfigTree(values, sources)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not a text file in UTF-8: {error.reason} at byte {error.start}."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None


def _kind(values: Any) -> str:
    return "a list" if isinstance(values, list) else f"the single value {str(values)[:40]!r}"


def _mark(
    node: yaml.Node, path: Path, at: KeyPath, sources: dict[KeyPath, Source], above: frozenset[int]
) -> None:
    """Record the line of every node. Merges (`<<`) are already resolved in constructed nodes."""
    line = node.start_mark.line + 1
    sources.setdefault(at, Source("file", f"{path}:{line}"))
    if id(node) in above:
        raise ConfigError(f"{path}:{line}: this anchor contains itself, which a run file does not support.")
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                where = f"{path}:{key.start_mark.line + 1}"
                raise ConfigError(f"{where}: the key {key.value!r} is not a string; write it in quotes.")
            inside = (*at, key.value)
            sources[inside] = Source("file", f"{path}:{key.start_mark.line + 1}")
            _mark(value, path, inside, sources, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, path, (*at, str(index)), sources, above)
