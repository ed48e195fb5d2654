"""A run file with stages becomes a draft for each: the rest of the file, and over it what the stage says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.draft import Draft, Source, plain
from strop.config.schema.run import Run
from strop.config.schema.stage import Stage
from strop.config.suggest import closest, did_you_mean
from strop.errors import ConfigError

KEY = "stages"


@dataclass(frozen=True, slots=True)
class StageDraft:
    """One stage's run, as it is written."""

    name: str
    draft: Draft
    says_model: bool
    """Whether the stage itself names the model that it begins with."""


def split_stages(draft: Draft) -> list[StageDraft]:
    """The stages in order; none where the file has none. Raises ConfigError for what no stage can say."""
    return [_stage(draft, index) for index in range(len(_written(draft)))]


def begin_with(stage: StageDraft, before: str, model: Path) -> None:
    """Give the stage the model that the one before leaves, unless it names its own."""
    if not stage.says_model:
        stage.draft.set(("model", "path"), str(model), Source("stage", f"the model of stage {before}"))


def _written(draft: Draft) -> list[Any]:
    stages = draft.values.get(KEY) or []
    where = draft.source((KEY,)) or draft.said.get((KEY,))
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ConfigError(f"{where}: {KEY}: expected a list of stages, each with a `name`.")
    names = [stage.get("name") for stage in stages]
    for index, (stage, name) in enumerate(zip(stages, names, strict=True)):
        here = f"{draft.said[(KEY, str(index))]}: {KEY}.{index}"
        if not isinstance(name, str) or not name or name.startswith(".") or set(name) & {"/", "\\"}:
            raise ConfigError(
                f"{here}.name: expected a name without slashes, by which the stage's folder is told from the "
                f"others', got {name!r}."
            )
        if name in names[:index]:
            raise ConfigError(f"{here}.name: {name!r} is another stage's name already; write another one.")
        for key in stage:
            if key not in Stage.model_fields:
                where = draft.said[(KEY, str(index), key)]
                raise ConfigError(f"{where}: {KEY}.{index}.{key}: {_unknown(key)}")
    return stages


def _unknown(key: str) -> str:
    if key in Run.model_fields:
        return "one for the whole file, not for a stage; write it above `stages`."
    near = closest(key, list(Stage.model_fields))
    return f"unknown key{did_you_mean(key, [near])}" if near else "unknown key."


def _stage(draft: Draft, index: int) -> StageDraft:
    written: dict[str, Any] = draft.values[KEY][index]
    above = (KEY, str(index))
    rest = {key: value for key, value in draft.values.items() if key != KEY}
    own = Draft(plain(rest), {keys: source for keys, source in draft.said.items() if keys[:1] != (KEY,)})
    for key, value in written.items():
        if value is None and own.has((key,)):
            own.delete((key,))
        elif key != "name" and value is not None:
            own.merge((key,), plain(value), draft.said[(*above, key)])
    for keys, source in _inside(draft, above):
        if keys != ("name",) and own.has(keys):
            own.said[keys] = source
    name, source = str(written["name"]), draft.said[(*above, "name")]
    own.set(("name",), f"{own.get(('name',)) or Run.model_fields['name'].default}-{name}", source)
    if own.get(("folder",)) is not None:
        own.set(("folder",), f"{own.get(('folder',))}/{name}", source)
    return StageDraft(name, own, says_model=_says_model(written))


def _inside(draft: Draft, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Source]]:
    for keys, source in draft.said.items():
        if keys[:2] == above and len(keys) > 2:
            yield keys[2:], source


def _says_model(written: dict[str, Any]) -> bool:
    model = written.get("model")
    return isinstance(model, dict) and "path" in model
