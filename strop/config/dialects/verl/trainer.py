"""verl's `trainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    TEXT,
    TEXTS,
    WHOLE,
    beyond_the_page,
    mapped,
    no_effect,
    one_of,
    only,
    or_null,
    placement,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.critic import critic
from strop.config.placement import cuda_devices
from strop.config.same import in_steps
from strop.config.schema import Run
from strop.config.units import Amount

_MONITORS = ("console", "tensorboard")
_ELSEWHERE = ("wandb", "swanlab", "mlflow")


def write_duration(run: Run) -> Mapping[str, Any]:
    """In steps or in epochs; updates only where whole steps make them."""
    length = in_steps(run, run.trainer.duration)
    keys = {"steps": "trainer.total_training_steps", "epochs": "trainer.total_epochs"}
    if length is None or length.unit not in keys:
        return {}
    return {keys[length.unit]: length.count}


@written_by(write_duration)
def duration(theirs: Theirs) -> Mapping[str, Any]:
    """Steps beat epochs."""
    steps = theirs["trainer.total_training_steps"]
    epochs = theirs["trainer.total_epochs"]
    return {"trainer.duration": f"{epochs} epochs" if steps is None else f"{steps} steps"}


def write_folder(run: Run) -> Mapping[str, Any]:
    """The two names, and the folder, which the default makes of them."""
    return {
        "trainer.project_name": run.project,
        "trainer.experiment_name": run.name,
        "trainer.default_local_dir": str(run.folder_path),
    }


@written_by(write_folder)
def folder(theirs: Theirs) -> Mapping[str, Any]:
    """`default_local_dir` is the run's folder itself."""
    settings = {"project": theirs["trainer.project_name"], "name": theirs["trainer.experiment_name"]}
    if theirs.wrote("trainer.default_local_dir"):
        return {**settings, "folder": theirs["trainer.default_local_dir"]}
    return {**settings, "output": "checkpoints"}


def write_monitors(run: Run) -> Mapping[str, Any]:
    """Where metrics are shown."""
    return {"trainer.logger": list(run.record.monitors)}


@written_by(write_monitors)
def monitors(theirs: Theirs) -> Mapping[str, Any]:
    """Where metrics are shown. Of the page's default, what is not built is left out: nobody asked for it."""
    said = theirs["trainer.logger"]
    names = [said] if isinstance(said, str) else said
    if theirs.wrote("trainer.logger"):
        lacking = [name for name in names if name not in _MONITORS]
        if lacking:
            known = "not built yet" if lacking[0] in _ELSEWHERE else "not known"
            raise theirs.fault(
                "trainer.logger",
                f"trainer.logger names {', '.join(lacking)}, which is {known}; write "
                f"trainer.logger=[{','.join(_MONITORS)}], or one of them.",
            )
    return {"record.monitors": [name for name in names if name in _MONITORS]}


def write_saving(run: Run) -> Mapping[str, Any]:
    """-1 is never."""
    return {"trainer.save_freq": frequency(run, run.checkpoint.every)}


@written_by(write_saving)
def saving(theirs: Theirs) -> Mapping[str, Any]:
    """`-1` never saves but at the end."""
    return {"checkpoint.every": every(theirs["trainer.save_freq"])}


def write_kept(run: Run) -> Mapping[str, Any]:
    """By their number."""
    return {
        "trainer.remove_previous_ckpt_in_save": False,
        "trainer.max_actor_ckpt_to_keep": run.checkpoint.keep,
    }


@written_by(write_kept)
def kept(theirs: Theirs) -> Mapping[str, Any]:
    """All checkpoints stay, unless a key says otherwise."""
    if theirs["trainer.remove_previous_ckpt_in_save"]:
        return {"checkpoint.keep": 1}
    return {"checkpoint.keep": theirs["trainer.max_actor_ckpt_to_keep"]}


def write_measuring(run: Run) -> Mapping[str, Any]:
    """-1 is never."""
    return {"trainer.test_freq": frequency(run, run.evaluate.every)}


@written_by(write_measuring)
def measuring(theirs: Theirs) -> Mapping[str, Any]:
    """`-1` leaves the start and the end."""
    return {"evaluate.every": every(theirs["trainer.test_freq"])}


def every(count: int, unit: str = "steps") -> str:
    """-1 and 0 mean never."""
    return f"{count} {unit}" if count > 0 else "never"


def frequency(run: Run, often: Amount | None, unit: str = "steps") -> float | None:
    """How often in steps (or in epochs); -1 for never, None where it cannot be said so."""
    amount = in_steps(run, often)
    if amount is None:
        return -1
    return amount.count if amount.unit == unit else None


