"""Trinity-RFT's configuration: one YAML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import read_dialect
from strop.config.dialects.row import MAPPING, TEXT, mapped, or_null
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.trinity import (
    algorithm,
    buffer,
    cluster,
    explorer,
    general,
    model,
    parts,
    trainer_config,
)
from strop.config.dialects.trinity.stages import split_stages
from strop.config.draft import Draft, split
from strop.config.load import Loaded
from strop.config.local import existing, expanded
from strop.config.placement import wants_here
from strop.config.resolve import resolve
from strop.config.yaml_file import read_yaml
from strop.errors import ConfigError

_CONFIG = "trainer.trainer_config"
_PATH = "trainer.trainer_config_path"
LEDGER = Ledger(
    "trinity",
    (
        *general.GLOBAL,
        *algorithm.ROWS,
        *general.MONITOR,
        *model.MODEL,
        *cluster.ROWS,
        *buffer.ROWS,
        *explorer.EXPLORER,
        *parts.ROWS,
        *general.TRAINER,
        buffer.TOTAL_STEPS,
        general.SAVERS,
        mapped(_CONFIG, None, note="verl's keys, each in a row of its own", kind=or_null(MAPPING)),
        mapped(_PATH, "", note="a file with the same keys", kind=or_null(TEXT)),
        *general.REST,
        *trainer_config.ROWS,
    ),
)


def read_trinity(path: Path, overrides: Sequence[str] = (), *, here: bool = False) -> Loaded:
    """Read a Trinity-RFT file. Raises ConfigError for a key or value that cannot be taken, PlacementError
    for hardware and engines that are not here, unless `here` or STROP_HERE sets them aside."""
    draft = draft_of(LEDGER, overrides, path)
    here = wants_here(here)
    loaded: list[Loaded] = []
    before: tuple[str, Path] | None = None
    for stage in split_stages(draft):
        if before is not None:
            stage.begin_with(*before)
        loaded.append(_read(stage.draft, path, here=here))
        if loaded[-1].run.mode in ("both", "train"):
            before = (stage.name, loaded[-1].run.folder_path / "model")
    return replace(loaded[-1], stages=tuple(loaded)) if loaded else _read(draft, path, here=here)


def _read(draft: Draft, path: Path, *, here: bool) -> Loaded:
    _insert_config(draft, path)
    return read_dialect(LEDGER, draft, here=here)


def _insert_config(draft: Draft, path: Path) -> None:
    """Put the keys of `trainer_config_path` in `trainer_config`'s place."""
    other = draft.get(split(_PATH))
    if not other:
        return
    where = draft.source(split(_PATH))
    if draft.get(split(_CONFIG)):
        raise ConfigError(f"{where}: both {_CONFIG} and {_PATH} are written; write one of them.")
    file = expanded(str(other))
    inner = read_yaml(file if file.is_absolute() or existing(file) else path.parent / file)
    values = resolve(inner.values, inner.locator(str(other)))
    for name, value in values.items():
        source = inner.source((name,))
        assert source is not None
        draft.set((*split(_CONFIG), name), value, source)
    for keys, source in inner.said.items():
        if keys:
            draft.said[(*split(_CONFIG), *keys)] = source
