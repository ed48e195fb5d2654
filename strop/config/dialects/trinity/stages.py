"""Trinity's `stages`: the file becomes one for each, with the stage's sections in the place of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.dialects.row import ANY, TEXT, UNSET, Row, mapped
from strop.config.draft import Draft, Keys, Source, plain
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

_KEY = "stages"
_SECTIONS = ("mode", "algorithm", "buffer", "explorer", "trainer")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's file, as if it stood alone."""

    name: str
    draft: Draft

    def begin_with(self, before: str, model: Path) -> None:
        """Start from the model that the stage before leaves."""
        source = Source("stage", f"the model of stage {before}")
        self.draft.set(("model", "model_path"), str(model), source)


def split_stages(draft: Draft) -> list[Stage]:
    """The stages in order; none where the file has none. Raises ConfigError for what no stage can say."""
    written = draft.values.get(_KEY) or []
    where = draft.source((_KEY,)) or draft.said.get((_KEY,))
    if not isinstance(written, list) or not all(isinstance(stage, dict) for stage in written):
        raise ConfigError(f"{where}: {_KEY} is a list of stages, each with a stage_name; got {written!r}.")
    for index, stage in enumerate(written):
        _check(draft, index, stage, [other.get("stage_name") for other in written[:index]])
    return [_stage(draft, index, stage) for index, stage in enumerate(written)]


def _check(draft: Draft, index: int, stage: dict[str, Any], before: list[Any]) -> None:
    name, here = stage.get("stage_name"), f"{draft.said[(_KEY, str(index))]}: {_KEY}.{index}"
    if not isinstance(name, str) or not name or name.startswith(".") or set(name) & {"/", "\\"}:
        raise ConfigError(f"{here}.stage_name: write a name without slashes; got {name!r}.")
    if name in before:
        raise ConfigError(f"{here}.stage_name: {name!r} is another stage's name already; write another one.")
    for key in stage:
        if key not in ("stage_name", *_SECTIONS):
            where = draft.said[(_KEY, str(index), key)]
            raise ConfigError(
                f"{where}: a stage has no key {key}{did_you_mean(key, _SECTIONS)} It has stage_name, "
                f"{', '.join(_SECTIONS)}; all else stands above {_KEY}, for the whole file."
            )


def _stage(draft: Draft, index: int, written: dict[str, Any]) -> Stage:
    above = (_KEY, str(index))
    rest = {key: value for key, value in draft.values.items() if key != _KEY}
    own = Draft(plain(rest), {keys: source for keys, source in draft.said.items() if keys[:1] != (_KEY,)})
    sections = {key: value for key, value in written.items() if key in _SECTIONS and value is not None}
    for key, value in sections.items():
        own.set((key,), plain(value), draft.said[(*above, key)])
        for inside, source in _inside(draft, (*above, key)):
            own.said[(key, *inside)] = source
    inherits = "trainer" not in sections and own.has(("trainer", "total_steps"))
    if inherits and "total_steps" in sections.get("buffer", {}):
        own.delete(("trainer", "total_steps"))  # the stage's own length comes before one that it inherits
    name = str(written["stage_name"])
    own.set(("name",), f"{own.get(('name',)) or 'rft'}-{name}", draft.said[(*above, "stage_name")])
    return Stage(name, own)


def _inside(draft: Draft, above: Keys) -> Iterator[tuple[Keys, Source]]:
    for keys, source in draft.said.items():
        if keys[: len(above)] == above and len(keys) > len(above):
            yield keys[len(above) :], source


ROWS: tuple[Row, ...] = (
    mapped(
        "stages.0.stage_name",
        UNSET,
        kind=TEXT,
        note="unique; the stage's run is <name>-<stage_name>, and begins with the model of the one before",
    ),
    *(
        mapped(f"stages.0.{name}", UNSET, kind=ANY, note="in place of the file's own")
        for name in ("mode", "algorithm.*", "buffer.*", "explorer.*", "trainer.*")
    ),
)
