"""User callbacks of a training run, and how a callback stops the run."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.errors import CallbackError, ConfigError, Interrupted
from strop.types import RolloutGroup
from strop.workers.signals import StopSignal


class RunControl:
    """Stops a run from a callback or from any thread."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop

    def stop(self) -> None:
        """Stop the run at the next opportunity, at the latest after the current step's updates.

        The run saves its state and writes the model; the same command continues it.
        """
        self._stop.request_stop()


class Callback:
    """Base class of callbacks. Override the methods you need; any object with some of them works too.

    All methods are called in the thread of the training loop, which waits for them. An exception ends
    the run with an error that names the callback.
    """

    def on_start(self, control: RunControl) -> None:
        """Called once before the first step; keep `control` to stop the run later."""

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Called after each step with its row of `metrics.jsonl`; `metrics["step"]` is the step."""

    def on_rollouts(self, groups: Sequence[RolloutGroup]) -> None:
        """Called with each step's scored rollouts, before the step's updates."""

    def on_evaluate(self, name: str, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation, once per eval taskset: `metrics["step"]` and the `eval/<name>/*`."""

    def on_save(self, path: Path) -> None:
        """Called once a checkpoint is complete, with its folder."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise ConfigError for what is no sequence of objects with methods of `Callback`."""
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(
            f"callbacks is of type {type(callbacks).__name__}. Write a list: callbacks=[callback]."
        )
    methods = [name for name in vars(Callback) if name.startswith("on_")]
    for each in callbacks:
        if not any(callable(getattr(each, name, None)) for name in methods):
            raise ConfigError(
                f"callbacks has an object of type {type(each).__name__} without a method of strop.Callback: "
                f"{', '.join(methods)}."
            )
        if isinstance(each, type):
            raise ConfigError(f"callbacks has the class {each.__name__}. Write an object: {each.__name__}().")


class CallbackList:
    """Calls the methods that each callback has, in the order of the callbacks."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = tuple(callbacks)

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def on_start(self, control: RunControl) -> None:
        """See `Callback.on_start`."""
        self._call("on_start", control)

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """See `Callback.on_step`."""
        if self._callbacks:
            self._call("on_step", dict(metrics))

    def on_rollouts(self, groups: Sequence[RolloutGroup]) -> None:
        """See `Callback.on_rollouts`."""
        self._call("on_rollouts", groups)

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        """Call `Callback.on_evaluate` once for each taskset that has metrics."""
        if not self._callbacks:
            return
        names = dict.fromkeys(name.split("/")[1] for name in metrics if name.startswith("eval/"))
        for name in names:
            own = {key: value for key, value in metrics.items() if key.startswith(f"eval/{name}/")}
            self._call("on_evaluate", name, {"step": float(step), **own})

    def on_save(self, path: Path) -> None:
        """See `Callback.on_save`."""
        self._call("on_save", path)

    def _call(self, method: str, *arguments: object) -> None:
        for callback in self._callbacks:
            function = getattr(callback, method, None)
            if function is None:
                continue
            try:
                function(*arguments)
            except Interrupted:
                raise
            except Exception as error:
                raise CallbackError(_describe(callback, method, error)) from error


def _describe(callback: object, method: str, error: Exception) -> str:
    kind = type(callback)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return (
        f"The callback {kind.__module__}.{kind.__qualname__} raised {type(error).__name__} in {method}: "
        f"{error}{place}. The run stops; after the callback is corrected, the same command continues from the "
        "last checkpoint."
    )
