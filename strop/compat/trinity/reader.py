"""Ledger and reader of Trinity-RFT's configuration, a YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strop.compat.ledger.key_mapping import KeyOwnerHint, Ledger, no_key_owner
from strop.compat.ledger.reader import config_tree_from_overrides, read_dialect
from strop.compat.trinity import (
    algorithm,
    buffer,
    cluster,
    data_processor,
    explorer,
    general,
    inference_model,
    model,
    policy_loss,
    sample_strategy,
    synchronizer,
    tasksets,
    trainer,
    trainer_config,
)
from strop.compat.trinity.general import monitor_environment, split_stages
from strop.config.load.config_tree import ConfigTree, iter_values, resolve_interpolations, split_key
from strop.config.load.loader import LoadedRun
from strop.config.load.yaml_file import read_yaml
from strop.config.machine import here_requested
from strop.config.paths import existing_path, expand_user
from strop.errors import ConfigError, Fault, config_error

_CONFIG = "trainer.trainer_config"
_PATH = "trainer.trainer_config_path"
LEDGER = Ledger(
    "trinity",
    (  # A section's own row comes before the rows of its keys, whose defaults its null would hide.
        *general.GLOBAL,
        *algorithm.ROWS,
        *policy_loss.ROWS,
        *general.MONITOR,
        *model.ROWS,
        *cluster.ROWS,
        *tasksets.ROWS,
        *buffer.ROWS,
        *sample_strategy.ROWS,
        *buffer.EXPERIENCE_BUFFER,
        *explorer.ROWS,
        *inference_model.ROLLOUT_MODEL,
        *inference_model.AUXILIARY_MODELS,
        *synchronizer.ROWS,
        *trainer.ROWS,
        *data_processor.ROWS,
        *general.LOG,
        *general.STAGES,
        *trainer_config.ROWS,
    ),
    converts_text=True,
)


def read_trinity(
    path: Path, overrides: Sequence[str] = (), *, here: bool = False, key_owner: KeyOwnerHint = no_key_owner
) -> LoadedRun:
    """Read a Trinity-RFT file.

    Raises ConfigError for a key or value that is not accepted, and PlacementError for hardware and engines
    that this machine does not have, unless `here` or STROP_HERE overrides them.
    """
    tree = config_tree_from_overrides(LEDGER, overrides, path, key_owner=key_owner)
    here = here_requested(here)
    loaded: list[LoadedRun] = []
    before: tuple[str, Path] | None = None
    faults: list[Fault] = []
    notices: list[str] = []
    for stage in split_stages(tree):
        if before is not None:
            stage.start_from(*before)
        try:
            loaded.append(_read(stage.tree, path, here=here, key_owner=key_owner))
        except ConfigError as error:
            faults += error.faults
            notices += error.notices
            continue
        if loaded[-1].run.mode in ("both", "train"):
            before = (stage.name, loaded[-1].run.folder_path / "model")
    if faults:
        raise config_error(faults, [*(note for stage in loaded for note in stage.notes), *notices])
    if loaded:
        return replace(loaded[-1], stages=tuple(loaded))
    return _read(tree, path, here=here, key_owner=key_owner)


def _read(tree: ConfigTree, path: Path, *, here: bool, key_owner: KeyOwnerHint) -> LoadedRun:
    try:
        _insert_trainer_config(tree, path)
    except ConfigError as error:
        tree.faults += error.faults
    _forget_nulls(tree)
    _name_single_taskset(tree)
    return read_dialect(LEDGER, tree, here=here, key_owner=key_owner, environment=monitor_environment)


def _insert_trainer_config(tree: ConfigTree, path: Path) -> None:
    """Load the file of `trainer_config_path` into `trainer_config`."""
    trainer_config_path = tree.get(split_key(_PATH))
    if not trainer_config_path:
        return
    where = tree.source(split_key(_PATH))
    if tree.get(split_key(_CONFIG)):
        raise ConfigError(f"{where}: both {_CONFIG} and {_PATH} are set; write one of them.")
    file = expand_user(str(trainer_config_path))
    inner = read_yaml(file if file.is_absolute() or existing_path(file) else path.parent / file, regular=True)
    values = resolve_interpolations(inner.values, inner.locator(str(trainer_config_path)))
    for name, value in values.items():
        source = inner.source((name,))
        assert source is not None
        tree.set((*split_key(_CONFIG), name), value, source)
    for keys, source in inner.sources.items():
        if keys:
            tree.sources[(*split_key(_CONFIG), *keys)] = source


def _forget_nulls(tree: ConfigTree) -> None:
    """Remove the nulls of `trainer_config` that stand for the value of another key, or for a default."""
    section = tree.get(split_key(_CONFIG))
    for keys, value in list(iter_values(section, split_key(_CONFIG))) if isinstance(section, dict) else ():
        row = LEDGER.find_exact(".".join(keys)) if value is None else None
        if row is not None and not row.value_type.accepts(None):
            tree.delete(keys)


def _name_single_taskset(tree: ConfigTree) -> None:
    """Move the only item of `tasksets` to `taskset`, which means the same."""
    above = ("buffer", "explorer_input")
    listed, single = (*above, "tasksets"), (*above, "taskset")
    items = tree.get(listed)
    if not isinstance(items, list) or len(items) != 1 or not isinstance(items[0], dict) or tree.get(single):
        return
    sources = {keys[4:]: source for keys, source in tree.sources.items() if keys[:4] == (*listed, "0")}
    tree.set(single, items[0], tree.nearest_source((*listed, "0")) or tree.sources[listed])
    tree.sources |= {(*single, *keys): source for keys, source in sources.items() if keys}
    tree.delete(listed)
