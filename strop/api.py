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
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from strop.config.load.config_tree import ConfigTree, Source
from strop.config.load.loader import LoadedRun, load_run, load_values
from strop.config.redact import set_environment
from strop.config.save import escape_interpolations
from strop.errors import ConfigError, Interrupted
from strop.library.callables import Rewards, list_functions
from strop.library.inputs import Inputs, Rows, require_functions
from strop.library.run_view import LiveLine, in_notebook, may_watch
from strop.library.sections import RunDefinition
from strop.python_rewards import PythonReward, PythonRewards, list_rewards
from strop.reading import key_owner
from strop.run.entry.start import RunResult
from strop.workers.cleanup import cleanup
from strop.workers.fork_server import without_collections
from strop.workers.signals import StopSignal

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from strop.config.schema.run import Run
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
    run: LoadedRun | RunDefinition | str | Path | Mapping[str, Any],
    *,
    data: Rows | None = None,
    eval: Rows | Mapping[str, Rows] | None = None,
    model: str | Path | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reward: Rewards | None = None,
    workflow: Callable[..., Any] | str | None = None,
    tools: Sequence[Callable[..., Any] | str] | None = None,
    advantages: Callable[..., Any] | str | None = None,
    loss: Callable[..., Any] | str | None = None,
    callbacks: Sequence[Callback | Any] = (),
    change: Sequence[str] = (),
) -> RunResult:
    """Run to the end, or continue where an earlier start of the same run stopped.

    A run with stages runs them all and returns the result of the last one. Under torchrun only the first process
    returns; the others are ranks of its run, and end with it.

    Data and a model from memory are written into `inputs` of the run's folder, so that a resume reads the same. A
    function that can be imported is recorded by its path; any other one runs in this process only, and only the same
    call continues its run.

    Args:
        run: a run file, its values as a dict, a `strop.Run`, or what `load` returned.
        data: training rows, in place of `data.train.path`: a list of dicts, a `datasets.Dataset` or
            `IterableDataset`, which is read to its end, a pandas or polars data frame, or an Arrow table. The columns
            are `prompt` and `answer`, or those that the run names.
        eval: rows of the eval taskset, or a dict of rows by the taskset's name.
        model: folder, name on the Hub, or a loaded model, of which the run trains a copy.
        tokenizer: tokenizer of a loaded model.
        reward: a function such as `f(completion, answer) -> float`, or a list of functions and `strop.Reward`, added to
            the rewards of the run file.
        workflow: function `(task, chat)` that turns a task into a rollout.
        tools: functions that the model may call; the workflow is then `tools`.
        advantages: function `(batch: RolloutBatch) -> Tensor`, in place of the algorithm's.
        loss: function `(micro_batch, outputs, counts) -> LossOutput`, in place of the algorithm's.
        callbacks: objects with some of the methods of `Callback`, called during training.
        change: fields that a stopped run continues with as they are now, such as `trainer.optimizer.lr`, `data.train`
            for rows that have changed, or `reward` for this function.

    Raises:
        ConfigError: the run, or an argument, has a value that is not accepted.
        DataError: the data has no rows, no column of prompts, or rows with different keys.
        Interrupted: SIGINT or SIGTERM stopped the run. Its state is saved; the same call continues it. In a
            script that does not catch it, Python prints one line and exits with code 130 or 143.
        StropError: the run cannot continue.
    """
    inputs = Inputs(data, eval, model, tokenizer, reward, workflow, tools, advantages, loss)
    loaded, rewards = _prepared(run, inputs, callbacks, change)
    if in_notebook() and may_watch(loaded):
        callbacks = (*callbacks, LiveLine())
    return _train(loaded, rewards, callbacks, StopSignal())


def _prepared(
    run: LoadedRun | RunDefinition | str | Path | Mapping[str, Any],
    inputs: Inputs,
    callbacks: Sequence[Any],
    change: Sequence[str],
) -> tuple[LoadedRun, tuple[PythonReward, ...]]:
    """The loaded run with the arguments of `train`, and its rewards; records the changes of a stopped run."""
    from strop.run.drivers.callbacks import check_callbacks

    check_callbacks(callbacks)
    loaded, rewards = _with_inputs(run, inputs)
    if change:
        from strop.run.state.identity import change_configuration

        for stage in loaded.runs:
            print(change_configuration(stage.run, change, _all_rewards(stage, rewards)), flush=True)
    return loaded, rewards


