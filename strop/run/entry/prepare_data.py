"""Running of `data.pipeline` before a run, or alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from strop.config.redact import safe_text
from strop.config.schema import Run
from strop.config.schema.run import RayClusterConfig
from strop.pipelines.tasks.difference import preview
from strop.pipelines.tasks.execution import Tick
from strop.pipelines.tasks.part_stages import OpenExecutor, local_processes
from strop.pipelines.tasks.pipeline import PipelineRun, Progress
from strop.pipelines.tasks.result import PipelineResult
from strop.python_rewards import PythonRewards
from strop.rewards.scorable_tasks import require_scorable_tasks
from strop.run.entry.pipeline_services import RunServices
from strop.run.prepared_data import cache_folder, prepared_run, write_pointer
from strop.workers.signals import StopSignal


def prepare_data(
    run: Run, reward: PythonRewards | None = None, stop: StopSignal | None = None
) -> PipelineResult | None:
    """Run the pipeline, or find its result in the cache; None for a run without one, or with a queue or a stream, whose
    rows pass through the operators as they are read.

    Raises DataError for rows that an operator cannot use, ConfigError for an operator that cannot be made.
    """
    if not run.data.is_prepared:
        return None
    stop = stop or StopSignal()
    with RunServices(run, reward, stop) as services, progress_bars(stop) as progress:
        result = PipelineRun(run.data, cache_folder(run), services, progress, say, _open_executor(run))()
    write_pointer(run, result)
    require_scorable_tasks(prepared_run(run), reward)
    return result


def _open_executor(run: Run) -> OpenExecutor:
    """Opens processes of this machine, or workers of the cluster that the run names."""
    if not isinstance(run.cluster, RayClusterConfig) or run.cluster.address is None:
        return local_processes
    from strop.run.distributed.ray_cluster import ray_workers

    return partial(ray_workers, run, run.cluster)


def preview_data(run: Run, rows: int) -> Iterator[str]:
    """Lines about the first rows before and after each operator of a run's pipeline."""
    with RunServices(run, None, StopSignal()) as services:
        yield from preview(run.data, services, cache_folder(run), say, rows)


def say(message: str) -> None:
    """Print a message while a pipeline waits."""
    print(safe_text(f"strop: {message}"), file=sys.stderr, flush=True)


@contextmanager
def progress_bars(stop: StopSignal) -> Iterator[Progress]:
    """Bars on stderr for the stages of a pipeline, on a terminal. A requested stop raises `Interrupted` at the next
    part."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def start(text: str, total: int) -> Tick:
            bar = bars.add_task(escape(safe_text(text)), total=total)

            def tick(rows: int) -> None:
                bars.update(bar, advance=rows)
                stop.check()

            return tick

        yield start
