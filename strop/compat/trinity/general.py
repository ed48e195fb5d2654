"""Ledger rows of Trinity's global keys and its `monitor`, `trainer`, `service`, `data_processor` and `log`
sections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    mapped,
    no_effect,
    not_on_page,
    only,
    placement,
    unless,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.ledger.value_types import BOOLEAN, MAPPING, STRING, nullable, one_of
from strop.compat.trinity import cluster, later_keys, monitor_secrets
from strop.compat.trinity.data_processor import ROWS as DATA_PROCESSOR
from strop.compat.trinity.stages import ROWS as STAGES
from strop.compat.trinity.topology import MODE
from strop.compat.verl.trainer import every, frequency
from strop.config.paths import existing_path
from strop.config.schema import Run

_TRACKERS = ("wandb", "mlflow", "swanlab")
_MONITOR_ARGS = {
    "base_url": "record.wandb.base_url",
    "uri": "record.mlflow.tracking_uri",
    "workspace": "record.swanlab.workspace",
    "mode": "record.swanlab.mode",
}


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


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Write the monitor, of which Trinity has one; the console is always on."""
    named = [name for name in run.record.monitors if name in _TRACKERS]
    kind = named[0] if named else "tensorboard" if "tensorboard" in run.record.monitors else None
    values: dict[str, Any] = {"monitor.monitor_type": kind}
    for name, field in _MONITOR_ARGS.items():
        _, section, key = field.split(".")
        if section == kind:
            values[f"monitor.monitor_args.{name}"] = getattr(getattr(run.record, section), key)
    return values


@written_by(write_monitors)
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitor and its arguments; the console is always on, and TensorBoard's files are in the folder of
    Trinity's page."""
    kind = foreign["monitor.monitor_type"]
    settings: dict[str, Any] = {
        "record.monitors": ["console", kind],
        "record.tensorboard": "monitor/tensorboard",
    }
    for name, field in _MONITOR_ARGS.items():
        value = foreign[f"monitor.monitor_args.{name}"]
        if field.split(".")[1] == kind and value is not None:
            settings[field] = value
    if kind in ("wandb", "swanlab") and foreign["group"]:
        settings[f"record.{kind}.group"] = foreign["group"]
    return settings


def write_checkpointing(run: Run) -> Mapping[str, Any]:
    """The checkpoint interval in steps; 0 saves only at the end."""
    often = frequency(run, run.checkpoint.every)
    return {"trainer.save_interval": 0 if often == -1 else often}


@written_by(write_checkpointing)
def checkpointing(foreign: ForeignValues) -> Mapping[str, Any]:
    """The checkpoint interval in steps; 0 saves only at the end."""
    return {"checkpoint.every": every(foreign["trainer.save_interval"])}


_SAVE_STRATEGIES = {"unrestricted": "all"} | {f"single_{one}": one for one in ("thread", "process", "node")}


def write_save_concurrency(run: Run) -> Mapping[str, Any]:
    """Write the save concurrency under Trinity's name."""
    foreign_names = {name: foreign_name for foreign_name, name in _SAVE_STRATEGIES.items()}
    return {"trainer.save_strategy": foreign_names[run.checkpoint.save_concurrency]}


@written_by(write_save_concurrency)
def save_concurrency(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read which ranks save a checkpoint concurrently."""
    return {"checkpoint.save_concurrency": _SAVE_STRATEGIES[foreign["trainer.save_strategy"]]}


def _argument_rows(*names: str) -> tuple[KeyMapping, ...]:
    """Rows of a monitor's arguments."""
    return tuple(
        mapped(
            f"monitor.monitor_args.{name}",
            None,
            _MONITOR_ARGS[name],
            read=monitors,
            value_type=nullable(STRING),
            inactive=unless("monitor.monitor_type", _MONITOR_ARGS[name].split(".")[1]),
        )
        for name in names
    )


GLOBAL = (
    *unstated_defaults(
        mapped("project", "Trinity-RFT", "project", read=folder),
        mapped("name", "rft", "name", read=folder),
    ),
    MODE,
    mapped(
        "checkpoint_root_dir",
        "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}",
        "output",
        read=folder,
        value_type=STRING,
    ),
    mapped(
        "continue_from_checkpoint",
        True,
        "name",
        "resume",
        read=folder,
        note="false starts a new run, named <name>_<timestamp> if the folder is not empty",
    ),
    cluster.NAMESPACE,
    *versions(
        mapped("group", "", "output", "project", read=folder, note="a folder between project and name"),
        no_effect(
            "ignore_validator_suggestions",
            False,
            "Strop suggests no changes of a configuration",
            value_type=BOOLEAN,
        ),
        no_effect(
            "ignore_suggestions", False, "Strop suggests no changes of a configuration", value_type=BOOLEAN
        ),
        since="0.3",
    ),
)
MONITOR = (
    *unstated_defaults(
        mapped(
            "monitor.monitor_type",
            "tensorboard",
            "record.monitors",
            "record.tensorboard",
            read=monitors,
            value_type=one_of("tensorboard", *_TRACKERS),
        ),
        mapped("monitor.monitor_args", None, note="by monitor_type", value_type=nullable(MAPPING)),
    ),
    *_argument_rows("base_url", "uri"),
    *not_on_page(*_argument_rows("workspace", "mode")),
    *monitor_secrets.ROWS,
    cluster.TIMELINE,
    *versions(
        no_effect(
            "monitor.detailed_stats", False, "evaluations always have all statistics", value_type=BOOLEAN
        ),
        since="0.4",
    ),
)
TRAINER = (
    *unstated_defaults(
        cluster.name_row("trainer"),
        placement(
            "trainer.trainer_type",
            "verl",
            "Strop's trainer, configured with verl's keys",
            supported=only("verl"),
            value_type=one_of("verl", "tinker"),
        ),
        mapped("trainer.save_interval", 0, "checkpoint.every", read=checkpointing, note="counts steps"),
    ),
    *later_keys.TRAINER,
)
SAVE_STRATEGY = mapped(
    "trainer.save_strategy",
    "unrestricted",
    "checkpoint.save_concurrency",
    read=save_concurrency,
    value_type=one_of(*_SAVE_STRATEGIES),
    note="which ranks save a checkpoint concurrently",
)
REST = (
    *DATA_PROCESSOR,
    no_effect(
        "log.level",
        "INFO",
        "a run prints all messages to the console",
        value_type=one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    cluster.BY_NODE,
    *STAGES,
)
