"""Ledger rows of verl's `trainer` section, and of its settings of Ray, profilers and Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    NO_RAY,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    ValueConversion,
    ValueType,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
    written_by,
)
from strop.compat.verl import engine, switches
from strop.compat.verl.critic import critic
from strop.compat.verl.engine import NO_PROFILER
from strop.config.schema import Run
from strop.config.schema.record import MonitorName
from strop.config.schema.run import to_steps
from strop.config.units import Amount

_MONITORS = get_args(MonitorName)
"""Monitors of the run file."""
_LOCAL_MONITORS = ("console", "tensorboard")
"""Monitors that need no further package and no service: those of a run that does not set the key."""
_OTHER_MONITORS = ("vemlp_wandb", "clearml", "file", "rl_logging_board", "json_eval")
"""verl's further monitors, which a run without them does not need: they only show metrics."""
MONITOR_NAMES = ValueType(
    STRING_OR_LIST.description, lambda value: value == [] or STRING_OR_LIST.accepts(value)
)
"""Type of `trainer.logger`; an empty list means no monitor."""
_ALL_ANSWERS = 1_000_000
"""Number of responses that shows all of an evaluation, for which verl has a negative number."""
_ANSWERS = ValueConversion(
    lambda count: _ALL_ANSWERS if count < 0 else count, lambda count: -1 if count == _ALL_ANSWERS else count
)
_LENGTHS = {"steps": "trainer.total_training_steps", "epochs": "trainer.total_epochs"}
_UNREACHED_EPOCHS = 1_000_000
"""Number of epochs that is written where only the number of steps ends a run."""


def write_duration(run: Run) -> Mapping[str, Any]:
    """Write the duration in steps or epochs; a duration in updates must be a whole number of steps."""
    length, end = to_steps(run, run.trainer.duration), run.trainer.stop_after
    if length is None or length.unit not in _LENGTHS:
        return {}
    epochs = {"trainer.total_epochs": _UNREACHED_EPOCHS} if length.unit == "steps" else {}
    limit = {} if end is None else {_LENGTHS[end.unit]: end.count}
    return {**epochs, **limit, _LENGTHS[length.unit]: length.count}


