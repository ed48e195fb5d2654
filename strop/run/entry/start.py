"""Starts a loaded run in its mode: in one process, as several processes, or as one process of a run; and its result,
as `strop.train` returns it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strop.config.checks.topology import fixed_weights_fault, one_node_fault
from strop.config.load.loader import LoadedRun
from strop.config.preflight import require_files
from strop.config.save import folder_mode
from strop.config.schema.run import RayClusterConfig, Run
from strop.errors import ConfigError, Interrupted, PlacementError, RankLostError
from strop.plan.fit import with_machine_defaults
from strop.plan.placement import plan_run
from strop.python_rewards import PythonRewards
from strop.run.state.identity import run_identity
from strop.run.state.resume import find_start
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_run
from strop.runs.metrics_file import merge_rows, read_metrics
from strop.runs.overview import all_finished, last_row
from strop.workers.child_process import RestartBudget
from strop.workers.fork_server import without_collections
from strop.workers.output import lasting_output
from strop.workers.signals import StopSignal
from strop.workers.torchrun import torchrun_process


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    folder: Path
    """Folder with everything that the run wrote."""
    model: Path | None
    """The trained model as a Hugging Face folder; None where this process wrote none (mode explore, for
    example)."""
    steps: int
    """Number of completed steps, earlier starts included."""
    model_step: int
    """Step of the model's weights: the last step, or under `checkpoint.best` the best one."""
    metrics: Mapping[str, float]
    """Metrics of the last step; `strop help metrics` defines them."""
    stopped: bool = False
    """Whether the run was stopped by `RunHandle.stop` or `RunControl.stop` before its end."""

    def history(self) -> list[dict[str, float]]:
        """Metrics of all steps, oldest first, for `pandas.DataFrame(result.history())`.

        One dict per row of `metrics.jsonl`: `step` and the metrics of that step, NaN where a value is not
        finite. Step 0 holds the evaluation before training. Where the explorer is a separate process, its
        metrics are merged into the rows.
        """
        folder = RunFolder(self.folder)
        rows = merge_rows(read_metrics(folder.explorer.metrics), read_metrics(folder.metrics))
        return [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]


def start_run(
    loaded: LoadedRun,
    reward: PythonRewards | None = None,
    *,
    stop: StopSignal | None = None,
    callbacks: Sequence[Any] = (),
) -> RunResult:
    """Run to the end, or continue where an earlier start of the same run stopped.

    Each mode is imported where it is used: a process that only launches others starts without torch. Under
    `trainer.elastic` the loss of a rank continues from the last checkpoint.

    Args:
        loaded: the run.
        reward: a function added to the rewards that the run file names.
        stop: requests to stop this run; None for signals only.
        callbacks: the user's callbacks.

    Raises:
        ConfigError: a file or folder that is missing or damaged, callbacks in a mode that has no training loop in this
            process, or an inference engine that cannot load the trained weights.
        PlacementError: keys about lost nodes where all ranks are on this machine.
        RunFolderError: another process uses the run folder.
        Interrupted: the run was stopped by a signal. After `stop.request_stop()` the result says
            `stopped` instead.
    """
    run = loaded.run
    stop = stop or StopSignal()
    if (fault := fixed_weights_fault(run)) is not None:
        raise ConfigError(f"{fault}.")
    if (fault := one_node_fault(run, is_launched=torchrun_process() is not None)) is not None:
        raise PlacementError(f"{fault}.")
    if run.mode != "bench" and not isinstance(run.cluster, RayClusterConfig):  # files may be on its nodes
        require_files(loaded, reward)
    if callbacks:
        _require_training_loop(run)
    if run.mode != "bench":
        run = with_machine_defaults(run)
        plan_run(run)
        loaded = replace(loaded, run=run)
    folder = RunFolder.of(run)
    try:
        permissions = folder_mode(run)
        with (
            lock_run(
                folder, mode=run.mode, is_distributed=run.is_distributed, permissions=permissions
            ) as locks,
            lasting_output(folder.console_log),
        ):
            if run.mode in ("bench", "explore") or _launches_processes(run):
                return _start_other(loaded, reward, stop, locks)
            with without_collections():
                from strop.run.entry.train import train

            elastic = run.trainer.elastic
            budget = RestartBudget(elastic.max_restarts if elastic else 0)
            while True:
                try:
                    trained = train(loaded, reward, stop=stop, callbacks=callbacks)
                    break
                except RankLostError as error:
                    if elastic is None or not budget.spend():
                        raise
                    print(f"{error} The run continues from its last checkpoint ({budget}).", flush=True)
                loaded = replace(loaded, run=run.model_copy(update={"resume": "auto"}))
            step, best_step = trained.state.step, trained.model_step
            return RunResult(
                folder.path, folder.model, step, best_step, last_row(folder), stopped=trained.stopped
            )
    except Interrupted:
        if not stop.requested_by_code:
            raise
        row = last_row(folder)
        step = int(row.get("step", 0))
        return RunResult(folder.path, None, step, step, row, stopped=True)


def _start_other(
    loaded: LoadedRun, reward: PythonRewards | None, stop: StopSignal, locks: Sequence[int]
) -> RunResult:
    """Modes without a training loop in this process; its child processes inherit the locks of the folder."""
    run = loaded.run
    folder = RunFolder.of(run)
    if run.mode == "bench":
        from strop.run.entry.evaluate import bench

        rows = bench(loaded, reward, stop)
        return RunResult(folder.path, None, len(rows), rows[-1].step, rows[-1].metrics)
    if run.mode == "explore":
        with without_collections():
            from strop.run.entry.explore import explore

        steps = explore(loaded, reward, stop).step
        return RunResult(folder.explorer.path, None, steps, steps, last_row(folder))
    from strop.run.distributed.launch import launch
    from strop.run.entry.role_main import ROLE_ENTRY

    steps = launch(loaded, reward, ROLE_ENTRY, stop, locks)
    return RunResult(folder.path, folder.model, steps, steps, last_row(folder))


def _launches_processes(run: Run) -> bool:
    return run.is_distributed and run.mode == "both"


def _require_training_loop(run: Run) -> None:
    if run.mode in ("bench", "explore"):
        raise ConfigError(f"callbacks belong to a training loop, and `mode: {run.mode}` has none. Omit them.")
    if _launches_processes(run):
        raise ConfigError(
            "callbacks are called in the process of the training loop, but this run starts explorer and "
            f"trainer as processes of their own (synchronizer.type: {run.synchronizer.type}). Omit the "
            "callbacks and read metrics.jsonl in the run folder, or write `synchronizer: memory`."
        )


def finished_result(loaded: LoadedRun, reward: PythonRewards | None = None) -> RunResult | None:
    """Result of an earlier start of the same run that reached the end, or None.

    Raises `RunFolderError` where the folder holds a run of another configuration, or another process uses it.
    """
    run = loaded.run
    folder = RunFolder.of(run)
    if run.resume != "auto":
        return None
    with lock_run(folder, mode=run.mode, is_distributed=run.is_distributed, permissions=folder_mode(run)):
        start = find_start(run, folder, run_identity(run, reward))
    folders = (folder, folder.explorer) if _launches_processes(run) else (folder,)
    if start.checkpoint is None or not all_finished(folders):
        return None
    best = start.state.best
    step = start.state.step
    return RunResult(folder.path, folder.model, step, best.step if best else step, last_row(folder))
