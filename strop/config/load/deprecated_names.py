"""Replacement of deprecated keys and values in a configuration tree, with a notice for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strop.config.aliases import METRIC_KEYS, current_keys, current_metric, current_type, section_key
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, iter_values, split_key, to_plain
from strop.errors import ConfigError, FaultKind

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_INTERPOLATION = re.compile(r"(?P<escape>(?<!\\)\\*)\$\{(?P<dots>\.*)(?P<key>[A-Za-z_][\w.\[\]]*)\}")


def replace_deprecated(tree: ConfigTree) -> tuple[str, ...]:
    """Give deprecated keys, types, metrics and interpolated keys of the tree their current names.

    Returns one notice per deprecated name, with its source. A key that is written under its deprecated name
    and under its current one is a fault of the tree.
    """
    tree.values = to_plain(tree.values)  # A YAML anchor shares one mapping between several keys.
    return (*_replace_keys(tree), *_replace_values(tree))


def replace_in_override(override: Override, source: Source) -> tuple[Override, tuple[str, ...]]:
    """The override with current names, and the notices for the deprecated ones. Raises ConfigError."""
    keys = split_key(override.key_or_group)
    current = current_keys(keys)
    tree = ConfigTree()
    tree.set(current, override.value(), source)
    notices = replace_deprecated(tree)
    if tree.faults:
        raise ConfigError(*tree.faults)
    if current != keys:
        notices = (_notice(source, ".".join(keys), ".".join(current)), *notices)
    if not notices:
        return override, ()
    return replace(override, key_or_group=".".join(current), _value=tree.get(current)), notices


def replace_resolved_types(values: Any, keys: KeyPath = ()) -> Any:
    """The values with current names for types and metrics that an interpolation gave."""
    if isinstance(values, dict):
        return {key: replace_resolved_types(item, (*keys, str(key))) for key, item in values.items()}
    if isinstance(values, list):
        return [replace_resolved_types(item, (*keys, str(index))) for index, item in enumerate(values)]
    return _current_value(keys, values) if isinstance(values, str) else values


def _replace_keys(tree: ConfigTree, at: KeyPath = ()) -> Iterator[str]:
    container = tree.get(at) if at else tree.values
    if isinstance(container, list):
        for index in range(len(container)):
            yield from _replace_keys(tree, (*at, str(index)))
    elif isinstance(container, dict):
        for key in list(container):
            old = (*at, str(key))
            new = current_keys(old)
            if new != old:
                yield from _rename(tree, old, new)
            yield from _replace_keys(tree, new)


def _rename(tree: ConfigTree, old: KeyPath, new: KeyPath) -> Iterator[str]:
    source = tree.nearest_source(old)
    if tree.has(new):
        tree.add_fault(
            FaultKind.UNSUPPORTED,
            f"{source}: {'.'.join(old)} is the deprecated name of {'.'.join(new)}, which is written too "
            f"({tree.nearest_source(new)}); remove {'.'.join(old)}.",
            new,
        )
        tree.delete(old)
        return
    tree.rename(old, new[-1])
    yield _notice(source, ".".join(old), ".".join(new))


def _replace_values(tree: ConfigTree) -> Iterator[str]:
    for keys, value in list(iter_values(tree.values)):
        if not isinstance(value, str):
            continue
        source = tree.nearest_source(keys)
        current = _current_value(keys, value)
        if current != value:
            yield _notice(source, f"{'.'.join(keys)}: {value}", current)
        for match in _INTERPOLATION.finditer(current):
            written, renamed = match[0], _current_interpolation(match, keys)
            if renamed != written:
                current = current.replace(written, renamed)
                yield _notice(source, written, renamed)
        if current != value:
            tree.replace_value(keys, current)


def _current_value(keys: KeyPath, value: str) -> str:
    section = section_key(keys)
    if section in METRIC_KEYS:
        return current_metric(value)
    return current_type(section.removesuffix(".type"), value)


def _current_interpolation(match: re.Match[str], keys: KeyPath) -> str:
    """`${a.b}` names a key from the top of the file, `${.b}` from the section that has it, `${..b}` one
    up."""
    if len(match["escape"]) % 2:
        return match[0]
    dots = len(match["dots"])
    above = keys[: len(keys) - dots] if dots else ()
    named = tuple(re.sub(r"\[(\w+)\]", r".\1", match["key"]).split("."))
    renamed = current_keys((*above, *named))[len(above) :]
    if renamed == named:
        return match[0]
    return f"{match['escape']}${{{match['dots']}{'.'.join(renamed)}}}"


def _notice(source: Source | None, old: str, new: str) -> str:
    return f"{source}: {old} is deprecated; write {new}."
