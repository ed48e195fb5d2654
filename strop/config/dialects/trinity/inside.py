"""`trainer.trainer_config` is verl's configuration: its keys mean what verl's ledger says, once."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from strop.config.dialects.row import UNSET, Pair, Read, Row, also_off, beyond_the_page
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
    "trainer.nnodes": lambda theirs: theirs["cluster.node_num"],
    "trainer.n_gpus_per_node": lambda theirs: theirs["cluster.gpu_per_node"],
}
"""verl's keys that Trinity says elsewhere: a step is one update, of its critic too."""
_OURS = {"critic.model.path": "model.critic_model_path"}
"""Where Trinity has a key of verl's outside `trainer_config`."""
_SAME_AS = re.compile(r"\$\{([\w.]+)\}")


class _Inside(Theirs):
    """Trinity's configuration, as verl's conversions see it. Null is verl's own default where verl knows
    no null, and so is what Trinity's ledger does not have."""

    def __init__(self, outer: Theirs) -> None:
        self.outer = outer
        self.ledger = VERL
        self.here = outer.here
        inside = {key: row for key, row in outer.written.items() if key.startswith(PREFIX)}
        self.written = {key.removeprefix(PREFIX): row for key, row in inside.items()}

    def __getitem__(self, dotted: str) -> Any:
        if dotted in _OUTSIDE:
            return _OUTSIDE[dotted](self.outer)
        value, row = self.outer[PREFIX + dotted], VERL.find(dotted)
        if row is None or row.default is UNSET:
            return value
        if self.outer.ledger.find(PREFIX + dotted) and (value is not None or row.kind.fits(None)):
            return value
        same = _SAME_AS.fullmatch(str(row.default))
        return self[same[1]] if same else row.default

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
        values = {key: value for key, value in write(run).items() if key in _OURS or key not in _OUTSIDE}
        return {_OURS.get(key, PREFIX + key): value for key, value in values.items()}

    return Pair(inside, written)


@cache
def through(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function for Trinity's configuration."""
    return lambda theirs, *value: function(_Inside(theirs), *value)


def verl_row(key: str, default: Any) -> Row:
    """verl's row, with the default of Trinity's page; a critic's means something only where there is one."""
    row = VERL.find(key)
    assert row is not None, key
    read = row.read and pair(row.read)
    off, can, warn = (found and through(found) for found in (row.off, row.can, row.warn))
    inside = replace(
        row,
        theirs=PREFIX + key,
        default=default,
        read=read,
        off=off,
        can=can,
        warn=warn,
        stated=True,
        on_page=True,
    )
    critics = key.startswith("critic.") or key == "trainer.critic_warmup"
    return also_off(inside, without_critic) if critics else inside


def other_rows(sections: Sequence[str], known: Collection[str]) -> tuple[Row, ...]:
    """verl's rows of these sections that Trinity's page does not have, with verl's defaults."""
    found = []
    for row in VERL.rows:
        if row.theirs.startswith(tuple(sections)) and PREFIX + row.theirs not in known:
            default = row.default
            if isinstance(default, str):
                default = default.replace("${", "${" + PREFIX)
            found.append(verl_row(row.theirs, default))
    return beyond_the_page(*found)
