"""`trainer.trainer_config` is verl's configuration: its keys mean what verl's ledger says, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from strop.config.dialects.row import Pair, Read, Row
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.presets import without_critic
from strop.config.dialects.verl import LEDGER as VERL
from strop.config.schema import Run
from strop.errors import ConfigError

PREFIX = "trainer.trainer_config."
_OUTSIDE: Mapping[str, Callable[[Theirs], Any]] = {
    "algorithm.adv_estimator": lambda theirs: None if without_critic(theirs) else "gae",
    "critic.model.path": lambda theirs: theirs["model.critic_model_path"] or theirs["model.model_path"],
    "critic.ppo_mini_batch_size": lambda theirs: None,
}
"""verl's keys that Trinity says elsewhere: a step is one update, of its critic too."""
_OURS = {"critic.model.path": "model.critic_model_path"}
"""Where Trinity has a key of verl's outside `trainer_config`."""


@dataclass(frozen=True)
class _Inside(Theirs):
    """Trinity's configuration, as verl's conversions see it."""

    outer: Theirs

    def __getitem__(self, dotted: str) -> Any:
        if dotted in _OUTSIDE:
            return _OUTSIDE[dotted](self.outer)
        if self.outer.ledger.find(PREFIX + dotted) is not None:
            return self.outer[PREFIX + dotted]
        row = VERL.find(dotted)
        return None if row is None else row.default

    def wrote(self, dotted: str) -> bool:
        return self.outer.wrote(PREFIX + dotted)

    def fault(self, dotted: str, reason: str) -> ConfigError:
        return self.outer.fault(PREFIX + dotted, reason)


@cache
def pair(read: Read) -> Read:
    """verl's read, and the write beside it, for Trinity's configuration; one for each, as rows share them."""
    inside = through(read)
    if not isinstance(read, Pair):
        return inside
    write = read.write

    def written(run: Run) -> Mapping[str, Any]:
        return {_OURS.get(key, PREFIX + key): value for key, value in write(run).items()}

    return Pair(inside, written)


@cache
def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for Trinity's configuration."""
    return lambda theirs, *value: function(_Inside(theirs), *value)


def verl_row(key: str, default: Any) -> Row:
    """verl's row, with the default of Trinity's page."""
    row = VERL.find(key)
    assert row is not None, key
    read = row.read and pair(row.read)
    off, can = row.off and through(row.off), row.can and through(row.can)
    return replace(
        row, theirs=PREFIX + key, default=default, read=read, off=off, can=can, stated=True, on_page=True
    )
