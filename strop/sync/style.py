"""Which weights a step is sampled with: pure functions of its number.

A run of `last` steps counts them from 1, and its weights are version n after step n. The explorer samples
step s while the trainer is at step s or an earlier one, so version s - 1 is the newest that there can be.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

from strop.config.schema.synchronizer import ByExplorer, ByTrainer, Fixed, Free, Style


@dataclass(frozen=True, slots=True)
class Window:
    """The versions that a step may be sampled with; the newest that is there is taken."""

    lowest: int
    highest: int | None = None
    """None: however new."""

    def newest(self, versions: list[int]) -> int | None:
        """The newest of these that fits."""
        fitting = [v for v in versions if v >= self.lowest and (self.highest is None or v <= self.highest)]
        return max(fitting, default=None)


def window(style: Style, step: int) -> Window:
    """What step `step` may be sampled with. Version 0 is the model as it is, which needs no trainer."""
    match style:
        case Fixed():
            every, ahead = int(style.every.count), int(style.ahead.count)
            version = max(0, step - 1 - ahead) // every * every
            return Window(version, version)
        case Free():
            return Window(max(0, step - 1 - int(style.max_staleness.count)))
        case ByTrainer() | ByExplorer():
            return Window(0)
        case _:
            assert_never(style)


def asks(style: Style, step: int) -> bool:
    """Whether the explorer, before it samples step `step`, asks the trainer for its newest weights."""
    return isinstance(style, ByExplorer) and step > 1 and (step - 1) % int(style.every.count) == 0


def publishes(style: Style, step: int, last: int) -> bool:
    """Whether the trainer publishes its weights after step `step` without being asked."""
    if step == last:
        return True
    return not isinstance(style, ByExplorer) and step % int(style.every.count) == 0


def kept(style: Style, versions: Collection[int], taken: int) -> list[int]:
    """Those of the published versions that the explorer may still want, which has taken `taken`: under
    `fixed` all from that on, under the others that one, for a step that is done again, and the newest."""
    if isinstance(style, Fixed):
        return [version for version in versions if version >= taken]
    return [version for version in versions if version in (taken, max(versions))]
