"""Which parts a run has, and what cannot be when explorer and trainer are apart: said before the start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strop.config.schema.algorithm import Dpo, Sft
from strop.config.schema.bench import Bench
from strop.config.schema.buffer import Buffer, PriorityBuffer, QueueBuffer, SqlBuffer
from strop.config.schema.cluster import RayCluster
from strop.config.schema.sample import StalenessSample
from strop.config.schema.schedule import ReduceOnPlateauSchedule
from strop.config.schema.synchronizer import (
    ApartSync,
    ByExplorer,
    ByTrainer,
    CheckpointSync,
    CollectiveSync,
    Fixed,
    Free,
    MemorySync,
    Style,
    Synchronizer,
)

if TYPE_CHECKING:
    from strop.config.schema.run import Run

_ALONE = ("train", "explore")
"""Modes of one part, whose other half is another process."""


def default_synchronizer(said: dict[str, Any]) -> Synchronizer:
    """What a run file means that says nothing: memory where one process does it all."""
    offline = isinstance(said.get("algorithm"), Sft | Dpo)
    apart = said.get("mode") in _ALONE or isinstance(said.get("cluster"), RayCluster)
    return CheckpointSync() if apart and not offline else MemorySync()


def default_buffer(said: dict[str, Any]) -> Buffer:
    """The same for the buffer: a database where two processes of one machine meet in it, or two machines that
    somebody starts; on a cluster a queue, which is an actor and needs no server."""
    apart = isinstance(said.get("synchronizer"), ApartSync)
    on_ray = isinstance(said.get("cluster"), RayCluster) and said.get("mode") not in _ALONE
    return SqlBuffer() if apart and not on_ray else QueueBuffer()


def is_apart(run: Run) -> bool:
    """Whether explorer and trainer are processes of their own."""
    return not isinstance(run.synchronizer, MemorySync)


def has_own_buffer(run: Run) -> bool:
    """Whether the buffer is a process of its own: a queue that explorer and trainer reach from theirs."""
    return run.mode == "both" and is_apart(run) and isinstance(run.buffer, QueueBuffer | PriorityBuffer)


def steps_ahead(style: Style) -> int | None:
    """Steps that may wait in the buffer while the explorer samples on; None: as many as fit."""
    match style:
        case Fixed():
            return int(style.ahead.count + style.every.count)
        case Free():
            return int(style.max_staleness.count) + 1
        case ByTrainer() | ByExplorer():
            return None


def check_parts(run: Run) -> None:
    """Raises ValueError, which names the key, for the first thing that would deadlock or mean nothing."""
    for fault in _faults(run):
        raise ValueError(fault)


def _faults(run: Run) -> Iterator[str]:
    if run.mode == "bench" and not run.data.eval:
        yield (
            "mode: bench measures eval tasksets, and there is none; add one under `data.eval`, such as "
            "`eval: [{name: test, path: test.jsonl}]`"
        )
    if run.mode != "bench" and run.bench != Bench():
        yield f"bench means nothing in mode {run.mode}; write `mode: bench`, or take it out"
    if isinstance(run.algorithm, Sft | Dpo):
        yield from _offline(run)
    elif isinstance(run.synchronizer, ApartSync):
        yield from _apart(run, run.synchronizer)
    elif isinstance(run.cluster, RayCluster):
        yield (
            f"synchronizer.type: {run.synchronizer.type} hands weights over inside one process, and on Ray "
            "explorer and trainer are two actors; write checkpoint, or leave the section out"
        )
    elif run.mode in _ALONE:
        yield (
            f"synchronizer.type: memory hands weights over inside one process, and mode {run.mode} is one "
            "half of a run whose other half is another process; write checkpoint here, or mode: both"
        )
    elif isinstance(run.buffer, PriorityBuffer) and run.buffer.reuse_cooldown_seconds is not None:
        yield (
            "buffer.reuse_cooldown_seconds has old groups used again where newer ones are not there yet, and "
            "with synchronizer.type memory each step learns from what it has just sampled; take it out, or "
            "write `synchronizer: {style: free}`, under which explorer and trainer go on side by side"
        )


def _offline(run: Run) -> Iterator[str]:
    kind = run.algorithm.type
    if run.mode == "explore":
        yield f"mode: explore samples what is trained on, and {kind} learns from given answers; write train"
    if isinstance(run.cluster, RayCluster):
        yield f"cluster.type: ray runs an explorer and a trainer, and under {kind} there is none to explore"
    if is_apart(run):
        yield (
            f"synchronizer.type: {run.synchronizer.type} brings weights to an explorer, and under algorithm "
            f"{kind} there is none; take the section out"
        )


def _collective(run: Run, section: CollectiveSync) -> Iterator[str]:
    if run.mode in _ALONE:
        yield (
            "synchronizer.type: collective joins two processes that one command starts and watches, and mode "
            f"{run.mode} is one of them alone; write checkpoint here, or mode: both"
        )
    if section.backend != "nccl":
        return
    if run.trainer.engine.device == "cpu":
        yield "synchronizer.backend: nccl joins GPUs, and trainer.engine.device is cpu; write gloo, or auto"
    if run.rollout.pool is not None:
        yield (
            "synchronizer.backend: nccl brings weights to one GPU, and the engines of rollout.pool take them "
            "from host memory; write gloo, or auto"
        )
    cluster, ranks = run.cluster, run.trainer.engine.ranks
    if isinstance(cluster, RayCluster) and cluster.nodes * cluster.gpus_per_node < ranks + 1:
        yield (
            f"synchronizer.backend: nccl wants {ranks + 1} GPUs, one of them for the explorer, and "
            f"cluster has {cluster.nodes} nodes of {cluster.gpus_per_node}; write larger ones, gloo, or auto"
        )


def _queue(run: Run, style: Style) -> Iterator[str]:
    buffer, cluster = run.buffer, run.cluster
    if not isinstance(buffer, QueueBuffer | PriorityBuffer):
        return
    if run.mode in _ALONE:
        yield (
            f"buffer.type: {buffer.type} is a process that one command starts with explorer and trainer, and "
            f"mode {run.mode} is one of these alone; write `buffer: sql`, or mode: both"
        )
    if isinstance(cluster, RayCluster) and buffer.name in (cluster.explorer, cluster.trainer):
        yield f"buffer.name: two actors of the run are both named {buffer.name!r}; write another name"
    if not isinstance(buffer, PriorityBuffer) or not isinstance(style, Fixed):
        return
    if steps_ahead(style) != 1 or buffer.reuse_cooldown_seconds is not None:
        yield (
            "buffer.type: priority gives the newest groups first, or some again, and with synchronizer.style "
            "fixed the trainer takes one step after the other; write another style, such as `style: free`, "
            "or `buffer: queue`"
        )


def _apart(run: Run, section: CheckpointSync | CollectiveSync) -> Iterator[str]:
    if isinstance(section, CollectiveSync):
        yield from _collective(run, section)
    if run.mode in _ALONE and isinstance(run.cluster, RayCluster):
        yield f"cluster.type: ray runs both parts, and mode {run.mode} is one of them; write mode: both"
    yield from _queue(run, section.style)
    yield from _resumed(run, section)
    yield from _measured(run)
    yield from _ahead(run, section.style)


def _resumed(run: Run, section: CheckpointSync | CollectiveSync) -> Iterator[str]:
    """The run goes on with all of its parts' states, or with none."""
    if run.mode in _ALONE and run.resume != "auto":
        yield (
            f"resume: {run.resume} would begin anew in what the other part of the run goes on with; in mode "
            f"{run.mode} write resume: auto, and for a new run another `name`"
        )
    elif run.resume not in ("auto", "never"):
        yield (
            f"resume: {run.resume} is a checkpoint, which says nothing of where an explorer stood; with "
            f"synchronizer.type {section.type} write auto or never, and to begin with other weights, their "
            "model folder under model.path"
        )
    if run.checkpoint.copy_to is not None:
        yield (
            f"checkpoint.copy_to keeps the trainer's half; with synchronizer.type {section.type} a run goes "
            "on only with its explorer's state and its buffer, too: take it out, and keep the run's folder"
        )


