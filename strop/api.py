"""Strop from Python: the functions behind the command line, for scripts and notebooks.

Each function takes what `load` returns. Torch is imported when a run starts, not before.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from strop.config.load.loader import LoadedRun, load_run, load_values
from strop.config.redact import set_environment
from strop.errors import Interrupted
from strop.python_rewards import PythonRewards, list_rewards
from strop.reading import key_owner
from strop.run.entry.result import RunResult
from strop.workers.cleanup import cleanup
from strop.workers.imports import without_collections
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from strop.run.drivers.callbacks import Callback, RunControl

__all__ = [
    "Callback",
    "LoadedRun",
    "RewardFn",
    "RunControl",
    "RunHandle",
    "RunResult",
    "evaluate",
    "export",
    "generate",
    "load",
    "start",
    "train",
]

RewardFn = Callable[..., Any]


def __getattr__(name: str) -> Any:
    # Lazy: the module of the callbacks imports numpy.
    if name in ("Callback", "RunControl"):
        from strop.run.drivers import callbacks

        return getattr(callbacks, name)
    raise AttributeError(f"module 'strop.api' has no attribute {name!r}")


def load(
    run: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, here: bool = False
) -> LoadedRun:
    """Read a run file, or take its values as a dict. Raises `ConfigError`.

    Args:
        run: path of a run file, or the values of one.
        overrides: Hydra overrides such as `trainer.duration=1 epochs`.
        here: replace what asks for hardware that this machine lacks.
    """
    if isinstance(run, Mapping):
        loaded = load_values(run, overrides, here=here, key_owner=key_owner)
    else:
        loaded = load_run(Path(run), overrides, here=here, key_owner=key_owner)
    for note in loaded.runs[0].notes:
        warnings.warn(note, FutureWarning, stacklevel=2)
    return loaded


def train(
    run: LoadedRun,
    *,
    reward: RewardFn | None = None,
    callbacks: Sequence[Callback | Any] = (),
    change: Sequence[str] = (),
) -> RunResult:
    """Run to the end, or continue where an earlier start of the same run stopped.

    A run with stages runs them all and returns the result of the last one. Under torchrun only the first process
    returns; the others are ranks of its run, and end with it.

    Args:
        run: the run that `load` returned.
        reward: a function such as `f(completion, answer) -> float`, added to the rewards of the run file.
        callbacks: objects with some of the methods of `Callback`, called during training.
        change: fields that a stopped run continues with as they are now, such as `trainer.optimizer.lr`, `data.train`
            for rows that have changed, or `reward` for this function.

    Raises:
        Interrupted: SIGINT or SIGTERM stopped the run. Its state is saved; the same call continues it. In a
            script that does not catch it, Python prints one line and exits with code 130 or 143.
        StropError: the run cannot continue.
    """
    if change:
        from strop.run.state.identity import change_configuration

        for stage in run.runs:
            print(change_configuration(stage.run, change, _all_rewards(stage, reward)), flush=True)
    return _train(run, reward, callbacks, StopSignal())


def start(
    run: LoadedRun, *, reward: RewardFn | None = None, callbacks: Sequence[Callback | Any] = ()
) -> RunHandle:
    """Start `train` in a background thread; the handle stops the run and waits for its result."""
    return RunHandle(run, reward, callbacks)


class RunHandle:
    """A run in a background thread, as `start` returns it. All methods may be called from any thread."""

    def __init__(self, run: LoadedRun, reward: RewardFn | None = None, callbacks: Sequence[Any] = ()) -> None:
        self._stop = StopSignal()
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        # Not Thread.join: after a KeyboardInterrupt in it, CPython 3.11 takes a running thread for ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run, reward, callbacks), name="strop-run")
        self._thread.start()

    def _work(self, run: LoadedRun, reward: RewardFn | None, callbacks: Sequence[Any]) -> None:
        try:
            self._result = _train(run, reward, callbacks, self._stop)
        except BaseException as error:  # noqa: BLE001  (`wait` raises it in the caller's thread)
            self._error = error
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._ended.is_set()

    @property
    def result(self) -> RunResult | None:
        """The result; None while the run is in progress, and after an error."""
        return self._result

    def stop(self) -> None:
        """Stop the run at the next opportunity, and return at once.

        The run saves its state and writes the model; `wait` returns a result whose `stopped` is true. A
        later start of the same run continues it.
        """
        self._stop.request_stop()

    def wait(self, timeout_seconds: float | None = None) -> RunResult:
        """Wait for the end of the run and return its result, or raise the error that ended it.

        Ctrl-C in a script that waits stops the run as Ctrl-C in `train` does. Raises `TimeoutError` where
        the run is still in progress after `timeout_seconds`.
        """
        try:
            ended = self._ended.wait(timeout_seconds)
        except KeyboardInterrupt:
            self._stop.request_stop(signal.SIGINT)
            ended = self._ended.wait()
        if not ended:
            raise TimeoutError(f"The run is still in progress after {timeout_seconds:g} seconds.")
        if self._error is not None:
            if isinstance(self._error, Interrupted):
                _print_interrupts_in_one_line()
            raise self._error
        assert self._result is not None
        return self._result


def _train(run: LoadedRun, reward: RewardFn | None, callbacks: Sequence[Any], stop: StopSignal) -> RunResult:
    from strop.run.distributed.torchrun import join_torchrun_run, torchrun_session
    from strop.run.entry.start import finished_result

    join_torchrun_run()
    results: list[RunResult] = []
    try:
        with torchrun_session(run):
            for stage in run.runs:
                finished = finished_result(stage, _all_rewards(stage, reward)) if run.stages else None
                results.append(finished or _train_one(stage, reward, callbacks, stop))
                if results[-1].stopped:
                    break
    except Interrupted:
        _print_interrupts_in_one_line()
        raise
    except KeyboardInterrupt:
        _print_interrupts_in_one_line()
        raise Interrupted(
            "Stopped by SIGINT before the state could be saved. The same command continues from the last "
            "checkpoint, or starts from the beginning.",
            signal.SIGINT,
        ) from None
    return results[-1]


def _train_one(
    run: LoadedRun, reward: RewardFn | None, callbacks: Sequence[Any], stop: StopSignal
) -> RunResult:
    from strop.report.build import write_bench, write_report
    from strop.run.entry.start import start_run

    rewards, callbacks = _all_rewards(run, reward), (*run.callbacks, *callbacks)
    if run.run.mode == "bench":
        with set_environment(run.environment):
            result = start_run(run, rewards, stop=stop, callbacks=callbacks)
        if not result.stopped:
            write_bench(result.folder)
        return result

    def report() -> None:
        """A run that failed or was stopped gets a report of the steps that it has."""
        if run.run.record.report and (run.run.folder_path / "metrics.jsonl").is_file():
            write_report(run.run.folder_path)

    with set_environment(run.environment), cleanup(report):
        return start_run(run, rewards, stop=stop, callbacks=callbacks)


def _all_rewards(run: LoadedRun, reward: RewardFn | None) -> PythonRewards | None:
    """The functions of the program that configures the run, and `reward`."""
    return (*run.rewards, *list_rewards(reward)) or None


def _print_interrupts_in_one_line() -> None:
    """From now on an uncaught `Interrupted` prints its message, and exits with 128 plus the signal."""
    if sys.excepthook is not _excepthook:
        _excepthook.previous = sys.excepthook
        sys.excepthook = _excepthook


class _Excepthook:
    """`sys.excepthook` that prints no traceback for `Interrupted`."""

    previous: Callable[[type[BaseException], BaseException, TracebackType | None], Any] = staticmethod(
        traceback.print_exception
    )

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Interrupted):
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        self.previous(kind, error, trace)


_excepthook = _Excepthook()


def evaluate(
    run: LoadedRun, *, checkpoint: str | Path | None = None, reward: RewardFn | None = None
) -> dict[str, float]:
    """Evaluate the eval tasksets with the initial model, or with a checkpoint's weights."""
    with without_collections():
        from strop.run.entry.evaluate import evaluate as run_evaluate

    return run_evaluate(run, Path(checkpoint) if checkpoint else None, _all_rewards(run, reward))


def generate(
    run: LoadedRun, prompts: str | Path, out: str | Path, *, checkpoint: str | Path | None = None
) -> int:
    """Sample completions for every prompt of a Parquet or JSONL file with `rollout.sampling`.

    Writes the rows with a column `responses` as Parquet to `out`; returns the number of prompts.
    """
    with without_collections():
        from strop.run.entry.generate import generate as run_generate

    return run_generate(run, Path(prompts), Path(out), Path(checkpoint) if checkpoint else None)


def export(
    folder: str | Path,
    to: str | Path,
    *,
    step: int | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
) -> Path:
    """Export a run's checkpoint (the newest intact one, or that of `step`) as a Hugging Face folder.

    `dtype` is the data type of the weights, in place of the run's `export.dtype`.
    """
    with without_collections():
        from strop.run.entry.export import export_checkpoint

    return export_checkpoint(Path(folder), Path(to), step, dtype)
