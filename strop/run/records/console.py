"""A run as it is seen while it runs: a live display in a terminal, one line per step in a log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from strop.run.records.wording import duration, number, sparkline

_HISTORY = 40

_LINE = (
    ("reward", "reward/mean"),
    ("loss", "sft_loss"),
    ("margin", "dpo/margin"),
    ("accuracy", "dpo/accuracy"),
    ("kl", "kl/ref"),
    ("entropy", "entropy"),
    ("tokens", "response_tokens/mean"),
    ("grad", "grad_norm"),
)
"""What a log's line shows, where it was measured."""
_AMISS = (("missing", "groups/missing"), ("too old", "groups/too_old"), ("evicted", "groups/evicted"))
"""What it says of a step's groups where there were any such."""
_COURSE = (("reward", "reward/mean"), ("margin", "dpo/margin"), ("loss", "sft_loss"))
"""What a live display draws: the first of these that is measured."""


class Display(Protocol):
    """What shows a run."""

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None: ...
    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class NoDisplay:
    """Shows nothing: the console is none of the run's monitors."""

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None: ...
    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def say(self, line: str) -> None: ...
    def close(self) -> None: ...


class LogLines:
    """One plain line per step, for a file or a pipe."""

    def __init__(self, stream: TextIO, steps: int) -> None:
        self._stream = stream
        self._steps = steps
        self._pace = Pace(steps)

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None:
        self._pace.start(done)
        for line in (title, *notes):
            self._print(line)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._pace.step(step)
        parts = [f"step {step:>{len(str(self._steps))}}/{self._steps}"]
        parts += [f"{label} {number(metrics[name]):<6}" for label, name in _LINE if name in metrics]
        if "tokens_per_second" in metrics:
            parts.append(f"{metrics['tokens_per_second']:>6,.0f} tokens/s")
        if "time/step_seconds" in metrics:
            parts.append(duration(metrics["time/step_seconds"]))
        if metrics.get("staleness/max"):
            parts.append(f"stale {number(metrics['staleness/mean'])}")
        left = self._pace.seconds_left()
        if left:
            parts.append(f"left {duration(left)}")
        parts += [f"{name} {number(value)}" for name, value in held_out(metrics).items()]
        broken = max((value for name, value in metrics.items() if name.endswith("/error_share")), default=0)
        if broken:
            parts.append(f"broken {broken:.0%}")
        parts += [f"{label} {metrics[name]:.0f} groups" for label, name in _AMISS if metrics.get(name)]
        self._print("  ".join(parts).rstrip())

    def say(self, line: str) -> None:
        self._print(line)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveDisplay:
    """A bar, the course of the reward (or of the loss), the last held-out measurement, speed, time left."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._pace = Pace(steps)
        self._course: deque[float] = deque(maxlen=_HISTORY)
        self._course_label = ""
        self._held_out: dict[str, list[float]] = {}
        self._last: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(bar_width=_HISTORY),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("run", total=steps, left="")
        self._live = Live(self._render(), console=console, refresh_per_second=4)

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None:
        self._pace.start(done)
        self._console.print(title, style="bold", highlight=False, markup=False)
        for note in notes:
            self._console.print(note, style="dim", highlight=False, markup=False)
        self._progress.update(self._task, completed=done)
        self._live.start()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._pace.step(step)
        self._last |= metrics
        for label, name in _COURSE:
            if name in metrics:
                self._course_label = label
                self._course.append(metrics[name])
                break
        for name, value in held_out(metrics).items():
            self._held_out.setdefault(name, []).append(value)
        left = self._pace.seconds_left()
        self._progress.update(self._task, completed=step, left=f"{duration(left)} left" if left else "")
        self._live.update(self._render())

    def say(self, line: str) -> None:
        self._console.print(line, style="dim", highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        rows = Table.grid(padding=(0, 2))
        if self._course:
            course = sparkline(list(self._course), _HISTORY)
            rows.add_row(self._course_label, f"[bold]{number(self._course[-1])}", course)
        for name, values in self._held_out.items():
            since = f"[dim]{number(values[0])} at first" if len(values) > 1 else ""
            course = f"{sparkline(values, _HISTORY)}  {since}" if len(values) > 1 else ""
            rows.add_row(f"held out: {name}", f"[bold green]{number(values[-1])}", course)
        if self._last.get("staleness/max"):
            age = number(self._last["staleness/mean"])
            rows.add_row("staleness", f"[bold]{age}", "[dim]steps, of the weights that sampled")
        if "tokens_per_second" in self._last:
            rows.add_row("speed", f"[bold]{self._last['tokens_per_second']:,.0f}", "[dim]tokens per second")
        return Group(self._progress, rows)


class Pace:
    """How long the steps take, and so how long the rest will."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._ends: deque[tuple[int, float]] = deque(maxlen=20)

    def start(self, done: int) -> None:
        """The clock starts after so many steps."""
        self._ends.append((done, time.monotonic()))

    def step(self, step: int) -> None:
        """One more step is done. The first row, before any step, starts the clock anew."""
        if self._ends and self._ends[-1][0] == step:
            self._ends.clear()
        self._ends.append((step, time.monotonic()))

    def seconds_left(self) -> float | None:
        """None before the first step is done."""
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        if last == first:
            return None
        return (ended - began) / (last - first) * (self._steps - last)


def held_out(metrics: Mapping[str, float]) -> dict[str, float]:
    """The mean reward of each eval taskset that was measured, by its name; and its loss, by `<name> loss`."""
    found = {}
    for name, value in metrics.items():
        if name.startswith("eval/") and name.endswith(("/reward", "/loss")):
            found[name.removeprefix("eval/").removesuffix("/reward").replace("/loss", " loss")] = value
    return found


def make_display(stream: TextIO, steps: int) -> Display:
    """Live where the stream is a terminal, lines where it is not."""
    console = Console(file=stream)
    return LiveDisplay(console, steps) if console.is_terminal else LogLines(stream, steps)
