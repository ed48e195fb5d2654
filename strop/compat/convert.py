"""Conversion of a run to another dialect, with a report of the values that the dialect cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from strop.compat.azureml.component import Component, to_argument
from strop.compat.azureml.reader import COMPONENTS
from strop.compat.ledger.key_mapping import Ledger
from strop.compat.ledger.writer import WrittenConfig, unflatten, write_dialect
from strop.compat.trinity.reader import LEDGER as TRINITY
from strop.compat.trl.reader import IDENTIFYING_KEYS
from strop.compat.trl.reader import LEDGERS as TRL
from strop.compat.verl.ppo_trainer import LEDGER as VERL
from strop.compat.verl.sft import LEDGER as VERL_SFT
from strop.compat.verl.sft_engine import LEDGER as VERL_SFT_ENGINE
from strop.config.load.loader import Job, LoadedRun, load_values
from strop.config.machine import configured_devices
from strop.config.redact import redact
from strop.config.save import minimal_values
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.config.schema.base import Section
from strop.config.semantic_diff import NON_LEARNING_FIELDS, FieldDifference, semantic_diff
from strop.config.units import Amount, format_value
from strop.errors import ConfigError
from strop.printable import did_you_mean

_OF_RECIPES = ("algorithm.sppo_eta", "actor_rollout_ref.actor.dpo_beta", "trainer.ref_update_freq")
ALWAYS_WRITTEN = {
    **IDENTIFYING_KEYS,
    "verl": ("actor_rollout_ref.rollout.mode", "data.image_key", "trainer.logger", *_OF_RECIPES),
    "verl-sft": ("trainer.logger",),
    "verl-sft-engine": ("data.image_key", "data.messages_key", "trainer.logger"),
    "trinity": (
        "algorithm.bypass_old_logprobs",
        "model.enable_prompt_truncation",
        "synchronizer.sync_timeout",
    ),
}
"""Keys by dialect that are written even where they equal the default, because the default depends on the version
that the other keys belong to, because they select a recipe, because they identify the dialect or a version of it, or
because the reader tells a default that is written from one that is not."""
_NUMERICALLY_NEUTRAL = (
    "model.gradient_checkpointing",
    "rollout.engine",
    "trainer.engine",
    "trainer.microbatch",
    "trainer.optimizer.fused",
    "algorithm.critic.microbatch",
)
"""Fields that change only memory use, speed and rounding."""
_MAX_SHOWN = 40
CONVERSION_TARGETS = ("strop", "verl", "trinity", "trl", *COMPONENTS)


@dataclass(frozen=True, slots=True)
class UnsupportedValue:
    """A value of the run that the target dialect cannot express."""

    field: str
    value: str
    target_value: str
    """Value that the converted configuration has instead."""
    reason: str

    @property
    def affects_training(self) -> bool:
        """Whether the difference changes training, not only placement, speed, checkpoints and evaluation."""
        patterns = [
            pattern
            for known in (*NON_LEARNING_FIELDS, *_NUMERICALLY_NEUTRAL)
            for pattern in (known, f"{known}.*")
        ]
        return not any(fnmatchcase(self.field, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion."""

    values: Mapping[str, Any]
    """Values of the converted configuration, nested as in a file."""
    unsupported: tuple[UnsupportedValue, ...]
    notes: tuple[str, ...]
    """Notices on what a user must do or know before using the converted configuration."""


def convert(job: Job, to: str) -> Conversion:
    """Convert a run to the dialect `to`. Raises ConfigError where the dialect does not have the run's
    algorithm."""
    to = next((part.name for part in COMPONENTS.values() if part.azureml_name == to), to)
    if to not in CONVERSION_TARGETS:
        raise ConfigError(
            f"Unknown dialect {to!r}{did_you_mean(to, CONVERSION_TARGETS)} Write one of: "
            f"{', '.join(CONVERSION_TARGETS)}."
        )
    if job.loaded.stages:
        raise ConfigError(
            "A run file with stages has several runs, and strop convert converts one run: write one file per "
            "stage, as `strop explain` shows them."
        )
    run = _without_overridden(job.loaded)
    if to == "strop":
        values = _run_file(run)
        unsupported = tuple(
            _unsupported(found, "no key for it")
            for found in semantic_diff(run, load_values(values, here=True).run)
        )
    elif to in COMPONENTS:
        values, unsupported = _to_component(COMPONENTS[to], run)
    else:
        ledger, written = _write(to, run)
        values, unsupported = unflatten(written.values), _all_unsupported(ledger, written, {})
    if to in COMPONENTS:
        values |= _job_inputs(job, COMPONENTS[to])
    unsupported = (*unsupported, *_of_script(job.loaded))
    return Conversion(values, unsupported, tuple(_notes(job, to, values)))


def _of_script(loaded: LoadedRun) -> Iterator[UnsupportedValue]:
    """The Python objects of a script, which no file can name."""
    for reward in loaded.rewards:
        why = "a function of the script itself; move it to a file rewards.py, and import it"
        yield UnsupportedValue("reward.functions", str(reward.name), "absent", why)
    if loaded.callbacks:
        why = "callbacks are objects of the script"
        yield UnsupportedValue("callbacks", str(len(loaded.callbacks)), "absent", why)


