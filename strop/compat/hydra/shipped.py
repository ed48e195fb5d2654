"""Configurations that a tool ships with itself: their names, their groups, and the values that each one sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShippedConfig:
    """A configuration of the tool. A ledger has its default values; this has what differs from them."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Values by dotted key, relative to the configuration's package."""
    defaults: tuple[Any, ...] = ()
    """Defaults list, as Hydra's YAML files have it."""
    package: str | None = None
    """Package header; None for the package that Hydra derives from the group."""


@dataclass(frozen=True, slots=True)
class ShippedConfigs:
    """Configurations that a tool ships."""

    tool: str
    configs: Mapping[str, ShippedConfig]
    """Configurations by path, such as `ppo_trainer` or `actor/dp_actor`."""
    packages: tuple[str, ...] = ()
    """Search path entries that mean these configurations, such as `pkg://verl.trainer.config`."""

    def primary_names(self) -> list[str]:
        """Names of the configurations outside groups."""
        return [name for name in self.configs if "/" not in name]

    def groups(self) -> set[str]:
        """Names of the config groups."""
        return {name.rpartition("/")[0] for name in self.configs if "/" in name}
