"""One run in another dialect's words, and what those words cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from strop.config.compare import FREE
from strop.config.dialects.component import COMPONENTS, Component, Job
from strop.config.dialects.component.inputs import text_of
from strop.config.dialects.theirs import Ledger
from strop.config.dialects.trinity import LEDGER as TRINITY
from strop.config.dialects.verl import LEDGER as VERL
from strop.config.dialects.verl.sft import LEDGER as VERL_SFT
from strop.config.dialects.write import Written, nested, write_dialect
from strop.config.explain import shown
from strop.config.load import Loaded, load_values
from strop.config.redact import redact
from strop.config.same import Difference, compare
from strop.config.save import said
from strop.config.schema import Run
from strop.config.schema.algorithm import Sft
from strop.config.schema.base import Section
from strop.config.schema.scoring import devices
from strop.config.suggest import did_you_mean
from strop.config.units import Amount
from strop.errors import ConfigError

_MEMORY = (
    "model.gradient_checkpointing",
    "rollout.engine",
    "trainer.engine",
    "trainer.microbatch",
    "trainer.optimizer.fused",
    "algorithm.critic.microbatch",
)
"""What changes memory, speed and rounding alone."""
_SHOWN = 40
TARGETS = ("strop", "verl", "trinity", *COMPONENTS)


@dataclass(frozen=True, slots=True)
class Unsaid:
    """A value of the run that the other dialect has no words for."""

    field: str
    value: str
    there: str
    """What it is there instead."""
    why: str

    @property
    def is_learned_from(self) -> bool:
        """Whether it changes what is learned, not only where, how fast, and what is kept and measured."""
        patterns = [pattern for known in (*FREE, *_MEMORY) for pattern in (known, f"{known}.*")]
        return not any(fnmatchcase(self.field, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Conversion:
    """A run in another dialect."""

    values: Mapping[str, Any]
    """Nested as in a file."""
    unsaid: tuple[Unsaid, ...]
    notes: tuple[str, ...]
    """What a reader has to do, or to know, before it runs there."""


def convert(job: Job, to: str) -> Conversion:
    """Say a run in another dialect. Raises ConfigError where that has no algorithm like its own."""
    to = next((part.name for part in COMPONENTS.values() if part.asset == to), to)
    if to not in TARGETS:
        raise ConfigError(
            f"There is no dialect {to!r}{did_you_mean(to, TARGETS)} Write one of: {', '.join(TARGETS)}."
        )
    if job.loaded.stages:
        raise ConfigError(
            "A run file with stages is several runs, and a conversion is of one: write a file for each, "
            "as `strop explain` shows them."
        )
    run = _without_set_aside(job.loaded)
    if to == "strop":
        values = _run_file(run)
        unsaid = tuple(
            _unsaid(found, "no key says it") for found in compare(run, load_values(values, here=True).run)
        )
    elif to in COMPONENTS:
        values, unsaid = _component(COMPONENTS[to], run)
    else:
        ledger = TRINITY if to == "trinity" else VERL_SFT if isinstance(run.algorithm, Sft) else VERL
        written = write_dialect(ledger, run)
        values, unsaid = nested(written.values), _all_unsaid(ledger, written, {})
    if to in COMPONENTS:
        values |= _beside(job, COMPONENTS[to])
    return Conversion(values, unsaid, tuple(_notes(job, to, values)))


def _without_set_aside(loaded: Loaded) -> Run:
    """A device that is not here was set aside for this machine, and says nothing about the next one."""
    run, aside = loaded.run, {item.key for item in loaded.set_aside}
    for field in devices(run):
        if field in aside:
            run = _changed(run, field.split("."), "auto")
    return run


def _changed(at: Any, way: Sequence[str], value: Any) -> Any:
    """A section, or a list of them, with another value at the end of the way."""
    if not way:
        return value
    if isinstance(at, tuple):
        index = int(way[0])
        return (*at[:index], _changed(at[index], way[1:], value), *at[index + 1 :])
    return at.model_copy(update={way[0]: _changed(getattr(at, way[0]), way[1:], value)})


def _run_file(run: Run) -> dict[str, Any]:
    """What differs from the defaults; one reward by its name."""
    values = said(run)
    functions = run.reward.functions
    if functions and values["reward"] == {"functions": [{"function": functions[0].function}]}:
        values["reward"] = functions[0].function
    return values


def _component(component: Component, run: Run) -> tuple[dict[str, Any], tuple[Unsaid, ...]]:
    """Inputs under their own names, and the output that is the run's folder."""
    inputs = {part.key: part for part in component.inputs}
    names = {key: part.name for key, part in inputs.items()}
    for output in component.outputs:
        if output.holds == "run":
            names[component.folder_key] = output.name

    def takes(key: str, value: Any) -> bool:
        return inputs[key].takes(value) if key in inputs else key in names

    required = [part.key for part in component.inputs if part.required]
    written = write_dialect(component.reading, run, takes=takes, always=required)
    values = {
        names[key]: text_of(value) if isinstance(value, list) else value
        for key, value in written.values.items()
    }
    return values, _all_unsaid(component.reading, written, names)


