"""Configuration files as text: values are set and removed with comments, order and notation of the rest kept."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from strop.config.load.config_tree import KeyPath
from strop.config.schema.reward import expand_reward
from strop.errors import ConfigError

_INDENTED_LIST = re.compile(r"^( *)[^\s#-][^#\n]*:[ \t]*+(?:#.*)?\n(?: *+(?:#.*)?\n)*+\1 +- ", re.MULTILINE)
_WIDTH = 4096
"""Longest line that is not wrapped."""


def set_value(text: str, keys: KeyPath, value: str) -> str:
    """Set a value, which is written as YAML; sections and list items that are missing are added.

    Raises `ConfigError` for a text or value that is not YAML.
    """
    root = _parse(text)
    parsed = _value(keys, value)
    container: Any = root
    for depth, key in enumerate(keys[:-1]):
        container = _enter(container, key, keys[depth + 1], top=depth == 0)
    _put(container, keys[-1], parsed)
    return _written(root, text)


def remove_value(text: str, keys: KeyPath) -> str:
    """Remove a value, and the sections that are empty without it."""
    root = _parse(text)
    above: list[tuple[Any, str]] = []
    container: Any = root
    for key in keys:
        if not _has(container, key):
            return text
        above.append((container, key))
        container = container[_place(container, key)]
    for number, (holder, key) in enumerate(reversed(above)):
        if number and len(holder[_place(holder, key)]):
            break
        del holder[_place(holder, key)]
    return _written(root, text)


def _parse(text: str) -> CommentedMap:
    try:
        root = _yaml(text).load(text)
    except YAMLError as error:
        raise ConfigError(f"The text is not YAML: {' '.join(str(error).split())}.") from None
    if root is None:
        root = CommentedMap()
        if text.strip():  # only comments
            root.yaml_set_start_comment("\n".join(line.lstrip("# ") for line in text.strip().splitlines()))
    if not isinstance(root, CommentedMap):
        raise ConfigError("The text is not `key: value` lines.")
    return root


def _yaml(text: str) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    if _INDENTED_LIST.search(text):
        yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _written(root: CommentedMap, text: str) -> str:
    stream = io.StringIO()
    _yaml(text).dump(root, stream)
    return stream.getvalue() if root else ""


def _value(keys: KeyPath, text: str) -> Any:
    try:
        return _yaml("").load(text)
    except YAMLError as error:
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigError(
            f"{'.'.join(keys)}: {text!r} is not a YAML value ({problem}); write it in quotes."
        ) from None


def _enter(container: Any, key: str, inside: str, *, top: bool) -> Any:
    """The section or list at a key, which is added if it is missing; a shorthand becomes the section it stands for."""
    value = container[_place(container, key)] if _has(container, key) else None
    if top and key == "reward":
        expanded = expand_reward(value)
        if expanded is not value:
            value = CommentedMap(
                {name: CommentedSeq(map(CommentedMap, items)) for name, items in expanded.items()}
            )
            _put(container, key, value)
    if isinstance(value, str):
        value = CommentedMap({"type": value})
        _put(container, key, value)
    if not isinstance(value, CommentedMap | CommentedSeq):
        value = CommentedSeq() if inside.isdigit() else CommentedMap()
        if container.fa.flow_style():
            value.fa.set_flow_style()
        _put(container, key, value)
    return value


def _has(container: Any, key: str) -> bool:
    if isinstance(container, CommentedSeq):
        return key.isdigit() and int(key) < len(container)
    return isinstance(container, CommentedMap) and key in container


def _place(container: Any, key: str) -> int | str:
    return int(key) if isinstance(container, CommentedSeq) else key


def _put(container: Any, key: str, value: Any) -> None:
    if isinstance(container, CommentedSeq) and int(key) >= len(container):
        container.append(value)
    else:
        container[_place(container, key)] = value
