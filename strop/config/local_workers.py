"""Number of processes of `trainer.engine: local` on a CPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from strop.config.model_files import is_quantized
from strop.config.schema import Run
from strop.config.schema.run import LocalClusterConfig, in_process_functions
from strop.config.schema.trainer import LocalEngineConfig

_MAX_WORKERS = 8
"""Maximum number that `auto` chooses; further cores become threads of the workers, which need no memory."""
_WHOLE_OPTIMIZERS = frozenset(("lomo", "adalomo", "galore_adamw", "schedule_free_sgd"))
"""Optimizers whose state or updates cannot be divided by parameter."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Time per period of this process's container, in control groups version 2; `max` is no limit."""
WORKER_MODULES = (
    "strop.training.ranks.process",
    "strop.inference.pool.engine_handle",
    "strop.inference.registry",
)
"""Modules that workers run, by name, since they import torch."""


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Processes of a run on the CPU, and the threads of each."""

    count: int
    threads: int
    reason: str
    """Reason for one process where there are more cores; empty otherwise."""


def usable_cores() -> int:
    """Number of cores that this process may use: the least of the machine, its affinity, its container and
    OMP_NUM_THREADS."""
    affinity = getattr(os, "sched_getaffinity", None)
    limits = [len(affinity(0)) if affinity else os.cpu_count() or 1]
    if _QUOTA.is_file():
        quota, period = _QUOTA.read_text().split()
        if quota != "max":
            limits.append(-(-int(quota) // int(period)))
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdigit():
        limits.append(int(threads))
    return max(1, min(limits))


def workers_obstacle(run: Run) -> str | None:
    """Reason why a run cannot have several local workers; None if it can."""
    others = run.algorithm.trained_models
    optimizers = {run.trainer.optimizer.type, *(each.optimizer.type for each in others.values())}
    if is_quantized(run.model) or any(each.model and is_quantized(each.model) for each in others.values()):
        return "quantized weights are not in memory that workers share"
    if not sys.platform.startswith("linux"):
        return "workers share memory as Linux does (memfd_create)"
    if whole := optimizers & _WHOLE_OPTIMIZERS:
        return f"the optimizer {min(whole)} updates all parameters together"
    if (found := next(in_process_functions(run), None)) is not None:
        key, name = found
        return f"{key} is the function {name}, which exists only in this Python program"
    return None


def with_workers(run: Run, count: int) -> Run:
    """The run with a number of local workers; another training engine stays as it is."""
    if not isinstance(run.trainer.engine, LocalEngineConfig):
        return run
    engine = run.trainer.engine.model_copy(update={"workers": count})
    return run.model_copy(update={"trainer": run.trainer.model_copy(update={"engine": engine})})


def worker_cache_tokens(tokens: int, workers: int, longest: int) -> int:
    """Capacity of the KV cache of each worker's engine: its part of the run's, and at least the longest sequence."""
    return max(tokens // workers, min(tokens, longest))


def local_workers(run: Run) -> LocalWorkers:
    """The workers of a run with `trainer.engine: local` on the CPU of this machine."""
    section = run.trainer.engine
    assert isinstance(section, LocalEngineConfig)
    cores = usable_cores()
    if section.workers != "auto":
        return LocalWorkers(section.workers, max(1, cores // section.workers), "")
    reason = workers_obstacle(run)
    if reason is None and run.is_distributed:
        reason = "the explorer's process uses the other cores"
    if reason is None and not isinstance(run.cluster, LocalClusterConfig):
        reason = "Ray reserves one core for it"
    count = 1 if reason else min(cores, _MAX_WORKERS, max(1, run.trainer.tasks_per_step))
    return LocalWorkers(count, max(1, cores // count), reason or "" if cores > 1 else "")
