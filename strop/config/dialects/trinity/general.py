"""Trinity's general settings, monitor, trainer and the rest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from strop.config.dialects.row import (
    MAPPING,
    TEXT,
    UNSET,
    mapped,
    never,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import cluster
from strop.config.dialects.trinity.parts import MODE
from strop.config.dialects.trinity.stages import ROWS as STAGES
from strop.config.dialects.verl.trainer import every, frequency
from strop.config.local import existing
from strop.config.schema import Run

_TRACKERS = ("wandb", "mlflow")


def write_folder(run: Run) -> Mapping[str, Any]:
    """The root is what stands above the two names."""
    whole = run.folder_path
    named = (whole.parent.name, whole.name) == (run.project, run.name)
    root = str(whole.parent.parent) if named else run.output
    return {
        "checkpoint_root_dir": root,
        "project": run.project,
        "name": run.name,
        "continue_from_checkpoint": run.resume != "never",
    }


@written_by(write_folder)
def folder(theirs: Theirs) -> Mapping[str, Any]:
    """`<checkpoint_root_dir>/<project>/<name>/`; where the run is not to go on, under a name of its own."""
    root, project, name = theirs["checkpoint_root_dir"], theirs["project"], theirs["name"]
    settings = {"output": root, "project": project, "name": name, "resume": "auto"}
    there = existing(Path(root) / project / name)
    if not theirs["continue_from_checkpoint"] and there and there.is_dir() and any(there.iterdir()):
        settings["name"] = f"{name}_{datetime.now():%Y%m%d%H%M%S}"
    return settings


def write_monitors(run: Run) -> Mapping[str, Any]:
    """The console is always there."""
    return {"monitor.monitor_type": "tensorboard" if "tensorboard" in run.record.monitors else None}


@written_by(write_monitors)
def monitors(theirs: Theirs) -> Mapping[str, Any]:
    """The console is always there; TensorBoard's files stand where the page says."""
    kind = theirs["monitor.monitor_type"]
    if kind in _TRACKERS:
        raise theirs.fault(
            "monitor.monitor_type", f"monitor_type {kind} is not built yet; write monitor_type: tensorboard."
        )
    return {"record.monitors": ["console", "tensorboard"], "record.tensorboard": "monitor/tensorboard"}


def write_saving(run: Run) -> Mapping[str, Any]:
    """By steps; 0 saves at the end alone."""
    often = frequency(run, run.checkpoint.every)
    return {"trainer.save_interval": 0 if often == -1 else often}


@written_by(write_saving)
def saving(theirs: Theirs) -> Mapping[str, Any]:
    """By steps; 0 saves at the end alone."""
    return {"checkpoint.every": every(theirs["trainer.save_interval"])}


_WRITERS = {"unrestricted": "all"} | {f"single_{one}": one for one in ("thread", "process", "node")}


def write_savers(run: Run) -> Mapping[str, Any]:
    """Under Trinity's name."""
    theirs = {ours: name for name, ours in _WRITERS.items()}
    return {"trainer.save_strategy": theirs[run.checkpoint.writers]}


@written_by(write_savers)
def savers(theirs: Theirs) -> Mapping[str, Any]:
    """Who writes a checkpoint at the same time."""
    return {"checkpoint.writers": _WRITERS[theirs["trainer.save_strategy"]]}


GLOBAL = (
    *unstated(
        mapped("project", "Trinity-RFT", "project", read=folder),
        mapped("name", "rft", "name", read=folder),
    ),
    MODE,
    mapped(
        "checkpoint_root_dir",
        "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}",
        "output",
        read=folder,
        kind=TEXT,
    ),
    mapped(
        "continue_from_checkpoint",
        True,
        "name",
        "resume",
        read=folder,
        note="false starts anew, as <name>_<timestamp> where the folder is taken",
    ),
    cluster.NAMESPACE,
)
MONITOR = (
    *unstated(
        mapped(
            "monitor.monitor_type",
            "tensorboard",
            "record.monitors",
            "record.tensorboard",
            read=monitors,
            kind=one_of("tensorboard", *_TRACKERS),
        ),
        refused(
            "monitor.monitor_args",
            {},
            "wandb and mlflow are not built yet; write monitor_type: tensorboard, which takes none",
            kind=or_null(MAPPING),
            can=lambda theirs, value: not value,
        ),
    ),
    *(
        refused(
            f"monitor.monitor_args.{name}",
            UNSET,
            "wandb and mlflow are not built yet; write monitor_type: tensorboard, which takes none",
            can=never,
        )
        for name in ("base_url", "api_key", "uri", "username", "password")
    ),
    cluster.TIMELINE,
)
TRAINER = (
    *unstated(
        cluster.name_row("trainer"),
        placement("trainer.trainer_type", "verl", "Strop's own trainer, by verl's keys", can=only("verl")),
        mapped("trainer.save_interval", 0, "checkpoint.every", read=saving, note="counts steps"),
    ),
)
SAVERS = mapped(
    "trainer.save_strategy",
    "unrestricted",
    "checkpoint.writers",
    read=savers,
    kind=one_of(*_WRITERS),
    note="who writes a checkpoint at the same time",
)
REST = (
    *(
        refused(
            f"service.data_juicer.{name}",
            UNSET,
            "Data-Juicer is not called yet; prepare the data first, and name it as the path",
            can=never,
        )
        for name in ("server_url", "auto_start", "port")
    ),
    *(
        refused(
            f"data_processor.{name}",
            UNSET,
            "pipelines are not built yet; prepare the data before the run, and name it as the path",
            can=never,
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
    no_effect("log.level", "INFO", "all that a run says is on the console", kind=TEXT),
    cluster.BY_NODE,
    *STAGES,
)
