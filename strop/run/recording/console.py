"""Console monitor: a live display in a terminal, or one line per step in a log file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from strop.config.redact import safe_text
from strop.run.recording.monitor import SessionInfo
from strop.runs.formatting import format_duration, format_number, sparkline
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup

_CURVE_LENGTH = 40

_LINE_METRICS = (
    ("reward", "reward/mean"),
    ("loss", "sft_loss"),
    ("margin", "pairs/margin"),
    ("accuracy", "pairs/accuracy"),
    ("kl", "kl/ref"),
    ("entropy", "entropy"),
    ("length", "response_tokens/mean"),
    ("grad", "grad_norm"),
)
"""Label and name of the metrics in a log line; a metric that a step did not measure is omitted."""
_DATA_WARNINGS = (
    ("missing", "groups/missing"),
    ("too old", "groups/stale_dropped"),
    ("evicted", "groups/evicted"),
)
"""Label and name of the group counts that a log line reports when they are above 0."""
_LIVE_CURVES = (("reward", "reward/mean"), ("margin", "pairs/margin"), ("loss", "sft_loss"))
"""Label and name of the metrics for the live display's curve; the first one that a step has is drawn."""


class Display(Protocol):
    """Renderer of a run's progress on one stream."""

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None: ...
    def earlier_step(self, metrics: Mapping[str, float]) -> None:
        """Take in a step that was made before the display was opened."""

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def print_line(self, line: str) -> None: ...
    def close(self) -> None: ...


class ConsoleMonitor:
    """Displays a run on the process's output stream."""

    def __init__(self) -> None:
        self._display: Display | None = None

    def start(self, session: SessionInfo) -> None:
        """Choose the display for the stream, and print the title and the notes."""
        self._stream, self._steps = session.stream, session.steps
        self._display = make_display(session.stream, session.steps)
        notes = [safe_text(note) for note in session.notes]
        self._display.open(safe_text(session.title), notes, done=session.steps_done)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Display the metrics of one step."""
        if (display := self._current_display()) is not None:
            display.step(step, metrics)

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Do nothing: rollouts are too long for a console."""

    def message(self, line: str) -> None:
        """Print a line."""
        if (display := self._current_display()) is not None:
            display.print_line(safe_text(line))

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """Close the display; the command line prints the error itself."""
        if self._display is not None:
            self._display.close()
            self._display = None

    def _current_display(self) -> Display | None:
        """The display; lines take the place of a live display whose terminal has been closed."""
        if isinstance(self._display, LiveDisplay) and not self._stream.isatty():
            self._display.close()
            self._display = LineDisplay(self._stream, self._steps)
        return self._display


