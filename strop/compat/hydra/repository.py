"""Repository of configurations for Hydra's defaults lists: YAML files of a user, and what a tool ships."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from posixpath import normpath
from typing import Any

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from strop.compat.hydra.selection import ShippedConfig, ShippedConfigs
from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.load.yaml_file import read_bounded, read_yaml

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)\s*$", re.MULTILINE)


class Repository(ConfigRepository):
    """Configurations by path. A file in one of the folders takes precedence over a shipped configuration."""

    def __init__(self, folders: Sequence[Path], shipped: ShippedConfigs, files: dict[str, Path]) -> None:
        """`files` has the files of configurations that are not found by their path."""
        super().__init__(ConfigSearchPathImpl())
        self._folders = folders
        self._shipped = shipped
        self._files = files
        self._trees: dict[str, ConfigTree | None] = {}

    def tree(self, config_path: str) -> ConfigTree | None:
        """The values of a configuration with their sources, and its `defaults`; None if there is none."""
        path = normpath(config_path).removesuffix(".yaml")
        if path not in self._trees:
            self._trees[path] = self._read(path)
        return self._trees[path]

    def load_config(self, config_path: str) -> ConfigResult | None:
        """The defaults list and the package header of a configuration, as Hydra reads them."""
        tree = self.tree(config_path)
        if tree is None:
            return None
        path = normpath(config_path)
        listed = tree.values.get("defaults") or []
        content = {name: True for name in tree.values if name != "defaults"}
        return ConfigResult(
            provider="strop",
            path=str(self._file(path) or self._shipped.tool),
            config=OmegaConf.create(content),
            header={"package": self._package(path)},
            defaults_list=self._create_defaults_list(config_path, OmegaConf.create(listed)),
        )

    def group_exists(self, config_path: str) -> bool:
        """Whether a config group exists."""
        path = normpath(config_path)
        return path in self._shipped.groups() or any((folder / path).is_dir() for folder in self._folders)

    def config_exists(self, config_path: str) -> bool:
        """Whether a configuration exists."""
        return self.tree(config_path) is not None

    def get_group_options(
        self, group_name: str, results_filter: ObjectType | None = ObjectType.CONFIG
    ) -> list[str]:
        """Names of the configurations in a group."""
        above = f"{normpath(group_name)}/"
        names = {name.removeprefix(above) for name in self._shipped.configs if name.startswith(above)}
        names |= {file.stem for folder in self._folders for file in (folder / above).glob("*.yaml")}
        return sorted(names)

    def get_sources(self) -> list[Any]:
        """The search path; empty, because this repository reads its folders itself."""
        return []

    def _file(self, path: str) -> Path | None:
        if path in self._files:
            return self._files[path]
        found = (folder / f"{path}.yaml" for folder in self._folders)
        return next((file for file in found if file.is_file()), None)

    def _read(self, path: str) -> ConfigTree | None:
        file = self._file(path)
        if file is not None:
            return read_yaml(file)
        config = self._shipped.configs.get(path)
        return None if config is None else _shipped_tree(config, f"{self._shipped.tool}'s {path}")

    def _package(self, path: str) -> str | None:
        file = self._file(path)
        if file is not None:
            header = _PACKAGE.search(read_bounded(file))
            return header[1] if header else None
        return self._shipped.configs[path].package


def _shipped_tree(config: ShippedConfig, name: str) -> ConfigTree:
    tree = ConfigTree()
    for dotted, value in config.values.items():
        tree.set(split_key(dotted), value, Source("dialect", name))
    tree.values["defaults"] = list(config.defaults)
    return tree
