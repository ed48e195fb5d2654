"""Reader of AzureML jobs: the components that Strop has, their arguments, and job files of `az ml job create`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strop.compat.azureml.component import Component, ComponentArguments, parse_arguments
from strop.compat.azureml.deepspeed import read_deepspeed
from strop.compat.azureml.grpo import GRPO
from strop.compat.azureml.job import parse_requirements
from strop.compat.azureml.verl_components import RFT_TRAINER, VERL_TRAINER, rename_keys
from strop.compat.ledger.key_mapping import KeyOwnerHint, no_key_owner
from strop.compat.ledger.reader import read_dialect
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, split_key
from strop.config.load.loader import Job, LoadedRun
from strop.config.machine import OverriddenKey, here_requested
from strop.config.paths import existing_path
from strop.config.semantic_diff import learning_fields, recorded_differences
from strop.errors import ConfigError, Fault, FaultKind
from strop.printable import did_you_mean

COMPONENTS: Mapping[str, Component] = {
    component.name: component for component in (RFT_TRAINER, VERL_TRAINER, GRPO)
}


def find_component(name: str) -> Component:
    """A component by its Strop name or its AzureML name. Raises ConfigError for an unknown name."""
    known = {**COMPONENTS, **{component.azureml_name: component for component in COMPONENTS.values()}}
    if name not in known:
        hint = did_you_mean(name, known) or "."
        raise ConfigError(f"Unknown component {name!r}{hint} Known components: {', '.join(COMPONENTS)}.")
    return known[name]


_REFERENCE = re.compile(r"\$\{\{\s*parent\.inputs\.(\w+)\s*\}\}")
_INSTEAD = (
    "write the inputs of one job, as a file of `input: value` lines or as strop component NAME --input value."
)


@dataclass(frozen=True, slots=True)
class JobFile:
    """Inputs and outputs of a job."""

    tree: ConfigTree
    """Sections `inputs` and `outputs`, or a flat mapping of inputs."""
    here: bool = False
    """Whether the job's environment variables have STROP_HERE."""


def read_job(tree: ConfigTree, file: Path) -> JobFile:
    """The job of a file, which may be a pipeline's only one. Other files are returned as they are.

    Raises ConfigError for a pipeline of several jobs, and for an input that only a workspace knows.
    """
    if not isinstance(tree.values.get("jobs"), dict):
        _take_paths(tree, ("inputs",), file)
        return JobFile(tree)
    names = list(tree.values["jobs"])
    if len(names) != 1 or not isinstance(tree.get(("jobs", names[0])), dict):
        raise ConfigError(
            f"{tree.sources[('jobs',)]}: this file is an AzureML pipeline of {len(names)} jobs, and Strop reads "
            f"those of one; {_INSTEAD}"
        )
    at: KeyPath = ("jobs", names[0])
    _take_paths(tree, ("inputs",), file)
    _take_paths(tree, (*at, "inputs"), file)
    job = ConfigTree()
    for section in ("inputs", "outputs"):
        for name, value in (tree.get((*at, section)) or {}).items():
            source = tree.sources[(*at, section, name)]
            job.set((section, name), _resolved(tree, value, f"{source}: {name}"), source)
    variables = tree.get((*at, "environment_variables")) or {}
    return JobFile(job, here=str(variables.get("STROP_HERE", "0")).lower() in ("1", "true"))


def _take_paths(tree: ConfigTree, section: KeyPath, file: Path) -> None:
    """Replace AzureML's mappings of a type with a path by the path, which is relative to the file."""
    inputs = tree.get(section)
    for name, value in inputs.items() if isinstance(inputs, dict) else ():
        if isinstance(value, dict):
            tree.set((*section, name), _plain(value, file), tree.sources[(*section, name)])


def _plain(value: dict[str, Any], file: Path) -> Any:
    path = value.get("path")
    if path is None:
        return value.get("default")
    remote = ":" in str(path) or Path(str(path)).is_absolute()
    return path if remote else os.path.normpath(file.parent / str(path))


def _resolved(tree: ConfigTree, value: Any, where: str) -> Any:
    """The value of a job's input; one that refers to an input of the pipeline is that input's."""
    if not isinstance(value, str) or "${{" not in value:
        return value
    match = _REFERENCE.fullmatch(value.strip())
    if match is None or not tree.has(("inputs", match[1])):
        raise ConfigError(f"{where} is {value}, which only a workspace knows; {_INSTEAD}")
    return tree.get(("inputs", match[1]))


_GPUS = ("trainer", "n_gpus_per_node")
_ENGINE = ("actor_rollout_ref", "rollout", "name")
_MAX_SHOWN = 60
"""Maximum number of characters of an input's text in a message."""


