"""Ledger rows of Trinity's top-level keys (names, folder, `mode`, `stages`) and of its `monitor` and `log` sections."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import (
    MAPPING,
    STRING,
    UNSET,
    ForeignValues,
    InactiveCheck,
    KeyMapping,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    refused,
    unless,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.presets import algorithm_type, is_offline
from strop.compat.trinity.synchronizer import is_single_role
from strop.config.load.config_tree import ConfigTree, KeyPath, Source, to_plain
from strop.config.paths import check_file_name, existing_path
from strop.config.redact import remember_secret
from strop.config.schema import Run
from strop.config.schema.algorithm import OfflineAlgorithmConfig
from strop.errors import ConfigError, FaultKind, config_error
from strop.printable import did_you_mean


def write_mode(run: Run) -> Mapping[str, Any]:
    """Write the mode; offline algorithms have no explorer, so Trinity's mode for them is train."""
    is_offline_run = isinstance(run.algorithm, OfflineAlgorithmConfig) and run.mode == "both"
    return {"mode": "train" if is_offline_run else run.mode}


@written_by(write_mode)
def mode(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the mode. sft, cpt and dpo have no explorer; other algorithms may run explorer or trainer alone; bench
    evaluates checkpoints."""
    name = foreign["mode"]
    if name == "bench":
        return {"mode": name, "bench.initial_model": foreign["explorer.eval_on_startup"]}
    if is_offline(foreign):
        if name != "train":
            raise foreign.error_for(
                "mode",
                f"mode is {name}, but {algorithm_type(foreign)} trains on offline data without an explorer. "
                "Write mode: train.",
            )
        return {}
    if is_single_role(foreign) and not foreign["continue_from_checkpoint"]:
        raise foreign.error_for(
            "continue_from_checkpoint",
            f"continue_from_checkpoint is false, but in mode {name} explorer and trainer find each other by "
            "the run's name. Leave it true; for a new run, write another name in both files.",
        )
    return {"mode": name}


def write_folder(run: Run) -> Mapping[str, Any]:
    """Write the names and the checkpoint root, which is the parent of project and name."""
    folder = run.folder_path
    named = (folder.parent.name, folder.name) == (run.project, run.name)
    root = str(folder.parent.parent) if named else run.output
    return {
        "checkpoint_root_dir": root,
        "project": run.project,
        "name": run.name,
        "continue_from_checkpoint": run.resume != "never",
    }


@written_by(write_folder)
def folder(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the run folder `<checkpoint_root_dir>/<project>/<group>/<name>/`. A run that must not resume from an
    existing folder gets a timestamp in its name."""
    root, project, name = foreign["checkpoint_root_dir"], foreign["project"], foreign["name"]
    if foreign["group"]:
        root, project = str(Path(root) / project), foreign["group"]
    settings = {"output": root, "project": project, "name": name, "resume": "auto"}
    there = existing_path(Path(root) / project / name)
    if not foreign["continue_from_checkpoint"] and there and there.is_dir() and any(there.iterdir()):
        settings["name"] = f"{name}_{datetime.now():%Y%m%d%H%M%S}"
    return settings


_NO_SUGGESTIONS = "Strop suggests no changes of a configuration"
_row = partial(mapped, read=folder)
GLOBAL = (
    *unstated_defaults(_row("project", "Trinity-RFT", "project"), _row("name", "rft", "name")),
    mapped(
        "mode",
        "both",
        "mode",
        "bench.initial_model",
        read=mode,
        value_type=one_of("both", "train", "explore", "bench"),
        note="train under sft, cpt and dpo; bench evaluates all checkpoints of the run",
    ),
    _row(
        "checkpoint_root_dir",
        "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}",
        "output",
        value_type=STRING,
    ),
    _row(
        "continue_from_checkpoint",
        True,
        "name",
        "resume",
        note="false starts a new run, named <name>_<timestamp> if the folder is not empty",
    ),
    *not_on_page(no_effect("checkpoint_job_dir", UNSET, "Trinity sets it itself")),
    *versions(
        _row("group", "", "output", "project", note="a folder between project and name"),
        no_effect("ignore_validator_suggestions", False, _NO_SUGGESTIONS),
        no_effect("ignore_suggestions", False, _NO_SUGGESTIONS),
        since="0.3",
    ),
    *versions(
        refused(
            "cod.*",
            UNSET,
            "tasks are packed for the workflows of connect-the-dots, which belong to Trinity's research code and keep "
            "their state over the tasks of a pack; Strop gives a workflow one task at a time; remove it",
        ),
        since="0.6",
    ),
)
_TYPE, _ARGS = "monitor.monitor_type", "monitor.monitor_args"
_TRACKERS = ("wandb", "mlflow", "swanlab")
_MONITOR_ARGS = {
    "base_url": "record.wandb.base_url",
    "uri": "record.mlflow.tracking_uri",
    "workspace": "record.swanlab.workspace",
    "mode": "record.swanlab.mode",
}
"""Field of each argument, by its section that of one monitor."""


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Write the monitor, of which Trinity has one; the console is always on."""
    named = [name for name in run.record.monitors if name in _TRACKERS]
    kind = named[0] if named else "tensorboard" if "tensorboard" in run.record.monitors else None
    values: dict[str, Any] = {_TYPE: kind}
    for name, field in _MONITOR_ARGS.items():
        _, section, key = field.split(".")
        if section == kind:
            values[f"{_ARGS}.{name}"] = getattr(getattr(run.record, section), key)
    return values


@written_by(write_monitors)
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitor and its arguments; the console is always on, and TensorBoard's files are in the folder of
    Trinity's documentation."""
    kind = foreign[_TYPE]
    settings: dict[str, Any] = {
        "record.monitors": ["console", kind],
        "record.tensorboard": "monitor/tensorboard",
    }
    for name, field in _MONITOR_ARGS.items():
        value = foreign[f"{_ARGS}.{name}"]
        if field.split(".")[1] == kind and value is not None:
            settings[field] = value
    if kind in ("wandb", "swanlab") and foreign["group"]:
        settings[f"record.{kind}.group"] = foreign["group"]
    return settings


_VARIABLES = {
    "api_key": {"wandb": "WANDB_API_KEY", "swanlab": "SWANLAB_API_KEY"},
    "username": {"mlflow": "MLFLOW_TRACKING_USERNAME"},
    "password": {"mlflow": "MLFLOW_TRACKING_PASSWORD"},
}
"""Environment variable of each argument, by monitor."""


def _in_file(name: str) -> InactiveCheck:
    """Notice for a secret that a file holds, and no environment variable."""

    def notice(foreign: ForeignValues) -> str | None:
        variable, value = _VARIABLES[name][foreign[_TYPE]], foreign[f"{_ARGS}.{name}"]
        if not value or value == os.environ.get(variable):
            return None
        return (
            f"a secret does not belong in a file, and the run's own files do not get it; set the environment variable "
            f"{variable} instead, and remove the key"
        )

    return notice


def monitor_environment(foreign: ForeignValues) -> Mapping[str, str]:
    """The environment variables of the monitor's secrets, which this process prints by their names from now on."""
    found = {
        variables[foreign[_TYPE]]: str(foreign[f"{_ARGS}.{name}"])
        for name, variables in _VARIABLES.items()
        if foreign[_TYPE] in variables and foreign[f"{_ARGS}.{name}"]
    }
    for variable, value in found.items():
        if not variable.endswith("USERNAME"):
            remember_secret(variable, value)
    return found


def _argument_row(name: str) -> KeyMapping:
    field = _MONITOR_ARGS[name]
    inactive = unless(_TYPE, field.split(".")[1])
    return mapped(
        f"{_ARGS}.{name}", None, field, read=monitors, value_type=nullable(STRING), inactive=inactive
    )


MONITOR = (
    *unstated_defaults(
        mapped(
            _TYPE,
            "tensorboard",
            "record.monitors",
            "record.tensorboard",
            read=monitors,
            value_type=one_of("tensorboard", *_TRACKERS),
        ),
        mapped(_ARGS, None, note="by monitor_type", value_type=nullable(MAPPING)),
    ),
    *map(_argument_row, ("base_url", "uri")),
    *not_on_page(*map(_argument_row, ("workspace", "mode"))),
    *(
        mapped(
            f"{_ARGS}.{name}",
            None,
            note=f"the run gets it as {' or '.join(variables.values())}",
            value_type=nullable(STRING),
            inactive=unless(_TYPE, *variables),
            warn=_in_file(name),
        )
        for name, variables in _VARIABLES.items()
    ),
    *not_on_page(no_effect("monitor.cache_dir", UNSET, "Trinity sets it itself")),
    *versions(
        no_effect("monitor.detailed_stats", False, "evaluations always have all statistics"), since="0.4"
    ),
)
LOG = (
    no_effect(
        "log.level",
        "INFO",
        "a run prints all messages to the console",
        value_type=one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    *not_on_page(no_effect("log.save_dir", UNSET, "Trinity sets it itself")),
)
_STAGES = "stages"
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
    written = tree.values.get(_STAGES) or []
    where = tree.source((_STAGES,)) or tree.sources.get((_STAGES,))
    if not isinstance(written, list) or not all(isinstance(stage, dict) for stage in written):
        raise ConfigError(
            f"{where}: {_STAGES} must be a list of stages, each with a stage_name; got {written!r}."
        )
    for index, stage in enumerate(written):
        _check_stage(tree, index, stage, [other.get("stage_name") for other in written[:index]])
    return [_stage(tree, index, stage) for index, stage in enumerate(written)]


def _check_stage(tree: ConfigTree, index: int, stage: dict[str, Any], before: list[Any]) -> None:
    name, place = stage.get("stage_name"), f"{tree.sources[(_STAGES, str(index))]}: {_STAGES}.{index}"
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
            where = tree.sources[(_STAGES, str(index), key)]
            tree.add_fault(
                FaultKind.UNKNOWN_KEY,
                f"{where}: a stage has no key {key}{did_you_mean(key, _SECTIONS)} It has stage_name, "
                f"{', '.join(_SECTIONS)}; write all other keys outside {_STAGES}, for the whole file.",
            )


def _stage(tree: ConfigTree, index: int, written: dict[str, Any]) -> TrinityStage:
    above = (_STAGES, str(index))
    rest = {key: value for key, value in tree.values.items() if key != _STAGES}
    stage_tree = ConfigTree(
        to_plain(rest),
        {keys: source for keys, source in tree.sources.items() if keys[:1] != (_STAGES,)},
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
        )  # the stage's own length comes before one that it inherits
    name = str(written["stage_name"])
    stage_tree.set(
        ("name",), f"{stage_tree.get(('name',)) or 'rft'}-{name}", tree.sources[(*above, "stage_name")]
    )
    return TrinityStage(name, stage_tree)


def _inside(tree: ConfigTree, above: KeyPath) -> Iterator[tuple[KeyPath, Source]]:
    for keys, source in tree.sources.items():
        if keys[: len(above)] == above and len(keys) > len(above):
            yield keys[len(above) :], source


STAGES = (
    mapped(
        "stages.0.stage_name",
        UNSET,
        value_type=STRING,
        note="unique; the stage's run is <name>-<stage_name> and starts from the model of the previous stage",
    ),
    *(
        mapped(f"stages.0.{name}", UNSET, note="replaces the file's own section or value")
        for name in ("mode", "algorithm.*", "buffer.*", "explorer.*", "trainer.*")
    ),
)