@written_by(write_duration)
def duration(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration: schedules span the number of steps, if set, and the epochs may end the run before."""
    if switches.is_fully_async(foreign):
        return switches.duration(foreign)
    steps, epochs = foreign["trainer.total_training_steps"], foreign["trainer.total_epochs"]
    if steps is None:
        return {"trainer.duration": f"{epochs} epochs"}
    is_limit = epochs < _UNREACHED_EPOCHS
    return {
        "trainer.duration": f"{steps * switches.steps_per_version(foreign)} steps",
        "trainer.stop_after": f"{epochs} epochs" if is_limit else None,
    }


@written_by(write_duration)
def duration_in_epochs(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the duration: schedules span the epochs, and the number of steps may end the run before."""
    steps, epochs = foreign["trainer.total_training_steps"], foreign["trainer.total_epochs"]
    return {
        "trainer.duration": f"{epochs} epochs",
        "trainer.stop_after": None if steps is None else f"{steps} steps",
    }


@written_by(
    lambda run: {
        "trainer.project_name": run.project,
        "trainer.experiment_name": run.name,
        "trainer.default_local_dir": str(run.folder_path),
    }
)
def folder(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the names and the folder; `default_local_dir` is the run folder itself."""
    settings = {"project": foreign["trainer.project_name"]}
    settings |= {"name": name} if (name := foreign["trainer.experiment_name"]) else {}
    if foreign.is_set("trainer.default_local_dir"):
        return {**settings, "folder": foreign["trainer.default_local_dir"]}
    return {**settings, "output": "checkpoints"}


@written_by(lambda run: {"trainer.logger": list(run.record.monitors)})
def monitors(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the monitors. Those that Strop does not have are left out: `metrics.jsonl` has what they show."""
    names = _named_monitors(foreign)
    unknown = [name for name in names if name not in (*_MONITORS, *_OTHER_MONITORS)]
    if unknown:
        raise foreign.error_for(
            "trainer.logger",
            f"trainer.logger has {', '.join(unknown)}, which is not a monitor of verl; write "
            f"trainer.logger=[{','.join(_MONITORS)}], or one of them.",
        )
    known = _MONITORS if foreign.is_set("trainer.logger") else _LOCAL_MONITORS
    return {"record.monitors": [name for name in names if name in known]}


def _named_monitors(foreign: ForeignValues) -> list[str]:
    """The names; a list in quotes, which scripts within another shell's quotes have, is read as a list."""
    configured = foreign["trainer.logger"]
    if not isinstance(configured, str):
        return list(configured)
    if configured.startswith("[") and configured.endswith("]"):
        return [name.strip(" '\"") for name in configured[1:-1].split(",") if name.strip()]
    return [configured]


def lacking_monitors(foreign: ForeignValues) -> str | None:
    """Notice for monitors that Strop does not have."""
    lacking = [name for name in _named_monitors(foreign) if name in _OTHER_MONITORS]
    if not lacking:
        return None
    return f"without {', '.join(lacking)}, which Strop does not have yet; metrics.jsonl has all metrics"


@written_by(lambda run: {"trainer.val_only": run.mode == "bench"}, off={"trainer.val_only": False})
def mode(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read whether the run only evaluates."""
    return {"mode": "bench"}


def write_rollout_files(run: Run) -> Mapping[str, Any]:
    """Write a folder where the rollouts of every step are written."""
    every = to_steps(run, run.record.rollouts_every)
    is_every = every is not None and (every.count, every.unit) == (1, "steps")
    return {"trainer.rollout_data_dir": str(run.folder_path / "rollouts") if is_every else None}


@written_by(write_rollout_files)
def rollout_files(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read whether the rollouts of every step are written."""
    return {"record.rollouts_every": "1 steps"} if foreign["trainer.rollout_data_dir"] else {}


@written_by(lambda run: {"trainer.save_freq": frequency(run, run.checkpoint.every)})
def checkpointing(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the checkpoint interval; -1 saves only at the end."""
    return {"checkpoint.every": every(foreign["trainer.save_freq"] * switches.steps_per_version(foreign))}


@written_by(
    lambda run: {
        "trainer.remove_previous_ckpt_in_save": False,
        "trainer.max_actor_ckpt_to_keep": run.checkpoint.keep,
    }
)
def max_checkpoints(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the maximum number of kept checkpoints; by default all are kept."""
    if foreign["trainer.remove_previous_ckpt_in_save"]:
        return {"checkpoint.keep": 1}
    return {"checkpoint.keep": foreign["trainer.max_actor_ckpt_to_keep"]}


@written_by(lambda run: {"trainer.test_freq": frequency(run, run.evaluate.every)})
def evaluation_schedule(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the evaluation interval; -1 evaluates only at the start. The fully asynchronous trainer counts weight
    versions, and does not evaluate at the end."""
    interval = foreign["trainer.test_freq"] * switches.steps_per_version(foreign)
    at_end = interval > 0 and not switches.is_fully_async(foreign)
    return {"evaluate.every": every(interval), "evaluate.at_end": at_end}


def every(count: int, unit: str = "steps") -> str:
    """An interval in run-file syntax; -1 and 0 mean never."""
    return f"{count} {unit}" if count > 0 else "never"


def frequency(run: Run, often: Amount | None, unit: str = "steps") -> float | None:
    """An interval as a number of `unit`; -1 means never, None means that `unit` cannot express the
    interval."""
    amount = to_steps(run, often)
    if amount is None:
        return -1
    return amount.count if amount.unit == unit else None


def write_resume(run: Run) -> Mapping[str, Any]:
    """Write the resume mode and, for a checkpoint path, the path under its own key."""
    modes = {"auto": "auto", "never": "disable"}
    if run.resume in modes:
        return {"trainer.resume_mode": modes[run.resume]}
    return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": run.resume}


@written_by(write_resume)
def resume(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the resume mode or the checkpoint path."""
    mode = foreign["trainer.resume_mode"]
    if mode != "resume_path":
        return {"resume": "never" if mode == "disable" else "auto"}
    path = foreign["trainer.resume_from_path"]
    if not isinstance(path, str):
        raise foreign.error_for(
            "trainer.resume_mode",
            "trainer.resume_mode is resume_path; also write trainer.resume_from_path, the folder of a "
            "checkpoint.",
        )
    return {"resume": path}


def write_checkpoint_mirror(run: Run) -> Mapping[str, Any]:
    """Write the checkpoint mirror, if any."""
    mirror = run.checkpoint.mirror
    return {} if mirror is None else {"trainer.default_hdfs_dir": mirror}


@written_by(write_checkpoint_mirror)
def checkpoint_mirror(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the checkpoint mirror, only where it is set: the default would copy to the home folder."""
    wrote = foreign.is_set("trainer.default_hdfs_dir")
    return {"checkpoint.mirror": foreign["trainer.default_hdfs_dir"] if wrote else None}


FOLDER = mapped(
    "trainer.default_local_dir",
    "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
    "folder",
    "output",
    read=folder,
    value_type=STRING,
)
RESUME = (
    mapped(
        "trainer.resume_mode",
        "auto",
        "resume",
        read=resume,
        value_type=one_of("auto", "disable", "resume_path"),
    ),
    mapped(
        "trainer.resume_from_path",
        None,
        "resume",
        read=resume,
        value_type=nullable(STRING),
        inactive=switches.resume_path,
    ),
)
_STORE = "it sizes a store between verl's processes"
_LISTED = (
    mapped("trainer.total_epochs", 30, "trainer.duration", read=duration),
    mapped("trainer.project_name", "verl_examples", "project", read=folder),
    mapped("trainer.experiment_name", "gsm8k", "name", read=folder),
    mapped(
        "trainer.logger",
        ["console", "wandb"],
        "record.monitors",
        read=monitors,
        value_type=MONITOR_NAMES,
        warn=lacking_monitors,
        note="console alone where it is not set; metrics.jsonl is always written",
    ),
    mapped(
        "trainer.log_val_generations",
        0,
        "record.eval_answers",
        converts=_ANSWERS,
        note="number of responses shown in TensorBoard and in report.html; a negative number means all",
    ),
    engine.NODES,
    engine.GPUS,
    mapped(
        "trainer.save_freq", -1, "checkpoint.every", read=checkpointing, note="counts steps; -1 means never"
    ),
    mapped("trainer.val_before_train", True, "evaluate.at_start"),
    mapped(
        "trainer.test_freq",
        2,
        "evaluate.every",
        read=evaluation_schedule,
        note="counts steps; -1 means never",
    ),
    mapped("trainer.critic_warmup", 0, "algorithm.critic.warmup_steps", read=critic, inactive=switches.gae),
    mapped(
        "trainer.default_hdfs_dir",
        "~/experiments/gsm8k/ppo/${trainer.experiment_name}",
        "checkpoint.mirror",
        read=checkpoint_mirror,
        value_type=nullable(STRING),
        note="a path or an fsspec URL; takes effect only where it is set",
    ),
    FOLDER,
    *RESUME,
    mapped("trainer.remove_previous_ckpt_in_save", False, "checkpoint.keep", read=max_checkpoints),
    placement(
        "trainer.del_local_ckpt_after_load",
        False,
        "a checkpoint that is loaded stays until the next one is complete; trainer.max_actor_ckpt_to_keep bounds their "
        "number",
    ),
    no_effect(
        "trainer.ray_wait_register_center_timeout",
        300,
        "there is a single process, so there is nothing to wait for",
    ),
)
_UNLISTED = not_on_page(
    engine.DEVICE,
    no_effect("model_engine", "dp", "the strategies of actor, critic and reference model follow from it"),
    *(placement_section(section, NO_RAY) for section in ("ray_kwargs", "ray_init", "transfer_queue")),
    no_effect("global_profiler.*", UNSET, NO_PROFILER),
    mapped(
        "trainer.total_training_steps",
        None,
        "trainer.duration",
        read=duration,
        value_type=nullable(INTEGER),
        inactive=switches.steps_alone,
        note="schedules span it, and total_epochs may end the run before",
    ),
    mapped(
        "trainer.max_actor_ckpt_to_keep",
        None,
        "checkpoint.keep",
        read=max_checkpoints,
        value_type=nullable(INTEGER),
    ),
    placement(
        "trainer.balance_batch",
        True,
        "the ranks of an update always share it by predicted cost",
        supported=only(True),
    ),
    no_effect("trainer.max_critic_ckpt_to_keep", None, "policy and critic are saved together"),
    mapped(
        "trainer.rollout_data_dir",
        None,
        "record.rollouts_every",
        read=rollout_files,
        value_type=nullable(STRING),
        note="the rollouts of every step are written to the run folder, as Parquet",
    ),
    no_effect("trainer.validation_data_dir", None, "the run folder has the validation responses"),
    mapped(
        "trainer.val_only",
        False,
        "mode",
        read=mode,
        note="evaluates the initial model and the checkpoints of trainer.default_local_dir, and does not train",
    ),
    *(
        no_effect(f"trainer.{name}.*", UNSET, NO_PROFILER)
        for name in ("controller_nsight_options", "worker_nsight_options")
    ),
    no_effect("trainer.profile_steps", None, NO_PROFILER),
    no_effect("trainer.npu_profile.*", UNSET, NO_PROFILER),
    no_effect("trainer.esi_redundant_time", 0, "a run saves when it receives SIGTERM", value_type=ANY),
    refused(
        "trainer.checkpoint_callback_class",
        None,
        "Strop calls no callback with verl's trainer; write a class with on_save(path), and pass it to strop.train in "
        "Python (`strop help library`)",
    ),
    no_effect("trainer.use_legacy_worker_impl", UNSET, "there is one implementation"),
    no_effect("trainer.use_v1", True, "there is one trainer"),
    *(
        no_effect(f"trainer.{name}", UNSET, why)
        for name, why in (
            ("tensorboard_dir", "verl reads the variable TENSORBOARD_DIR; the events are in the run folder"),
            ("rl_logging_board_dir", "rollouts are recorded in the run folder"),
            ("log_freq", "metrics are written after every step"),
            ("worker_env.*", "set the variables in the shell that starts the run"),
            ("num_global_batch", _STORE),
            ("num_data_storage_units", _STORE),
            ("num_data_controllers", _STORE),
            ("debug", "it starts a debugger in the recipe's process"),
        )
    ),
    no_effect("hydra.*", UNSET, "the run folder is trainer.default_local_dir"),
)
ROWS = (*_LISTED, *_UNLISTED)
