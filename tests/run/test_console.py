"""The console monitor: plain lines in a log file, a live display in a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from strop.run.recording.console import LineDisplay, LiveDisplay, TimeRemaining, make_display
from strop.runs.formatting import format_duration, format_number, sparkline

ROW = {
    "reward/mean": 0.53125,
    "kl/ref": 0.00123,
    "response_tokens/mean": 23.12,
    "tokens_per_second": 2310.4,
    "time/step_seconds": 3.21,
}


def test_a_log_has_one_plain_line_per_step() -> None:
    stream = io.StringIO()
    display = make_display(stream, 60)
    assert isinstance(display, LineDisplay)
    display.open("gsm8k / a run", ["Resuming after step 11."], done=11)
    display.step(12, ROW | {"eval/sums/reward": 0.612, "rollouts/error_fraction": 0.03})
    display.close()
    title, note, line = stream.getvalue().splitlines()
    assert (title, note) == ("gsm8k / a run", "Resuming after step 11.")
    assert line.startswith("step 12/60  reward 0.531  kl 0.001  length 23.1    2,310 tokens/s  3.2 s")
    assert line.endswith("sums 0.612  failed 3%") and "stale" not in line
    display.step(13, ROW | {"staleness/mean": 0.75, "staleness/max": 2.0})
    assert "  stale 0.750" in stream.getvalue().splitlines()[-1]
    assert "\x1b" not in stream.getvalue()


def live_display() -> tuple[LiveDisplay, io.StringIO]:
    stream = io.StringIO()
    return LiveDisplay(
        Console(file=stream, force_terminal=True, width=120, height=30, no_color=True), 60
    ), stream


def test_a_terminal_shows_progress_reward_and_held_out() -> None:
    display, stream = live_display()
    display.open("[a] run", [], done=0)
    display.step(0, {"eval/sums/reward": 0.25})
    display.step(1, ROW)
    display.step(2, ROW | {"eval/sums/reward": 0.75, "staleness/mean": 1.5, "staleness/max": 2.0})
    display.close()
    words = (
        "[a] run",
        "step 2 of 60",
        "held out: sums",
        "0.750",
        "0.250 initially",
        "2,310",
        "left",
        "1.500",
    )
    assert [word for word in words if word not in stream.getvalue()] == []


def test_steps_before_the_display_was_opened_are_in_the_curves() -> None:
    display, stream = live_display()
    display.open("a run", [], done=2)
    display.earlier_step({"eval/sums/reward": 0.25})
    display.earlier_step(ROW | {"reward/mean": 0.1})
    display.step(2, ROW | {"eval/sums/reward": 0.75})
    display.close()
    assert "▁█" in stream.getvalue() and "0.250 initially" in stream.getvalue()


def test_time_left_is_the_mean_step_times_the_steps_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 130.0, 134.0, 140.0])
    # Not the clock of `time` itself, which threads of the process read too.
    monkeypatch.setattr("strop.run.recording.console.time", SimpleNamespace(monotonic=lambda: next(clock)))
    remaining = TimeRemaining(steps=10)
    remaining.start(4)
    remaining.step(4)  # the row before the first step; the initial evaluation does not count as a step
    assert remaining.seconds() is None
    remaining.step(5)
    remaining.step(6)
    assert remaining.seconds() == pytest.approx((140 - 130) / 2 * 4)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for term, display in (("dumb", LineDisplay), ("xterm", LiveDisplay)):
        monkeypatch.setenv("TERM", term)
        assert isinstance(make_display(Terminal(), 6), display)


def test_durations_and_numbers() -> None:
    durations = {
        0.04: "0.0 s",
        3.21: "3.2 s",
        61: "1 min 1 s",
        3600: "1 h",
        3725: "1 h 2 min",
        102240: "1 d 4 h",
    }
    assert {seconds: format_duration(seconds) for seconds in durations} == durations
    numbers = {
        0: "0",
        3: "3",
        0.5312: "0.531",
        12.345: "12.3",
        12310.4: "12,310",
        1.23e-5: "1.2e-05",
        -0.5: "-0.500",
    }
    assert {value: format_number(value) for value in numbers} == numbers


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([5, 5, 5], 2) == "▄▄"
    assert sparkline([], 3) == ""
