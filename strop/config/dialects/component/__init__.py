"""AzureML's three components: `--input value` lines, as their jobs are started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from strop.config.dialects.component.deepspeed import read_deepspeed
from strop.config.dialects.component.grpo import GRPO
from strop.config.dialects.component.inputs import Component, Holds, Output
from strop.config.dialects.component.packages import packages
from strop.config.dialects.component.rft_trainer import RFT_TRAINER
from strop.config.dialects.component.verl_names import rename
from strop.config.dialects.component.verl_trainer import VERL_TRAINER
from strop.config.dialects.component.words import Given, given_words
from strop.config.dialects.read import read_dialect
from strop.config.draft import Draft, Source, split
from strop.config.load import Loaded
from strop.config.placement import SetAside, wants_here
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError

_SHOWN = 60
"""Of a value, so many characters stand in a message."""
_PROMISES: Mapping[Holds, str] = {
    "run": "the run, whose checkpoints the same command goes on from, and its report",
    "model": "the trained model, a LoRA merged",
    "mlflow": "the trained model as an MLflow model, a LoRA merged, and the checkpoints",
}
COMPONENTS = {part.name: part for part in (RFT_TRAINER, VERL_TRAINER, GRPO)}


@dataclass(frozen=True, slots=True)
class Job:
    """A run, and what a component's line asks for before and after it."""

    loaded: Loaded
    packages: tuple[str, ...] = ()
    """To be installed before anything heavy is imported."""
    outputs: tuple[tuple[Output, Path], ...] = ()
    """The declared outputs that the line names, each with its folder."""

    def folders(self, holds: Holds) -> tuple[Path, ...]:
        """Of the outputs that hold such a thing."""
        return tuple(folder for output, folder in self.outputs if output.holds == holds)

    @property
    def promises(self) -> tuple[str, ...]:
        """A line for each output: what it will hold at the end."""
        return tuple(
            f"output {output.name}, in {folder}: {_PROMISES[output.holds]}" for output, folder in self.outputs
        )


def component_of(name: str) -> Component:
    """A component by its name here or AzureML's. Raises ConfigError where there is none."""
    found = {**COMPONENTS, **{part.asset: part for part in COMPONENTS.values()}}
    if name not in found:
        hint = did_you_mean(name, found) or "."
        raise ConfigError(f"There is no component {name!r}{hint} There are {', '.join(COMPONENTS)}.")
    return found[name]


def read_component(
    name: str, words: Sequence[str], *, here: bool = False, places: Mapping[str, Source] | None = None
) -> Job:
    """Read what AzureML passes: `--input value` or `--input=value`, all of it text. `places` says of inputs
    by name where in a file they were written.

    Raises ConfigError for an input or value that cannot be taken, PlacementError for hardware and
    engines that are not here, unless `here` or STROP_HERE sets them aside.
    """
    component = component_of(name)
    given = given_words(component, words)
    names = dict(component.names) | {part.key: part.name for part in given.inputs}
    try:
        draft = _draft(component, given, places or {})
        loaded = read_dialect(component.reading, draft, here=wants_here(here))
    except ConfigError as error:
        raise type(error)(rename(str(error), names)) from None
    override = given.texts.get("pypi_packages_override", "")
    outputs = tuple((output, Path(folder)) for output, folder in given.outputs)
    return Job(_called(loaded, names), packages(override), outputs)


def _draft(component: Component, given: Given, places: Mapping[str, Source]) -> Draft:
    """The values that were given, under the keys by which the ledger reads them."""
    draft, faults = Draft(), []
    for part in given.inputs:
        text = given.texts[part.name]
        if part.name == "deepspeed_config":
            for keys, value in read_deepspeed(Path(text)):
                draft.set((part.key, *keys), value, Source("file", text))
            continue
        try:
            draft.set(split(part.key), part.read(text), _source(part.name, text, places))
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))
    for output, folder in given.outputs:
        if output.holds == "run":
            draft.set(split(component.folder_key), folder, _source(output.name, folder, places))
    return draft


def _source(name: str, text: str, places: Mapping[str, Source]) -> Source:
    return places.get(name) or Source("override", f"--{name}={text[:_SHOWN]}")


def _called(loaded: Loaded, names: Mapping[str, str]) -> Loaded:
    """The same, with every key called by its input's name."""
    sources = {
        field: replace(source, where=rename(source.where, names), theirs=rename(source.theirs, names))
        for field, source in loaded.sources.items()
    }
    aside = tuple(SetAside(rename(item.key, names), item.value, item.instead) for item in loaded.set_aside)
    notes = tuple(rename(note, names) for note in loaded.notes)
    return replace(loaded, sources=MappingProxyType(sources), set_aside=aside, notes=notes)


__all__ = ["COMPONENTS", "Component", "Job", "Output", "component_of", "read_component"]