class LineDisplay:
    """Prints one plain line per step, for a file or a pipe."""

    def __init__(self, stream: TextIO, steps: int) -> None:
        self._stream = stream
        self._steps = steps
        self._remaining = TimeRemaining(steps)

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None:
        self._remaining.start(done)
        for line in (title, *notes):
            self._print(line)

    def earlier_step(self, metrics: Mapping[str, float]) -> None:
        pass

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._remaining.step(step)
        parts = [f"step {step:>{len(str(self._steps))}}/{self._steps}"]
        parts += [
            f"{label} {format_number(metrics[name]):<5}" for label, name in _LINE_METRICS if name in metrics
        ]
        if "tokens_per_second" in metrics:
            parts.append(f"{metrics['tokens_per_second']:>6,.0f} tokens/s")
        if "time/step_seconds" in metrics:
            parts.append(format_duration(metrics["time/step_seconds"]))
        if metrics.get("staleness/max"):
            parts.append(f"stale {format_number(metrics['staleness/mean'])}")
        remaining = self._remaining.seconds()
        if remaining:
            parts.append(f"left {format_duration(remaining)}")
        parts += [f"{name} {format_number(value)}" for name, value in eval_scores(metrics).items()]
        failed = max(
            (value for name, value in metrics.items() if name.endswith("/error_fraction")), default=0
        )
        if failed:
            parts.append(f"failed {failed:.0%}")
        parts += [
            f"{label} {metrics[name]:.0f} groups" for label, name in _DATA_WARNINGS if metrics.get(name)
        ]
        self._print("  ".join(parts).rstrip())

    def print_line(self, line: str) -> None:
        self._print(line)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveDisplay:
    """Displays a progress bar, a curve of the reward or loss, held-out scores, speed, and remaining time."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._remaining = TimeRemaining(steps)
        self._curve: deque[float] = deque(maxlen=_CURVE_LENGTH)
        self._curve_label = ""
        self._eval_scores: dict[str, list[float]] = {}
        self._last: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            BarColumn(bar_width=_CURVE_LENGTH),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("run", total=steps, left="")
        self._live = Live(self._render(), console=console, refresh_per_second=4)

    def open(self, title: str, notes: Sequence[str], *, done: int) -> None:
        self._remaining.start(done)
        self._console.print(title, style="bold", highlight=False, markup=False)
        for note in notes:
            self._console.print(note, style="dim", highlight=False, markup=False)
        self._progress.update(self._task, completed=done)
        self._live.start()

    def earlier_step(self, metrics: Mapping[str, float]) -> None:
        self._add(metrics)
        self._live.update(self._render())

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._remaining.step(step)
        self._add(metrics)
        remaining = self._remaining.seconds()
        self._progress.update(
            self._task, completed=step, left=f"{format_duration(remaining)} left" if remaining else ""
        )
        self._live.update(self._render())

    def _add(self, metrics: Mapping[str, float]) -> None:
        """Add a step's values to the curves."""
        self._last |= metrics
        for label, name in _LIVE_CURVES:
            if name in metrics:
                self._curve_label = label
                self._curve.append(metrics[name])
                break
        for name, value in eval_scores(metrics).items():
            self._eval_scores.setdefault(name, []).append(value)

    def print_line(self, line: str) -> None:
        self._console.print(line, style="dim", highlight=False, markup=False)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Group:
        rows = Table.grid(padding=(0, 2))
        if self._curve:
            curve = sparkline(list(self._curve), _CURVE_LENGTH)
            rows.add_row(self._curve_label, f"[bold]{format_number(self._curve[-1])}", curve)
        for name, values in self._eval_scores.items():
            since = f"[dim]{format_number(values[0])} initially" if len(values) > 1 else ""
            curve = f"{sparkline(values, _CURVE_LENGTH)}  {since}" if len(values) > 1 else ""
            rows.add_row(f"held out: {escape(name)}", f"[bold green]{format_number(values[-1])}", curve)
        if self._last.get("staleness/max"):
            age = format_number(self._last["staleness/mean"])
            rows.add_row(
                "staleness", f"[bold]{age}", "[dim]steps between the sampling weights and the trained weights"
            )
        if "tokens_per_second" in self._last:
            rows.add_row("speed", f"[bold]{self._last['tokens_per_second']:,.0f}", "[dim]tokens per second")
        return Group(self._progress, rows)


class TimeRemaining:
    """Estimate of the remaining time, from the mean duration of the last 20 steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._ends: deque[tuple[int, float]] = deque(maxlen=20)

    def start(self, done: int) -> None:
        """Start the clock, with `done` steps already completed."""
        self._ends.append((done, time.monotonic()))

    def step(self, step: int) -> None:
        """Record the end of a step, or of its evaluation. The row before the first step restarts the clock."""
        if self._ends and self._ends[-1][0] == step:
            self._ends.pop()
        self._ends.append((step, time.monotonic()))

    def seconds(self) -> float | None:
        """Remaining seconds; None before the first step has ended."""
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        if last == first:
            return None
        return (ended - began) / (last - first) * (self._steps - last)


def eval_scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """Select the mean reward of each eval taskset, under its name, and its loss, under `<name> loss`."""
    found = {}
    for name, value in metrics.items():
        if name.startswith("eval/") and name.endswith(("/reward", "/loss")):
            found[safe_text(name).removeprefix("eval/").removesuffix("/reward").replace("/loss", " loss")] = (
                value
            )
    return found


def make_display(stream: TextIO, steps: int) -> Display:
    """Construct a live display for a terminal that can move the cursor, and a line display otherwise."""
    console = Console(file=stream)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(console, steps)
    return LineDisplay(stream, steps)
