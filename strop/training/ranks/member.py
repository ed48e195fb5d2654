"""One rank's own side of the group: what it holds, and what it does when it is told."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from strop.training.ranks.messages import Save, Setting
from strop.training.ranks.part import files_of, write_part

T = TypeVar("T")


class Member:
    """A process of the group, with the engines that it has by their names."""

    def __init__(self, setting: Setting) -> None:
        """Returns as soon as all ranks are there."""
        self.device, self.store = setting.join()
        self.node = platform.node()
        self.engines: dict[str, Any] = {}

    def make(self, name: str, build: Callable[[], T]) -> T:
        """Build an engine, from then on called by its name."""
        self.engines[name] = engine = build()
        return engine

    def begin(self, save: Save) -> Callable[[], None]:
        """Take a snapshot; what is returned writes it, in any thread, and tells the others."""
        return partial(write_part, save, files_of(save, self.engines[save.engine]), self.store)
