"""Configurations to compose: those that a tool ships, and the selection of one by Hydra's options or by a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strop.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigSelection:
    """The primary configuration, and the folders in which configurations are searched."""

    file: Path | None = None
    """Primary configuration as a file."""
    name: str | None = None
    """Name of the primary configuration (`--config-name`); None for the program's own."""
    path: str | None = None
    """Folder of the primary configuration (`--config-path`)."""
    folder: str | None = None
    """Additional folder that is searched (`--config-dir`)."""

    def folders(self) -> list[Path]:
        """The folders that are searched, in order; those of a `pkg://` path are not among them."""
        named = [] if self.file is None else [str(self.file.parent)]
        named += [name for name in (self.path, self.folder) if name is not None]
        return [Path(name.removeprefix("file://")) for name in named if not name.startswith("pkg://")]

    def primary(self, default: str) -> str:
        """Name of the primary configuration, without `.yaml`. Raises ConfigError for a file and a name."""
        if self.file is not None and self.name is not None:
            raise ConfigError(
                f"--config {self.file} and --config-name {self.name} both name the configuration; write one."
            )
        name = self.file.name if self.file is not None else self.name or default
        return name.removesuffix(".yaml").removesuffix(".yml")


def select(file: Path | None, selection: ConfigSelection | None) -> ConfigSelection:
    """The selection with a file, if one is given."""
    selection = selection or ConfigSelection()
    return selection if file is None else replace(selection, file=file)


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
