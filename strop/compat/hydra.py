"""Composition of a tool's configuration as Hydra composes it: defaults lists, packages, groups, overrides.

Hydra's own resolution of defaults lists decides which configurations are merged, in which order and where, from a
repository of a user's YAML files and what a tool ships; the values are merged here, so that each one keeps its file
and line.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf

from strop.compat.ledger.key_mapping import KeyOwnerHint, Ledger
from strop.compat.ledger.reader import apply_overrides
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key
from strop.config.load.overrides import override_source, parse_valid_overrides
from strop.config.load.yaml_file import read_bounded, read_yaml
from strop.errors import ConfigError, Fault, FaultKind

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


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


_NOT_VALUES = ("_target_", "_convert_", "_recursive_")
"""Keys that name the Python class of a section in Hydra's files; the tool's classes are not used."""


_PLACEHOLDER = re.compile(r"([^=]+)=(<[^<>']*>)")
"""A value that the reader of a launch script is to fill in, such as `<path to the model>`."""


def read_command_line(
    ledger: Ledger,
    shipped: ShippedConfigs,
    default: str,
    overrides: Sequence[str],
    selection: ConfigSelection,
    key_owner: KeyOwnerHint,
) -> ConfigTree:
    """The values that a program would be started with. Raises ConfigError."""
    if any(not text.strip() for text in overrides):
        raise ConfigError(
            "a word of the command is blank: in a script, a backslash followed by a space ends the command, so that "
            "the lines after it are not part of it. Remove the space, or the comment, after the backslash."
        )
    tree, left = compose(selection, default, [_quote_placeholder(text) for text in overrides], shipped)
    return apply_overrides(ledger, tree, left, key_owner=key_owner)


def _quote_placeholder(override: str) -> str:
    found = _PLACEHOLDER.fullmatch(override)
    return f"{found[1]}='{found[2]}'" if found else override


def compose(
    selection: ConfigSelection, default: str, overrides: Sequence[str], shipped: ShippedConfigs
) -> tuple[ConfigTree, list[Override]]:
    """The values of the selected configuration, and the overrides of values, which are not applied yet.

    `default` is the name of the program's own configuration. Faults of overrides are added to the tree.
    Raises ConfigError for a configuration that does not exist and for a defaults list that cannot be
    resolved.
    """
    faults: list[Fault] = []
    parsed = parse_valid_overrides(overrides, faults, groups=True)
    try:
        tree, left = _compose(selection, default, parsed, shipped)
    except ConfigError as error:
        raise ConfigError(*faults, *error.faults) from None
    tree.faults += faults
    return tree, list(_without_groups(tree, left))


def _compose(
    selection: ConfigSelection, default: str, parsed: list[Override], shipped: ShippedConfigs
) -> tuple[ConfigTree, Sequence[Override]]:
    primary = selection.primary(default)
    if not _needs_hydra(selection, primary, default, parsed, shipped):
        return ConfigTree(), parsed
    from hydra._internal.defaults_list import create_defaults_list
    from hydra.errors import HydraException

    files = {} if selection.file is None else {primary: selection.file}
    repository = Repository(_folders(selection, primary, parsed, shipped), shipped, files)
    _require_primary(repository, selection, primary, shipped)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = create_defaults_list(
                repo=repository,
                config_name=primary,
                overrides_list=parsed,
                prepend_hydra=False,
                skip_missing=False,
            )
    except (HydraException, ValueError) as error:
        raise ConfigError(f"{_name(selection, primary)}: {_sentence(error)}") from None
    except TypeError:  # Hydra takes the options of a group in a list for text
        raise ConfigError(
            f"{_name(selection, primary)}: the list of options of a config group, in an override or a defaults list, "
            "has a value that is not text. Write names of configurations."
        ) from None
    tree = ConfigTree()
    for item in found.defaults:
        source = repository.tree(item.config_path or "")
        if source is not None:
            _overlay(tree, source, (), tuple(filter(None, (item.package or "").split("."))))
    return tree, found.config_overrides


def _needs_hydra(
    selection: ConfigSelection,
    primary: str,
    default: str,
    overrides: Sequence[Override],
    shipped: ShippedConfigs,
) -> bool:
    """Whether more than the default values of the program's own configuration is asked for."""
    groups = shipped.groups()
    has_values = primary in shipped.configs and bool(shipped.configs[primary].values)
    chosen = any(override.key_or_group in groups or override.package is not None for override in overrides)
    return chosen or primary != default or has_values or bool(selection.folders())


