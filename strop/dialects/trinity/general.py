"""Ledger rows of Trinity's global keys and its `monitor`, `trainer`, `service`, `data_processor` and `log`
sections."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.dialects.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    mapped,
    never,
    no_effect,
    only,
    placement,
    refused,
    unstated_defaults,
    written_by,
)
from strop.dialects.ledger.value_types import MAPPING, STRING, nullable, one_of
from strop.dialects.trinity import cluster
from strop.dialects.trinity.stages import ROWS as STAGES
from strop.dialects.trinity.topology import MODE
from strop.dialects.verl.trainer import every, frequency

_TRACKERS = ("wandb", "mlflow")


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
    """Read the run folder `<checkpoint_root_dir>/<project>/<name>/`. A run that must not resume from an
    existing folder gets a timestamp in its name."""
    root, project, name = foreign["checkpoint_root_dir"], foreign["project"], foreign["name"]
    settings = {"output": root, "project": project, "name": name, "resume": "auto"}
    there = existing_path(Path(root) / project / name)
    if not foreign["continue_from_checkpoint"] and there and there.is_dir() and any(there.iterdir()):
        settings["name"] = f"{name}_{datetime.now():%Y%m%d%H%M%S}"
    return settings


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Write the monitor; the console is always on."""
    return {"monitor.monitor_type": "tensorboard" if "tensorboard" in run.record.monitors else None}


@written_by(write_monitors)
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitors; the console is always on, and TensorBoard's files are in the folder of Trinity's
    page."""
    kind = foreign["monitor.monitor_type"]
    if kind in _TRACKERS:
        raise foreign.error_for(
            "monitor.monitor_type",
            f"Strop does not support monitor_type {kind} yet; write monitor_type: tensorboard.",
        )
    return {"record.monitors": ["console", "tensorboard"], "record.tensorboard": "monitor/tensorboard"}


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
        refused(
            "monitor.monitor_args",
            {},
            "Strop does not support wandb and mlflow yet; write monitor_type: tensorboard, which has no "
            "arguments",
            value_type=nullable(MAPPING),
            supported=lambda foreign, value: not value,
        ),
    ),
    *(
        refused(
            f"monitor.monitor_args.{name}",
            UNSET,
            "Strop does not support wandb and mlflow yet; write monitor_type: tensorboard, which has no "
            "arguments",
            supported=never,
        )
        for name in ("base_url", "api_key", "uri", "username", "password")
    ),
    cluster.TIMELINE,
)
TRAINER = (
    *unstated_defaults(
        cluster.name_row("trainer"),
        placement(
            "trainer.trainer_type",
            "verl",
            "Strop's trainer, configured with verl's keys",
            supported=only("verl"),
        ),
        mapped("trainer.save_interval", 0, "checkpoint.every", read=checkpointing, note="counts steps"),
    ),
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
    *(
        refused(
            f"service.data_juicer.{name}",
            UNSET,
            "Strop does not call Data-Juicer yet; prepare the data before the run and write its path",
            supported=never,
        )
        for name in ("server_url", "auto_start", "port")
    ),
    *(
        refused(
            f"data_processor.{name}",
            UNSET,
            "Strop does not support pipelines yet; prepare the data before the run and write its path",
            supported=never,
        )
        for name in (
            "task_pipeline.num_process",
            "task_pipeline.operators.0.name",
            "task_pipeline.operators.0.args",
            "task_pipeline.inputs",
            "task_pipeline.target_fields",
            "experience_pipeline.operators.0.name",
            "experience_pipeline.operators.0.args",
        )
    ),
    no_effect("log.level", "INFO", "a run prints all messages to the console", value_type=STRING),
    cluster.BY_NODE,
    *STAGES,
)