def _beside(job: Job, component: Component) -> dict[str, str]:
    """What a component's line asks for before and after the run, where this one can be asked for it too."""
    values = {}
    if job.packages and any(part.name == "pypi_packages_override" for part in component.inputs):
        values["pypi_packages_override"] = ",".join(job.packages)
    for output, folder in job.outputs:
        if output in component.outputs and output.holds != "run":
            values[output.name] = str(folder)
    return values


def _all_unsaid(ledger: Ledger, written: Written, names: Mapping[str, str]) -> tuple[Unsaid, ...]:
    return tuple(
        _unsaid(found, _why(ledger, found.field, names if ledger.dialect in COMPONENTS else None))
        for found in written.unsaid
    )


def _unsaid(found: Difference, why: str) -> Unsaid:
    return Unsaid(found.field, _show(found.field, found.first), _show(found.field, found.second), why)


def _why(ledger: Ledger, field: str, names: Mapping[str, str] | None) -> str:
    """Which of their keys comes nearest: one that says the field, or a part of it."""
    rows = [row for row in ledger.rows if names is None or row.theirs in names]
    exact = [row for row in rows if field in row.ours]
    inside = [row for row in rows if any(ours.startswith(f"{field}.") for ours in row.ours)]
    found = exact or inside
    if not found:
        return "no key says it"
    row = next((row for row in found if row.note), found[0])
    name = row.theirs if names is None else names[row.theirs]
    return f"{name} takes no such value" + (f" ({row.note})" if row.note else "")


def _show(field: str, value: Any) -> str:
    if isinstance(value, Section):
        text = str(redact(said(value)))
    elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
        text = str([redact(said(item)) for item in value])
    elif isinstance(value, Amount):
        text = str(value)
    else:
        text = shown(field.rpartition(".")[2], value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _notes(job: Job, to: str, values: Mapping[str, Any]) -> Iterator[str]:
    if job.loaded.set_aside:
        keys = ", ".join(f"{item.key}={item.value}" for item in job.loaded.set_aside)
        yield f"Where and how fast to run is not carried over: {keys}."
    if to in COMPONENTS:
        for part in COMPONENTS[to].inputs:
            if part.required and part.name not in values:
                yield f"{part.name} is required there, and nothing in this run says it: add it yourself."
    if job.packages and "pypi_packages_override" not in values:
        yield f"Nothing is installed there before the run; install {', '.join(job.packages)} yourself."
    for output, folder in job.outputs:
        if output.holds != "run" and output.name not in values:
            yield f"There is no {output.name} there, so nothing is written to {folder}."
    if redact(values) != values:
        yield "Secrets are written as ***: put them in yourself."