def _folders(
    selection: ConfigSelection, primary: str, overrides: Sequence[Override], shipped: ShippedConfigs
) -> list[Path]:
    """The folders that are searched: those of the command line, then the search path of the primary file."""
    folders = selection.folders()
    files = [selection.file] if selection.file else [folder / f"{primary}.yaml" for folder in folders]
    file = next((file for file in files if file.is_file()), None)
    entries: Any = None
    if file is not None:
        from strop.config.load.yaml_file import read_yaml

        entries = read_yaml(file).get(("hydra", "searchpath"))
    for override in overrides:
        if override.key_or_group == "hydra.searchpath":
            entries = override.value()
    for entry in entries if isinstance(entries, list) else []:
        if entry in shipped.packages or str(entry).startswith("pkg://"):
            continue  # Configurations of an installed package are not read; a missing one is named later.
        folders.append(Path(str(entry).removeprefix("file://")))
    return folders


def _require_primary(
    repository: Repository, selection: ConfigSelection, primary: str, shipped: ShippedConfigs
) -> None:
    if selection.file is not None and not selection.file.is_file():
        raise ConfigError(f"{selection.file}: there is no such file.")
    if not repository.config_exists(primary):
        where = " and ".join(map(str, selection.folders())) or "this folder"
        known = ", ".join(shipped.primary_names())
        raise ConfigError(
            f"--config-name {selection.name or primary}: {where} has no file {primary}.yaml, and "
            f"{shipped.tool} has no configuration of this name; it has {known}."
        )


def _name(selection: ConfigSelection, primary: str) -> str:
    return str(selection.file) if selection.file else f"configuration {primary}"


def _sentence(error: Exception) -> str:
    """Hydra's message without its list of folders, whose entries are not those of the command line."""
    text = str(error).partition("\nConfig search path:")[0]
    text = text.replace("\n\nAvailable options in", "; the options of").replace("':\n\t", "' are ")
    return " ".join(text.replace("\n\t", ", ").split()).rstrip(".") + "."


def _overlay(tree: ConfigTree, source: ConfigTree, keys: KeyPath, package: KeyPath) -> None:
    """Merge the values of `source` at `keys` into the package of `tree`; mappings are merged, all else is
    replaced."""
    value = source.get(keys) if keys else source.values
    target = (*package, *keys)
    if isinstance(value, dict) and (value or not keys):
        for name in value:
            if name not in _NOT_VALUES and not (name == "defaults" and not keys):
                _overlay(tree, source, (*keys, str(name)), package)
        return
    if isinstance(value, dict) and isinstance(tree.get(target), dict):
        return
    for depth in range(1, len(target)):
        above = tree.get(target[:depth])
        if above is not None and not isinstance(above, dict):
            tree.delete(target[:depth])
            break
    origin = source.nearest_source(keys) or Source("dialect", "shipped")
    tree.set(target, value, origin)
    for path, where in source.sources.items():
        if len(path) > len(keys) and path[: len(keys)] == keys:
            tree.sources[(*package, *path)] = where


def _without_groups(tree: ConfigTree, overrides: Sequence[Override]) -> Iterator[Override]:
    """The overrides of values; an override of a config group that does not exist is a fault of the tree."""
    for override in overrides:
        if override.package is None and "/" not in override.key_or_group:
            yield override
            continue
        if override.key_or_group.startswith("hydra/"):
            continue  # They choose the logging and the launcher of Hydra, which is not started.
        tree.add_fault(
            FaultKind.UNKNOWN_KEY,
            f"{override_source(override)}: there is no config group {override.key_or_group}; write a "
            "dotted key, or name the folder of the group with --config-dir.",
        )


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
