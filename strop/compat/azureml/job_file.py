"""A job's YAML as `az ml job create` reads it: its inputs, paths relative to the file, and pipelines of one job."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import ConfigTree, KeyPath
from strop.errors import ConfigError

_REFERENCE = re.compile(r"\$\{\{\s*parent\.inputs\.(\w+)\s*\}\}")
_INSTEAD = (
    "write the inputs of one job, as a file of `input: value` lines or as strop component NAME --input value."
)


@dataclass(frozen=True, slots=True)
class JobFile:
    """Inputs and outputs of a job."""

    tree: ConfigTree
    """Sections `inputs` and `outputs`, or a flat mapping of inputs."""
    here: bool = False
    """Whether the job's environment variables have STROP_HERE."""


def read_job(tree: ConfigTree, file: Path) -> JobFile:
    """The job of a file, which may be a pipeline's only one. Other files are returned as they are.

    Raises ConfigError for a pipeline of several jobs, and for an input that only a workspace knows.
    """
    if not isinstance(tree.values.get("jobs"), dict):
        _take_paths(tree, ("inputs",), file)
        return JobFile(tree)
    names = list(tree.values["jobs"])
    if len(names) != 1 or not isinstance(tree.get(("jobs", names[0])), dict):
        raise ConfigError(
            f"{tree.sources[('jobs',)]}: this file is an AzureML pipeline of {len(names)} jobs, and Strop reads "
            f"those of one; {_INSTEAD}"
        )
    at: KeyPath = ("jobs", names[0])
    _take_paths(tree, ("inputs",), file)
    _take_paths(tree, (*at, "inputs"), file)
    job = ConfigTree()
    for section in ("inputs", "outputs"):
        for name, value in (tree.get((*at, section)) or {}).items():
            source = tree.sources[(*at, section, name)]
            job.set((section, name), _resolved(tree, value, f"{source}: {name}"), source)
    variables = tree.get((*at, "environment_variables")) or {}
    return JobFile(job, here=str(variables.get("STROP_HERE", "0")).lower() in ("1", "true"))


def _take_paths(tree: ConfigTree, section: KeyPath, file: Path) -> None:
    """Replace AzureML's mappings of a type with a path by the path, which is relative to the file."""
    inputs = tree.get(section)
    for name, value in inputs.items() if isinstance(inputs, dict) else ():
        if isinstance(value, dict):
            tree.set((*section, name), _plain(value, file), tree.sources[(*section, name)])


def _plain(value: dict[str, Any], file: Path) -> Any:
    path = value.get("path")
    if path is None:
        return value.get("default")
    remote = ":" in str(path) or Path(str(path)).is_absolute()
    return path if remote else os.path.normpath(file.parent / str(path))


def _resolved(tree: ConfigTree, value: Any, where: str) -> Any:
    """The value of a job's input; one that refers to an input of the pipeline is that input's."""
    if not isinstance(value, str) or "${{" not in value:
        return value
    match = _REFERENCE.fullmatch(value.strip())
    if match is None or not tree.has(("inputs", match[1])):
        raise ConfigError(f"{where} is {value}, which only a workspace knows; {_INSTEAD}")
    return tree.get(("inputs", match[1]))
