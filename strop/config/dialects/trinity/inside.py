"""`trainer.trainer_config` is verl's configuration: its keys mean what verl's ledger says, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from strop.config.dialects.row import Pair, Read, Row
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import LEDGER as VERL
from strop.config.schema import Run
from strop.errors import ConfigError

PREFIX = "trainer.trainer_config."


@dataclass(frozen=True)
class _Inside(Theirs):
    """Trinity's configuration, as verl's conversions see it."""

    outer: Theirs

    def __getitem__(self, dotted: str) -> Any:
        if self.outer.ledger.find(PREFIX + dotted) is not None:
            return self.outer[PREFIX + dotted]
        row = VERL.find(dotted)
        return None if row is None else row.default

    def wrote(self, dotted: str) -> bool:
        return self.outer.wrote(PREFIX + dotted)

    def fault(self, dotted: str, reason: str) -> ConfigError:
        return self.outer.fault(PREFIX + dotted, reason)


@cache
def _pair(read: Read) -> Read:
    """verl's read, and the write beside it, for Trinity's configuration; one for each, as rows share them."""
    inside = _through(read)
    if not isinstance(read, Pair):
        return inside
    write = read.write

    def written(run: Run) -> Mapping[str, Any]:
        return {PREFIX + key: value for key, value in write(run).items()}

    return Pair(inside, written)


@cache
def _through(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for Trinity's configuration."""
    return lambda theirs, *value: function(_Inside(theirs), *value)


def verl_row(key: str, default: Any) -> Row:
    """verl's row, with the default of Trinity's page."""
    row = VERL.find(key)
    assert row is not None, key
    read = row.read and _pair(row.read)
    off, can = row.off and _through(row.off), row.can and _through(row.can)
    return replace(
        row, theirs=PREFIX + key, default=default, read=read, off=off, can=can, stated=True, on_page=True
    )
