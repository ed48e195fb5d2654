"""Trinity's `mode` and `synchronizer`: which parts a run has here, and how new weights reach the explorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    NUMBER,
    WHOLE,
    Row,
    always,
    beyond_the_page,
    either,
    mapped,
    one_of,
    or_null,
    placement,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.cluster import on_cluster
from strop.config.dialects.trinity.presets import is_offline, kind, only_sampled
from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.buffer import PriorityBuffer
from strop.config.schema.synchronizer import CollectiveSync, Fixed, Free, MemorySync

_STYLES = {"fixed": "fixed", "dynamic_by_trainer": "trainer", "dynamic_by_explorer": "explorer"}
_HALVES = ("train", "explore")
_ROOM = 4096
"""Groups that a buffer holds where nothing is said."""


def style(theirs: Theirs) -> str:
    """Who says when the explorer takes new weights; `fixed` where it is left out."""
    return str(theirs["synchronizer.sync_style"] or "fixed")


def is_half(theirs: Theirs) -> bool:
    """Whether it is explorer or trainer alone, and the other one is another process."""
    return theirs["mode"] in _HALVES and not is_offline(theirs)


def is_apart(theirs: Theirs) -> bool:
    """Whether explorer and trainer are processes of their own: where they take turns on one machine, one does
    both."""
    if is_offline(theirs) or theirs["mode"] == "bench":
        return False
    at = "synchronizer"
    in_turns = theirs[f"{at}.sync_interval"] == 1 and theirs[f"{at}.sync_offset"] == 0
    return is_half(theirs) or on_cluster(theirs) or style(theirs) != "fixed" or not in_turns


def is_by_priority(theirs: Theirs) -> bool:
    """Whether a priority queue stands between them, which gives no step after the other."""
    at = "buffer.trainer_input.experience_buffer"
    return bool(theirs[f"{at}.use_priority_queue"]) and theirs[f"{at}.storage_type"] in (None, "queue")


def room(theirs: Theirs) -> int | None:
    """Groups that must fit into the buffer between them, where that is more than the usual."""
    ahead = theirs["synchronizer.sync_interval"] + theirs["synchronizer.sync_offset"]
    needed = ahead * int(theirs["buffer.batch_size"])
    return needed if is_apart(theirs) and needed > _ROOM else None


def write_mode(run: Run) -> Mapping[str, Any]:
    """Given answers need no explorer."""
    return {"mode": "train" if isinstance(run.algorithm, Sft | Dpo) and run.mode == "both" else run.mode}


@written_by(write_mode)
def mode(theirs: Theirs) -> Mapping[str, Any]:
    """Given answers need no explorer; all others may run as one half. bench measures checkpoints."""
    said = theirs["mode"]
    if said == "bench":
        return {"mode": said, "bench.model": theirs["explorer.eval_on_startup"]}
    if is_offline(theirs):
        if said != "train":
            raise theirs.fault(
                "mode",
                f"mode is {said}, and {kind(theirs)} learns from given answers, without an explorer. Write "
                "mode: train.",
            )
        return {}
    if is_half(theirs) and not theirs["continue_from_checkpoint"]:
        raise theirs.fault(
            "continue_from_checkpoint",
            f"continue_from_checkpoint is false, and in mode {said} the other half of the run has to find "
            "this one by its name. Leave it true, and for a new run write another name in both files.",
        )
    return {"mode": said}


def write_synchronizer(run: Run) -> Mapping[str, Any]:
    """Where they take turns in one process, nothing need be said."""
    section = run.synchronizer
    if isinstance(section, MemorySync):
        return {}
    names = {ours: theirs for theirs, ours in _STYLES.items()}
    name = names.get(section.style.type)
    values = {
        "synchronizer.sync_method": "nccl" if isinstance(section, CollectiveSync) else "checkpoint",
        "synchronizer.sync_style": None if name == "fixed" else name,
        "synchronizer.sync_timeout": section.timeout_seconds,
        "synchronizer.sync_interval": int(section.style.every.count),
    }
    if isinstance(section.style, Fixed):
        values["synchronizer.sync_offset"] = int(section.style.ahead.count)
    if isinstance(section.style, Free) and isinstance(run.buffer, PriorityBuffer):
        oldest = int(section.style.max_staleness.count)
        values["synchronizer.sync_offset"] = oldest + 1 - int(section.style.every.count)
    return values


@written_by(write_synchronizer)
def synchronizer(theirs: Theirs) -> Mapping[str, Any]:
    """In turns, in one process; or apart, with the weights by a collective or through a folder."""
    at = "synchronizer"
    half = is_half(theirs) or theirs["mode"] == "bench"
    nccl = theirs[f"{at}.sync_method"] == "nccl"
    if half and nccl and theirs.wrote(f"{at}.sync_method"):
        raise theirs.fault(
            f"{at}.sync_method",
            f"{at}.sync_method is nccl, which is for mode both; in mode {theirs['mode']} weights go through "
            "a folder. Write sync_method: checkpoint.",
        )
    if not is_apart(theirs):
        return {}
    settings = {
        f"{at}.type": "collective" if nccl and not half else "checkpoint",
        f"{at}.timeout_seconds": theirs[f"{at}.sync_timeout"],
        f"{at}.style.type": _STYLES[style(theirs)],
        f"{at}.style.every": f"{theirs[f'{at}.sync_interval']} steps",
    }
    if style(theirs) == "fixed" and is_by_priority(theirs):
        oldest = theirs[f"{at}.sync_interval"] + theirs[f"{at}.sync_offset"] - 1
        return settings | {f"{at}.style.type": "free", f"{at}.style.max_staleness": f"{oldest} steps"}
    if style(theirs) == "fixed":
        settings[f"{at}.style.ahead"] = f"{theirs[f'{at}.sync_offset']} steps"
    return settings


def _in_turns(theirs: Theirs) -> str | None:
    return None if is_apart(theirs) else "explorer and trainer take turns in one process, without waiting"


def _not_fixed(theirs: Theirs) -> str | None:
    return None if style(theirs) == "fixed" else f"sync_style is {style(theirs)}"


MODE = mapped(
    "mode",
    "both",
    "mode",
    "bench.model",
    read=mode,
    kind=one_of("both", "train", "explore", "bench"),
    note="train under sft and dpo; bench measures all checkpoints of the run",
)
ROWS: tuple[Row, ...] = (
    *unstated(
        placement(
            "synchronizer.sync_method",
            "nccl",
            "nccl is a collective (gloo without two GPUs); in turns, one process shares the weights",
            kind=one_of("nccl", "checkpoint"),
            can=always,
            ours=("synchronizer.type",),
            read=synchronizer,
        ),
        mapped(
            "synchronizer.sync_interval",
            1,
            "synchronizer.style.every",
            "synchronizer.type",
            read=synchronizer,
            off=only_sampled,
            note="counts steps; with 1, and sync_offset 0, one process explores and trains in turns",
        ),
        mapped(
            "synchronizer.sync_offset",
            0,
            "synchronizer.style.ahead",
            "synchronizer.style.max_staleness",
            read=synchronizer,
            kind=WHOLE,
            off=either(only_sampled, _not_fixed),
            note="counts steps; with a priority queue, it and sync_interval bound how old weights may be",
        ),
        mapped(
            "synchronizer.sync_timeout",
            1200,
            "synchronizer.timeout_seconds",
            read=synchronizer,
            kind=NUMBER,
            off=_in_turns,
        ),
    ),
    *beyond_the_page(
        mapped(
            "synchronizer.sync_style",
            None,
            "synchronizer.style.type",
            read=synchronizer,
            kind=or_null(one_of(*_STYLES)),
            off=only_sampled,
            note="fixed where it is left out",
        ),
    ),
)
