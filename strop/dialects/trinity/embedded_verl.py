"""Ledger rows and converters of verl's keys inside Trinity's `trainer.trainer_config`, adapted from verl's
ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from strop.config.schema import Run
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyConverter,
    KeyMapping,
    ReadFunction,
    also_inactive,
    not_on_page,
)
from strop.dialects.trinity.presets import without_critic
from strop.dialects.verl.ppo_trainer import LEDGER as VERL
from strop.errors import ConfigError

PREFIX = "trainer.trainer_config."
_DERIVED_VALUES: Mapping[str, Callable[[ForeignValues], Any]] = {
    "algorithm.adv_estimator": lambda foreign: None if without_critic(foreign) else "gae",
    "critic.model.path": lambda foreign: foreign["model.critic_model_path"] or foreign["model.model_path"],
    "critic.ppo_mini_batch_size": lambda foreign: None,
    "trainer.nnodes": lambda foreign: foreign["cluster.node_num"],
    "trainer.n_gpus_per_node": lambda foreign: foreign["cluster.gpu_per_node"],
}
"""verl's keys whose values follow from other Trinity keys. A null mini-batch size of the critic means one
update per step."""
_TRINITY_KEYS = {"critic.model.path": "model.critic_model_path"}
"""Trinity keys outside `trainer_config` that stand for a key of verl."""
_SAME_AS = re.compile(r"\$\{([\w.]+)\}")


class _EmbeddedVerl:
    """ForeignValues of verl's keys inside a Trinity configuration, as verl's converters read them.

    A key has verl's default where Trinity's ledger has no row for it, and where it is null although verl does
    not accept null.
    """

    def __init__(self, outer: ForeignValues) -> None:
        self.outer = outer
        self.here = outer.here
        inside = {key: row for key, row in outer.written.items() if key.startswith(PREFIX)}
        self.written = {key.removeprefix(PREFIX): row for key, row in inside.items()}

    def __getitem__(self, dotted: str) -> Any:
        if dotted in _DERIVED_VALUES:
            return _DERIVED_VALUES[dotted](self.outer)
        value, row = self.outer[PREFIX + dotted], VERL.find(dotted)
        if row is None or row.default is UNSET:
            return value
        if self.outer.has_row(PREFIX + dotted) and (value is not None or row.value_type.accepts(None)):
            return value
        same = _SAME_AS.fullmatch(str(row.default))
        return self[same[1]] if same else row.default

    def has_row(self, dotted: str) -> bool:
        return VERL.find(dotted) is not None

    def is_set(self, dotted: str) -> bool:
        return self.outer.is_set(PREFIX + dotted)

    def error_for(self, dotted: str, reason: str) -> ConfigError:
        return self.outer.error_for(PREFIX + dotted, reason)


@cache
def embedded_converter(read: ReadFunction) -> ReadFunction:
    """verl's converter for keys inside Trinity's configuration; cached, because rows share converters."""
    inside = for_embedded(read)
    if not isinstance(read, KeyConverter):
        return inside
    write = read.write

    def written(run: Run) -> Mapping[str, Any]:
        values = {
            key: value
            for key, value in write(run).items()
            if key in _TRINITY_KEYS or key not in _DERIVED_VALUES
        }
        return {_TRINITY_KEYS.get(key, PREFIX + key): value for key, value in values.items()}

    return KeyConverter(inside, written)


@cache
def for_embedded(function: Callable[..., Any]) -> Callable[..., Any]:
    """verl's function for keys inside Trinity's configuration."""
    return lambda foreign, *value: function(_EmbeddedVerl(foreign), *value)


def verl_row(key: str, default: Any) -> KeyMapping:
    """verl's row with the default of Trinity's page; a critic's keys are active only with a critic."""
    row = VERL.find(key)
    assert row is not None, key
    read = row.read and embedded_converter(row.read)
    inactive, supported, warn = (
        found and for_embedded(found) for found in (row.inactive, row.supported, row.warn)
    )
    inside = replace(
        row,
        key=PREFIX + key,
        default=default,
        read=read,
        inactive=inactive,
        supported=supported,
        warn=warn,
        default_stated=True,
        on_page=True,
    )
    critics = key.startswith("critic.") or key == "trainer.critic_warmup"
    return also_inactive(inside, without_critic) if critics else inside


def remaining_rows(sections: Sequence[str], known: Collection[str]) -> tuple[KeyMapping, ...]:
    """verl's rows of these sections that are not `known` on Trinity's page, with verl's defaults."""
    found = []
    for row in VERL.rows:
        if row.key.startswith(tuple(sections)) and PREFIX + row.key not in known:
            default = row.default
            if isinstance(default, str):
                default = default.replace("${", "${" + PREFIX)
            found.append(verl_row(row.key, default))
    return not_on_page(*found)
