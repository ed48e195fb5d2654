"""Reading of what a command is given: a run file, a run's folder, or a file of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strop.config.load.config_tree import iter_values
from strop.config.load.loader import Job, is_run_folder, load_run
from strop.config.load.schema_faults import OwnerHint
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import expand_user
from strop.config.schema.run import all_keys


def read_any(
    path: Path, overrides: Sequence[str] = (), *, here: bool = False, dialect: str | None = None
) -> Job:
    """Read a run file, a run's folder, a file of another tool, or a Python script or notebook that trains with TRL,
    which is run up to its first `train()`; its overrides are its own arguments.

    A run file imports nothing of the packages for other tools. `dialect` is the file's tool, or `strop`; None detects
    it. Raises ConfigError and PlacementError as the readers do.
    """
    path = expand_user(path)
    if is_run_folder(path) or (dialect is None and path.suffix in (".yaml", ".yml") and _is_run_file(path)):
        return Job(load_run(path, overrides, here=here, key_owner=key_owner))
    from strop.compat.detect import read_file

    return read_file(path, overrides, here=here, dialect=dialect)


def key_owner(dotted: str, by_last_name: bool) -> OwnerHint:
    """Hint for a key that a run file does not have: the tools that have it."""
    from strop.compat.registry import run_file_key_owner  # 0.1 s: imports the keys of all tools

    return run_file_key_owner(dotted, by_last_name)


def _is_run_file(path: Path) -> bool:
    """Whether all sections of a file, and the keys in them, are those of a run file."""
    written = {".".join(keys[:2]) for keys, _ in iter_values(read_yaml(path).values) if keys}
    return bool(written) and written <= set(all_keys())