def _with_inputs(
    run: LoadedRun | RunDefinition | str | Path | Mapping[str, Any], inputs: Inputs
) -> tuple[LoadedRun, tuple[PythonReward, ...]]:
    """The loaded run with the arguments of `train` in it, and the rewards without an import path."""

    def complete(tree: ConfigTree) -> None:
        for keys, value in inputs.values(tree.get).items():
            for depth in range(1, len(keys)):  # such as `workflow: math`, or a list of tasksets
                if tree.has(keys[:depth]) and not isinstance(tree.get(keys[:depth]), dict):
                    tree.delete(keys[:depth])
            tree.set(keys, value, Source("python", "strop.train"))

    if isinstance(run, RunDefinition) and (own := list_functions(run.reward_functions)):
        inputs = replace(inputs, reward=[*own, *list_functions(inputs.reward)])
    if isinstance(run, LoadedRun):
        if not (given := inputs.values(lambda keys: None)):
            loaded = run
        else:
            values = escape_interpolations(run.run.model_dump(mode="json")) if not run.stages else None
            if values is None:
                raise ConfigError(
                    f"A loaded run with stages cannot get {next(iter(given))[0]} from Python. Pass the run file's path "
                    "in place of strop.load(...)."
                )
            loaded = load_values(values, complete=complete, key_owner=key_owner)
            loaded = replace(loaded, run=loaded.run.with_interpolations(run.run.interpolations))
            loaded = replace(
                loaded,
                rewards=run.rewards,
                callbacks=run.callbacks,
                environment=run.environment,
                notes=run.notes,
            )
    elif isinstance(run, RunDefinition):
        loaded = load_values(run.values(), origin="strop.Run", complete=complete, key_owner=key_owner)
    elif isinstance(run, Mapping):
        loaded = load_values(run, complete=complete, key_owner=key_owner)
    else:
        loaded = load_run(Path(run), complete=complete, key_owner=key_owner)
    return inputs.attach(loaded)


def start(
    run: LoadedRun | RunDefinition | str | Path | Mapping[str, Any],
    *,
    data: Rows | None = None,
    eval: Rows | Mapping[str, Rows] | None = None,
    model: str | Path | PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reward: Rewards | None = None,
    workflow: Callable[..., Any] | str | None = None,
    tools: Sequence[Callable[..., Any] | str] | None = None,
    advantages: Callable[..., Any] | str | None = None,
    loss: Callable[..., Any] | str | None = None,
    callbacks: Sequence[Callback | Any] = (),
    change: Sequence[str] = (),
) -> RunHandle:
    """Start `train` in a background thread; the handle stops the run and waits for its result.

    The arguments are those of `train`, and so are the errors of a run that is not accepted.
    """
    inputs = Inputs(data, eval, model, tokenizer, reward, workflow, tools, advantages, loss)
    loaded, rewards = _prepared(run, inputs, callbacks, change)
    return RunHandle(loaded, rewards, callbacks)


class RunHandle:
    """A run in a background thread, as `start` returns it. All methods may be called from any thread."""

    def __init__(
        self, run: LoadedRun, rewards: Sequence[PythonReward] = (), callbacks: Sequence[Any] = ()
    ) -> None:
        self._stop = StopSignal()
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        # Not Thread.join: after a KeyboardInterrupt in it, CPython 3.11 takes a running thread for ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(run, rewards, callbacks), name="strop-run")
        self._thread.start()

    def _work(self, run: LoadedRun, rewards: Sequence[PythonReward], callbacks: Sequence[Any]) -> None:
        try:
            self._result = _train(run, rewards, callbacks, self._stop)
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


def _train(
    run: LoadedRun, reward: Sequence[PythonReward], callbacks: Sequence[Any], stop: StopSignal
) -> RunResult:
    from strop.report.build import write_bench
    from strop.run.distributed.torchrun import join_torchrun_run, torchrun_session
    from strop.run.entry.start import finished_result, start_run

    join_torchrun_run()
    results: list[RunResult] = []
    try:
        with torchrun_session(run):
            for stage in run.runs:
                rewards = _all_rewards(stage, reward)
                result = finished_result(stage, rewards) if run.stages else None
                if result is None:
                    require_functions(stage.run, list_rewards(rewards))
                    own = (*stage.callbacks, *callbacks)
                    with set_environment(stage.environment), cleanup(partial(_report, stage.run)):
                        result = start_run(stage, rewards, stop=stop, callbacks=own)
                    if stage.run.mode == "bench" and not result.stopped:
                        write_bench(result.folder)
                results.append(result)
                if result.stopped:
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


def _report(run: Run) -> None:
    """Write the report of a run; one that failed or was stopped has the steps until then."""
    if run.mode != "bench" and run.record.report and (run.folder_path / "metrics.jsonl").is_file():
        from strop.report.build import write_report

        write_report(run.folder_path)


def _all_rewards(run: LoadedRun, rewards: PythonRewards | None) -> PythonRewards | None:
    """The functions of the program that configures the run, and `rewards`."""
    return (*run.rewards, *list_rewards(rewards)) or None


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