def _write(to: str, run: Run) -> tuple[Ledger, WrittenConfig]:
    """Write a run in the keys of a tool; of verl's two SFT trainers in those that express more of it."""
    ledgers = (
        [VERL_SFT, VERL_SFT_ENGINE]
        if to == "verl" and isinstance(run.algorithm, SftConfig)
        else [_ledger(to, run)]
    )
    written, faults = [], []
    for ledger in ledgers:
        try:
            written.append(
                (ledger, write_dialect(ledger, run, always=ALWAYS_WRITTEN.get(ledger.dialect, ())))
            )
        except ConfigError as error:
            faults.append(error)
    if not written:
        raise faults[0]
    return min(written, key=lambda found: len(found[1].unsupported))


def _ledger(to: str, run: Run) -> Ledger:
    """The ledger of a tool that has the run's kind of algorithm."""
    if to == "trl":
        kind = "reward" if run.algorithm.type == "reward_model" else run.algorithm.type
        return next((ledger for name, ledger in TRL.items() if name == kind), TRL["grpo"])
    return TRINITY if to == "trinity" else VERL


def _without_overridden(loaded: LoadedRun) -> Run:
    """The run with `auto` in place of devices that `--here` overrode, because they apply only to this
    machine."""
    run, overridden = loaded.run, {item.key for item in loaded.overridden}
    for field in configured_devices(run):
        if field in overridden:
            run = _replace_at(run, field.split("."), "auto")
    return run


def _replace_at(section: Any, keys: Sequence[str], value: Any) -> Any:
    """A copy of a section or a tuple of sections, with another value at the path `keys`."""
    if not keys:
        return value
    if isinstance(section, tuple):
        index = int(keys[0])
        return (*section[:index], _replace_at(section[index], keys[1:], value), *section[index + 1 :])
    return section.model_copy(update={keys[0]: _replace_at(getattr(section, keys[0]), keys[1:], value)})


def _run_file(run: Run) -> dict[str, Any]:
    """Values that differ from the defaults; a single reward function is written as its name."""
    values = minimal_values(run)
    functions = run.reward.functions
    if functions and values["reward"] == {"functions": [{"function": functions[0].function}]}:
        values["reward"] = functions[0].function
    return values


def _to_component(component: Component, run: Run) -> tuple[dict[str, Any], tuple[UnsupportedValue, ...]]:
    """Convert a run to a component's inputs, and to the output that is the run folder."""
    inputs = {part.key: part for part in component.inputs}
    names = {key: part.name for key, part in inputs.items()}
    for output in component.outputs:
        if output.content == "run":
            names[component.run_folder_key] = output.name

    def accepts(key: str, value: Any) -> bool:
        return inputs[key].accepts(value) if key in inputs else key in names

    required = [part.key for part in component.inputs if part.required]
    written = write_dialect(component.read_ledger, run, accepts=accepts, always=required)
    values = {
        names[key]: to_argument(value) if isinstance(value, list) else value
        for key, value in written.values.items()
    }
    return values, _all_unsupported(component.read_ledger, written, names)


def _job_inputs(job: Job, component: Component) -> dict[str, str]:
    """The job's packages and outputs, as far as the target component has inputs and outputs for them."""
    values = {}
    if job.packages and any(part.name == "pypi_packages_override" for part in component.inputs):
        values["pypi_packages_override"] = ",".join(job.packages)
    for output, folder in job.outputs:
        if output in component.outputs and output.content != "run":
            values[output.name] = str(folder)
    return values


def _all_unsupported(
    ledger: Ledger, written: WrittenConfig, names: Mapping[str, str]
) -> tuple[UnsupportedValue, ...]:
    return tuple(
        _unsupported(
            found, _unsupported_reason(ledger, found.field, names if ledger.dialect in COMPONENTS else None)
        )
        for found in written.unsupported
    )


def _unsupported(difference: FieldDifference, why: str) -> UnsupportedValue:
    return UnsupportedValue(
        difference.field,
        _show(difference.field, difference.first),
        _show(difference.field, difference.second),
        why,
    )


def _unsupported_reason(ledger: Ledger, field: str, names: Mapping[str, str] | None) -> str:
    """The reason why a field is not expressed: names the closest key of the dialect and its note."""
    rows = [row for row in ledger.rows if names is None or row.key in names]
    exact = [row for row in rows if field in row.fields]
    inside = [row for row in rows if any(name.startswith(f"{field}.") for name in row.fields)]
    found = exact or inside
    if not found:
        return "no key for it"
    row = next((row for row in found if row.note), found[0])
    name = row.key if names is None else names[row.key]
    return f"{name} does not accept the value" + (f" ({row.note})" if row.note else "")


def _show(field: str, value: Any) -> str:
    if isinstance(value, Section):
        text = str(redact(minimal_values(value)))
    elif isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
        text = str([redact(minimal_values(item)) for item in value])
    elif isinstance(value, Amount):
        text = str(value)
    else:
        text = format_value(field.rpartition(".")[2], value)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _notes(job: Job, to: str, values: Mapping[str, Any]) -> Iterator[str]:
    if job.loaded.overridden:
        keys = ", ".join(f"{item.key}={item.value}" for item in job.loaded.overridden)
        yield f"Placement is not converted: {keys}."
    if to in COMPONENTS:
        for part in COMPONENTS[to].inputs:
            if part.required and part.name not in values:
                yield f"{part.name} is required, and this run has no value for it: add it yourself."
    if job.packages and "pypi_packages_override" not in values:
        yield f"The target does not install packages before the run: install {', '.join(job.packages)} yourself."
    for output, folder in job.outputs:
        if output.content != "run" and output.name not in values:
            yield f"The target has no output {output.name}, so nothing is written to {folder}."
    if redact(values) != values:
        yield "Secrets are written as ***: insert them yourself."
