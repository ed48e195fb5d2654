"""Validation of resolved values: a `Run`, or a ConfigError with every fault."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from strop.config.checks.run import run_faults
from strop.config.load.config_tree import ConfigTree, KeyPath
from strop.config.load.schema_faults import (
    KeyOwner,
    SchemaFault,
    schema_faults,
    sentence,
    unknown_owner,
    users_words,
)
from strop.config.load.value_limits import value_at
from strop.config.schema import Run
from strop.config.schema.walk import field_at, section_types
from strop.errors import Fault, FaultKind, config_error

_MAX_ROUNDS = 10
"""Maximum number of times that the rest of a configuration with faults is checked."""
_PLACEHOLDER = "value"


def no_faults(run: Run) -> Sequence[Fault]:
    """The further checks of a run that has none."""
    return ()


def validate(
    values: dict[str, Any],
    tree: ConfigTree,
    origin: str,
    key_owner: KeyOwner = unknown_owner,
    further: Callable[[Run], Sequence[Fault]] = no_faults,
) -> Run:
    """Check resolved values; `tree` has the source of each, and the faults that are known already. `further`
    returns the faults that only the caller knows.

    Raises ConfigError with all faults. The rest of a configuration is checked without the values that have
    a fault; what may only follow from their absence is left out.
    """
    faults, faulty = list(tree.faults), set(tree.faulty)
    run: Run | None = None
    for _ in range(_MAX_ROUNDS):
        try:
            run = Run.model_validate(values)
            break
        except ValidationError as error:
            found = schema_faults(error, values, tree, origin, key_owner)
        meant = {each.meant for each in found if each.meant is not None}
        faults += [each.fault for each in found if not _may_follow(each, faulty | meant)]
        places = list(dict.fromkeys(place for each in found for place in _places(each, values)))
        faulty |= meant | set(places)
        values = copy.deepcopy(values)
        # The last item of a list is replaced first.
        if not all(_replace(values, keys) for keys in reversed(places)):
            break
    if run is not None:
        faults += _faults_between_sections(run, tree, origin, faulty)
        faults += further(run)
    if faults:
        raise config_error(faults)
    assert run is not None
    return run


def _faults_between_sections(run: Run, tree: ConfigTree, origin: str, faulty: set[KeyPath]) -> list[Fault]:
    file = tree.locator(origin)(())
    return [
        Fault(
            FaultKind.UNSUPPORTED,
            f"{tree.source_named_in(reason) or file}: {sentence(users_words(reason, tree))}",
        )
        for reason in run_faults(run)
        if not _names_one(reason, faulty)
    ]


def _may_follow(found: SchemaFault, faulty: set[KeyPath]) -> bool:
    """Whether a fault may follow from another one, at the same place or named in its reason."""
    if found.between_fields:
        return _names_one(found.reason, faulty)
    return any(keys[: len(found.keys)] == found.keys or found.keys[: len(keys)] == keys for keys in faulty)


def _names_one(reason: str, faulty: set[KeyPath]) -> bool:
    """Whether a sentence names one of the keys, by its last name."""
    words = set(re.findall(r"\w+", reason))
    names = ([name for name in keys if not name.isdigit()] for keys in faulty)
    return any(named[-1] in words for named in names if named)


def _places(found: SchemaFault, values: Any) -> list[KeyPath]:
    """The values to replace: those that a fault between fields names, or else the section or the value."""
    section = value_at(values, found.keys)
    if not found.between_fields or not isinstance(section, dict):
        return [found.keys]
    named = [(*found.keys, name) for name in re.findall(r"\w+", found.reason) if name in section]
    return list(dict.fromkeys(named)) or [found.keys]


def _replace(values: Any, keys: KeyPath) -> bool:
    """Delete a value, so that its default counts; one that is missing becomes a placeholder. Returns whether
    the path is one of a value."""
    container = value_at(values, keys[:-1])
    if isinstance(container, list):
        if not isinstance(value_at(values, keys), dict):
            return _replace(values, keys[:-1])
        container.pop(int(keys[-1]))
    elif not keys or not isinstance(container, dict):
        return False
    elif keys[-1] in container:
        del container[keys[-1]]
    else:
        field = field_at(keys, values)
        is_section = field is not None and section_types(field.annotation)
        container[keys[-1]] = {} if is_section else _PLACEHOLDER
    return True