def _measured(run: Run) -> Iterator[str]:
    """What follows evaluations, which the trainer does not see."""
    if run.checkpoint.best is not None:
        yield (
            "checkpoint.best follows the evaluations, which the explorer makes in a process of its own; "
            "write `best: null`, or `synchronizer: memory`"
        )
    if isinstance(run.trainer.schedule, ReduceOnPlateauSchedule):
        yield (
            "trainer.schedule: reduce_lr_on_plateau follows the evaluations, which the explorer makes in a "
            "process of its own; write another schedule, or `synchronizer: memory`"
        )


def _ahead(run: Run, style: Style) -> Iterator[str]:
    """How far the explorer may be ahead, and how old weights become by it."""
    if isinstance(style, Free) and style.max_staleness.count < style.every.count - 1:
        yield (
            f"synchronizer.style.max_staleness ({style.max_staleness}) can never be met: weights that are "
            f"published every {style.every} grow {int(style.every.count) - 1} steps old before there are "
            "newer ones, so explorer and trainer would wait for each other; write a smaller `every`, or "
            f"max_staleness: {int(style.every.count) - 1} steps or more"
        )
    sample = run.trainer.sample
    if isinstance(style, Fixed) and isinstance(sample, StalenessSample):
        oldest = int(style.ahead.count + style.every.count) - 1
        if sample.max_staleness.count < oldest:
            yield (
                f"trainer.sample.max_staleness ({sample.max_staleness}) would throw whole steps away: with "
                f"synchronizer.style fixed they are sampled by weights up to {oldest} steps old; write "
                f"{oldest} steps or more, a smaller `ahead` and `every`, or another style"
            )
    steps, capacity = steps_ahead(style), getattr(run.buffer, "capacity_groups", None)
    if steps is not None and capacity is not None and capacity < steps * run.trainer.tasks_per_step:
        yield (
            f"buffer.capacity_groups ({capacity}) holds fewer than the {steps} steps of "
            f"{run.trainer.tasks_per_step} tasks that synchronizer.style lets the explorer be ahead, so it "
            f"would wait for room instead; write {steps * run.trainer.tasks_per_step} or more, or a smaller "
            f"{'max_staleness' if isinstance(style, Free) else '`ahead` and `every`'}"
        )