def read_component(
    name: str,
    arguments: Sequence[str],
    *,
    here: bool = False,
    places: Mapping[str, Source] | None = None,
    key_owner: KeyOwnerHint = no_key_owner,
) -> Job:
    """Read a component's arguments as AzureML passes them: `--input value` or `--input=value`.

    `places` has the places in a file at which inputs are set, by input name. Raises ConfigError for an input
    or value that is not accepted, and PlacementError for hardware and engines that this machine does not
    have, unless `here` or STROP_HERE overrides them.
    """
    component = find_component(name)
    parsed = parse_arguments(component, arguments, key_owner=key_owner)
    names = dict(component.input_names) | {part.key: part.name for part in parsed.inputs}
    try:
        here = here_requested(here)
        tree = _config_tree(component, parsed, places or {})
        if component.serving_engine and tree.has(_GPUS) and not here:
            tree.set(_ENGINE, component.serving_engine, Source("dialect", f"the image of {component.name}"))
        loaded = read_dialect(component.read_ledger, tree, here=here, key_owner=key_owner)
    except ConfigError as error:
        raise error.reworded(lambda message: rename_keys(message, names)) from None
    loaded = _in_free_folder(loaded)
    override = parsed.values.get("pypi_packages_override", "")
    outputs = tuple((output, Path(folder)) for output, folder in parsed.outputs)
    return Job(_with_input_names(loaded, names), parse_requirements(override), outputs)


def _config_tree(
    component: Component, parsed: ComponentArguments, places: Mapping[str, Source]
) -> ConfigTree:
    """The parsed values under the keys by which the component's ledger reads them."""
    tree = ConfigTree(faults=list(parsed.faults))
    tree.faulty |= {split_key(part.key) for part in component.accepted if part.name in parsed.doubtful}
    for part in parsed.inputs:
        text = parsed.values[part.name]
        try:
            if part.name == "deepspeed_config":
                for keys, value in read_deepspeed(Path(text)):
                    tree.set((part.key, *keys), value, Source("file", text))
                continue
            tree.set(split_key(part.key), part.read(text), _source(part.name, text, places))
        except ConfigError as error:
            tree.faults += (Fault(FaultKind.WRONG_TYPE, fault.message) for fault in error.faults)
            tree.faulty.add(split_key(part.key))
    for output, folder in parsed.outputs:
        if output.content == "run":
            tree.set(split_key(component.run_folder_key), folder, _source(output.name, folder, places))
    return tree


def _in_free_folder(loaded: LoadedRun) -> LoadedRun:
    """The run, named by what it learns if another job in this working directory has its folder. A job with an output
    for the run folder keeps its name."""
    run, recorded = loaded.run, loaded.run.folder_path / "run.yaml"
    try:
        is_free = not existing_path(recorded) or not recorded_differences(recorded, run)
    except (ConfigError, OSError, ValueError):
        return loaded  # The start of the run reports a damaged folder.
    if run.folder is not None or is_free:
        return loaded
    learned = {key: str(value) for key, value in learning_fields(run).items() if key != "trainer.duration"}
    digest = hashlib.sha256(json.dumps(learned, sort_keys=True).encode()).hexdigest()
    named = run.model_copy(update={"name": f"{run.name}-{digest[:8]}"})
    note = (
        f"{run.folder_path.resolve()} is the run folder of another job; this one's is {named.folder_path.resolve()}, "
        "and the same command resumes from it"
    )
    sources = {**loaded.sources, "name": Source("dialect", "another job has the folder `run`")}
    return replace(loaded, run=named, sources=MappingProxyType(sources), notes=(*loaded.notes, f"{note}."))


def _source(name: str, text: str, places: Mapping[str, Source]) -> Source:
    return places.get(name) or Source("override", f"--{name}={text[:_MAX_SHOWN]}")


def _with_input_names(loaded: LoadedRun, names: Mapping[str, str]) -> LoadedRun:
    """The same run with the input's name in place of every ledger key in sources and notes."""
    sources = {
        field: replace(
            source,
            location=rename_keys(source.location, names),
            foreign_key=rename_keys(source.foreign_key, names),
        )
        for field, source in loaded.sources.items()
    }
    overridden = tuple(
        OverriddenKey(rename_keys(item.key, names), item.value, item.replacement)
        for item in loaded.overridden
    )
    notes = tuple(rename_keys(note, names) for note in loaded.notes)
    return replace(loaded, sources=MappingProxyType(sources), overridden=overridden, notes=notes)
