"""Stages: one configuration tree per stage, the rest of the file with the stage's overrides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import ConfigTree, Source, to_plain
from strop.config.names import check_file_name
from strop.config.schema.run import Run
from strop.config.schema.stage import StageConfig
from strop.config.suggest import closest, did_you_mean
from strop.errors import ConfigError, FaultKind, config_error

STAGES_KEY = "stages"


@dataclass(frozen=True, slots=True)
class StageConfigTree:
    """Stage with the configuration tree of its run."""

    name: str
    tree: ConfigTree
    sets_model: bool
    """Whether the stage has its own `model.path`."""


def split_stages(tree: ConfigTree) -> list[StageConfigTree]:
    """Return the stages in order; none for a file without stages. An unknown key of a stage is a fault of its
    tree. Raises ConfigError for a stage without a valid name."""
    return [_stage(tree, index, written) for index, written in enumerate(_written(tree))]


def set_initial_model(stage: StageConfigTree, before: str, model: Path) -> None:
    """Set the stage's model to that of the previous stage, unless the stage has its own."""
    if not stage.sets_model:
        stage.tree.set(("model", "path"), str(model), Source("stage", f"the model of stage {before}"))


def _written(tree: ConfigTree) -> list[Any]:
    stages = tree.values.get(STAGES_KEY) or []
    where = tree.source((STAGES_KEY,)) or tree.sources.get((STAGES_KEY,))
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ConfigError(f"{where}: {STAGES_KEY}: expected a list of stages, each with a `name`.")
    names = [stage.get("name") for stage in stages]
    for index, (stage, name) in enumerate(zip(stages, names, strict=True)):
        here = f"{tree.sources[(STAGES_KEY, str(index))]}: {STAGES_KEY}.{index}"
        try:
            check_file_name(name)
        except ValueError as error:
            raise config_error([*tree.faults, *ConfigError(f"{here}.name: {error}.").faults]) from None
        if name in names[:index]:
            tree.add_fault(
                FaultKind.UNSUPPORTED,
                f"{here}.name: {name!r} is the name of another stage too; write another name.",
            )
        for key in stage:
            if key not in StageConfig.model_fields:
                where = tree.sources[(STAGES_KEY, str(index), key)]
                message = f"{where}: {STAGES_KEY}.{index}.{key}: {_unknown(key)}"
                tree.add_fault(FaultKind.UNKNOWN_KEY, message)
    return [{key: stage[key] for key in stage if key in StageConfig.model_fields} for stage in stages]


def _unknown(key: str) -> str:
    if key in Run.model_fields:
        return "a stage cannot set this key, which applies to the whole file; write it outside of `stages`."
    near = closest(key, list(StageConfig.model_fields))
    return f"unknown key{did_you_mean(key, [near])}" if near else "unknown key."


def _stage(tree: ConfigTree, index: int, written: dict[str, Any]) -> StageConfigTree:
    above = (STAGES_KEY, str(index))
    rest = {key: value for key, value in tree.values.items() if key != STAGES_KEY}
    own = ConfigTree(
        to_plain(rest),
        {keys: source for keys, source in tree.sources.items() if keys[:1] != (STAGES_KEY,)},
        list(tree.faults),
        set(tree.faulty),
    )
    for key, value in written.items():
        if value is None and own.has((key,)):
            own.delete((key,))
        elif key != "name" and value is not None:
            own.merge((key,), to_plain(value), tree.sources[(*above, key)])
    for keys, source in _inside(tree, above):
        if keys != ("name",) and own.has(keys):
            own.sources[keys] = source
    name, source = str(written["name"]), tree.sources[(*above, "name")]
    own.set(("name",), f"{own.get(('name',)) or Run.model_fields['name'].default}-{name}", source)
    if own.get(("folder",)) is not None:
        own.set(("folder",), f"{own.get(('folder',))}/{name}", source)
    return StageConfigTree(name, own, sets_model=_sets_model(written))


def _inside(tree: ConfigTree, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Source]]:
    for keys, source in tree.sources.items():
        if keys[:2] == above and len(keys) > 2:
            yield keys[2:], source


def _sets_model(written: dict[str, Any]) -> bool:
    model = written.get("model")
    return isinstance(model, dict) and "path" in model
