"""Stages of a Trinity file: splits the file into one configuration per stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import UNSET, KeyMapping, mapped
from strop.compat.ledger.value_types import ANY, STRING
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, to_plain
from strop.config.names import check_file_name
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError, FaultKind, config_error

_KEY = "stages"
_SECTIONS = ("mode", "algorithm", "buffer", "explorer", "trainer")


@dataclass(frozen=True, slots=True)
class TrinityStage:
    """The configuration of one stage, as a file of its own."""

    name: str
    tree: ConfigTree

    def start_from(self, before: str, model: Path) -> None:
        """Start from the final model of the previous stage."""
        source = Source("stage", f"the model of stage {before}")
        self.tree.set(("model", "model_path"), str(model), source)


def split_stages(tree: ConfigTree) -> list[TrinityStage]:
    """The stages in order; an empty list for a file without stages. An unknown key of a stage is a fault of its
    tree. Raises ConfigError for a stage without a valid name."""
    written = tree.values.get(_KEY) or []
    where = tree.source((_KEY,)) or tree.sources.get((_KEY,))
    if not isinstance(written, list) or not all(isinstance(stage, dict) for stage in written):
        raise ConfigError(
            f"{where}: {_KEY} must be a list of stages, each with a stage_name; got {written!r}."
        )
    for index, stage in enumerate(written):
        _check(tree, index, stage, [other.get("stage_name") for other in written[:index]])
    return [_stage(tree, index, stage) for index, stage in enumerate(written)]


def _check(tree: ConfigTree, index: int, stage: dict[str, Any], before: list[Any]) -> None:
    name, place = stage.get("stage_name"), f"{tree.sources[(_KEY, str(index))]}: {_KEY}.{index}"
    try:
        check_file_name(name)
    except ValueError as error:
        raise config_error([*tree.faults, *ConfigError(f"{place}.stage_name: {error}.").faults]) from None
    if name in before:
        raise ConfigError(
            f"{place}.stage_name: {name!r} is already the name of another stage; write another name."
        )
    for key in stage:
        if key not in ("stage_name", *_SECTIONS):
            where = tree.sources[(_KEY, str(index), key)]
            tree.add_fault(
                FaultKind.UNKNOWN_KEY,
                f"{where}: a stage has no key {key}{did_you_mean(key, _SECTIONS)} It has stage_name, "
                f"{', '.join(_SECTIONS)}; write all other keys outside {_KEY}, for the whole file.",
            )


def _stage(tree: ConfigTree, index: int, written: dict[str, Any]) -> TrinityStage:
    above = (_KEY, str(index))
    rest = {key: value for key, value in tree.values.items() if key != _KEY}
    stage_tree = ConfigTree(
        to_plain(rest),
        {keys: source for keys, source in tree.sources.items() if keys[:1] != (_KEY,)},
        list(tree.faults),
        set(tree.faulty),
    )
    sections = {key: value for key, value in written.items() if key in _SECTIONS and value is not None}
    for key, value in sections.items():
        stage_tree.set((key,), to_plain(value), tree.sources[(*above, key)])
        for inside, source in _inside(tree, (*above, key)):
            stage_tree.sources[(key, *inside)] = source
    inherits = "trainer" not in sections and stage_tree.has(("trainer", "total_steps"))
    if inherits and "total_steps" in sections.get("buffer", {}):
        stage_tree.delete(
            ("trainer", "total_steps")
        )  # the stage's stage_tree length comes before one that it inherits
    name = str(written["stage_name"])
    stage_tree.set(
        ("name",), f"{stage_tree.get(('name',)) or 'rft'}-{name}", tree.sources[(*above, "stage_name")]
    )
    return TrinityStage(name, stage_tree)


def _inside(tree: ConfigTree, above: KeyPath) -> Iterator[tuple[KeyPath, Source]]:
    for keys, source in tree.sources.items():
        if keys[: len(above)] == above and len(keys) > len(above):
            yield keys[len(above) :], source


ROWS: tuple[KeyMapping, ...] = (
    mapped(
        "stages.0.stage_name",
        UNSET,
        value_type=STRING,
        note="unique; the stage's run is <name>-<stage_name> and starts from the model of the previous stage",
    ),
    *(
        mapped(f"stages.0.{name}", UNSET, value_type=ANY, note="replaces the file's own section or value")
        for name in ("mode", "algorithm.*", "buffer.*", "explorer.*", "trainer.*")
    ),
)
