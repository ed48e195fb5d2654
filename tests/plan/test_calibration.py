"""Seconds of a run's steps as measured, and what follows for the whole run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strop.config.schema import Run
from strop.errors import ConfigError
from strop.plan.fit import Calibration, calibration_lines, calibration_of

CALIBRATION = Calibration("2026-11-23", 2, 36.0, 20.0, 14.0, 31.6, 93.5, 3 * 2**30)


def row(step: int, seconds: float) -> dict[str, float]:
    parts = {"step": seconds, "sample": seconds / 2, "reward": 0.5, "update": seconds / 4}
    others = {"response_tokens/mean": 10.0 * step, "memory/peak_mb": 1000.0 * step}
    times = {f"time/{name}_seconds": value for name, value in parts.items()}
    return {"step": step, "epoch": step / 50, **times, **others}


def described(calibration: Calibration, duration: str, algorithm: str = "grpo") -> list[str]:
    values = {
        "model": {"path": "o/m"},
        "data": {"train": {"path": "o/d"}, "max_response_tokens": 64},
        "reward": "exact" if algorithm == "grpo" else {},
        "algorithm": algorithm,
        "trainer": {"duration": duration},
    }
    return list(calibration_lines(Run.model_validate(values), calibration, {}))


def test_the_first_step_is_left_out_of_the_means() -> None:
    found = calibration_of([row(1, 100.0), row(2, 4.0), row(3, 8.0)], "2026-11-23")
    seconds = (found.step_seconds, found.sampling_seconds, found.training_seconds)
    assert (found.steps, *seconds) == (2, 6.0, 3.5, 1.5)
    assert (found.response_tokens, found.steps_per_epoch, found.peak_bytes) == (25.0, 50.0, 3_000_000_000)
    with pytest.raises(ConfigError, match="tasks for two steps"):
        calibration_of([row(1, 100.0)], "2026-11-23")


def test_the_duration_of_the_run_follows_from_its_steps() -> None:
    step, whole, peak = described(CALIBRATION, "200 steps")
    parts = "Step: 36.0 s, 20.0 s of it sampling and scoring, 14.0 s training; measured on this machine"
    assert step.startswith(parts)
    assert "responses of 32 tokens on average (at most 64)" in step
    assert whole.startswith("Run: 2.0 hours for 200 steps")
    assert peak.endswith("3.00 GiB of memory of the CPU.")
    assert described(CALIBRATION, "2 epochs")[1].startswith("Run: 112.2 minutes for 187 steps")
    unknown = replace(CALIBRATION, steps_per_epoch=None)
    assert len(described(unknown, "2 epochs")) == 2


def test_supervised_training_samples_nothing() -> None:
    offline = replace(CALIBRATION, sampling_seconds=0.0, response_tokens=None)
    step, whole, _ = described(offline, "3 steps", "sft")
    assert "36.0 s, 14.0 s of it training; measured" in step and "responses" not in step
    assert whole.startswith("Run: 108 seconds for 3 steps")