def write_resume(run: Run) -> Mapping[str, Any]:
    """A path stands apart from the mode."""
    modes = {"auto": "auto", "never": "disable"}
    if run.resume in modes:
        return {"trainer.resume_mode": modes[run.resume]}
    return {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": run.resume}


@written_by(write_resume)
def resume(theirs: Theirs) -> Mapping[str, Any]:
    """Where the run starts from."""
    mode = theirs["trainer.resume_mode"]
    if mode != "resume_path":
        return {"resume": "never" if mode == "disable" else "auto"}
    path = theirs["trainer.resume_from_path"]
    if not isinstance(path, str):
        raise theirs.fault(
            "trainer.resume_mode",
            "trainer.resume_mode is resume_path; write trainer.resume_from_path too, a checkpoint's folder.",
        )
    return {"resume": path}


def write_second_place(run: Run) -> Mapping[str, Any]:
    """Where there is one."""
    said = run.checkpoint.copy_to
    return {} if said is None else {"trainer.default_hdfs_dir": said}


@written_by(write_second_place)
def second_place(theirs: Theirs) -> Mapping[str, Any]:
    """The page's default would copy into the home folder, which nobody asked for."""
    wrote = theirs.wrote("trainer.default_hdfs_dir")
    return {"checkpoint.copy_to": theirs["trainer.default_hdfs_dir"] if wrote else None}


def one_gpu(theirs: Theirs, value: Any) -> bool:
    """One process trains, so one GPU is all that can be had, where there is one."""
    return bool(value == 1) and cuda_devices() > 0


ROWS = (
    mapped("trainer.total_epochs", 30, "trainer.duration", read=duration, off=switches.epochs),
    mapped("trainer.project_name", "verl_examples", "project", read=folder),
    mapped("trainer.experiment_name", "gsm8k", "name", read=folder),
    mapped(
        "trainer.logger",
        ["console", "wandb"],
        "record.monitors",
        read=monitors,
        kind=TEXTS,
        note="console and tensorboard are built; metrics.jsonl is always written",
    ),
    mapped(
        "trainer.log_val_generations",
        0,
        "record.eval_answers",
        note="in TensorBoard and in report.html",
    ),
    placement("trainer.nnodes", 1, "one process, on this machine", can=only(1)),
    placement(
        "trainer.n_gpus_per_node", 8, "one process, on this machine's GPU or else its CPU", can=one_gpu
    ),
    mapped("trainer.save_freq", -1, "checkpoint.every", read=saving, note="counts steps; -1 is never"),
    mapped("trainer.val_before_train", True, "evaluate.at_start"),
    mapped("trainer.test_freq", 2, "evaluate.every", read=measuring, note="counts steps; -1 is never"),
    mapped("trainer.critic_warmup", 0, "algorithm.critic.warmup_steps", read=critic, off=switches.gae),
    mapped(
        "trainer.default_hdfs_dir",
        "~/experiments/gsm8k/ppo/${trainer.experiment_name}",
        "checkpoint.copy_to",
        read=second_place,
        kind=or_null(TEXT),
        note="a path or any URL of fsspec; counts only where someone wrote it",
    ),
    mapped(
        "trainer.default_local_dir",
        "checkpoints/${trainer.project_name}/${trainer.experiment_name}",
        "folder",
        "output",
        read=folder,
        kind=TEXT,
    ),
    mapped(
        "trainer.resume_mode",
        "auto",
        "resume",
        read=resume,
        kind=one_of("auto", "disable", "resume_path"),
    ),
    mapped(
        "trainer.resume_from_path",
        None,
        "resume",
        read=resume,
        kind=or_null(TEXT),
        off=switches.resume_path,
    ),
    mapped("trainer.remove_previous_ckpt_in_save", False, "checkpoint.keep", read=kept),
    refused(
        "trainer.del_local_ckpt_after_load",
        False,
        "a checkpoint is never deleted before the next one is safe; leave it False",
    ),
    no_effect(
        "trainer.ray_wait_register_center_timeout", 300, "one process runs, so there is nothing to wait for"
    ),
    *beyond_the_page(
        mapped(
            "trainer.total_training_steps",
            None,
            "trainer.duration",
            read=duration,
            kind=or_null(WHOLE),
            note="beats trainer.total_epochs",
        ),
        mapped(
            "trainer.max_actor_ckpt_to_keep",
            None,
            "checkpoint.keep",
            read=kept,
            kind=or_null(WHOLE),
        ),
        placement("trainer.balance_batch", True, "one process has nothing to balance with", can=only(True)),
    ),
)
