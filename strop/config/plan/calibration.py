"""Times and memory of a run's steps as measured on this machine, and what they say of the whole run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from strop.config.plan.machine import GIB
from strop.config.schema.run import Run
from strop.config.step_arithmetic import to_steps
from strop.errors import ConfigError

_SAMPLING = ("time/sample_seconds", "time/explore_seconds", "time/reward_seconds")
_TRAINING = (
    "time/logprobs_seconds",
    "time/critic_seconds",
    "time/process_reward_seconds",
    "time/update_seconds",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Means over measured steps of a run on one machine."""

    date: str
    """Day of the measurement, as YYYY-MM-DD."""
    steps: int
    """Number of measured steps."""
    step_seconds: float
    sampling_seconds: float
    """Part of it that samples and scores; 0 for SFT and DPO."""
    training_seconds: float
    """Part of it that computes log-probs, values and updates."""
    response_tokens: float | None
    """Mean length of the responses; None for SFT and DPO."""
    steps_per_epoch: float | None
    """None where the rows do not say."""
    peak_bytes: int
    """Peak resident memory of the trainer's first process."""


def calibration_of(rows: Sequence[Mapping[str, float]], date: str) -> Calibration:
    """Means of the metrics of some steps, without the first of them, which also allocates memory.

    Raises ConfigError if there are fewer than two.
    """
    measured = rows[1:]
    if not measured:
        raise ConfigError(
            f"The run ended after {len(rows)} steps, and a calibration leaves out the first of them. "
            "It needs tasks for two steps."
        )

    def mean(*names: str) -> float:
        return fmean(sum(row.get(name, 0.0) for name in names) for row in measured)

    last = measured[-1]
    return Calibration(
        date,
        len(measured),
        mean("time/step_seconds"),
        mean(*_SAMPLING),
        mean(*_TRAINING),
        mean("response_tokens/mean") if "response_tokens/mean" in last else None,
        last["step"] / last["epoch"] if last.get("epoch") else None,
        int(last["memory/peak_mb"] * 1e6),
    )


def calibration_lines(run: Run, found: Calibration) -> Iterator[str]:
    """Seconds of a step by phase, the duration of the run, and the measured memory."""
    responses = ""
    if found.response_tokens is not None:
        responses = (
            f", with responses of {found.response_tokens:.0f} tokens on average (at most "
            f"{run.data.max_response_tokens})"
        )
    phases = f"{found.training_seconds:.1f} s of it training"
    if found.sampling_seconds:
        phases = f"{found.sampling_seconds:.1f} s of it sampling and scoring, {found.training_seconds:.1f} s training"
    yield (
        f"Step: {found.step_seconds:.1f} s, {phases}; measured on this machine on {found.date}, mean of {found.steps} "
        f"steps{responses}."
    )
    steps = _total_steps(run, found)
    if steps is not None:
        yield (
            f"Run: {_duration(steps * found.step_seconds)} for {steps:,.0f} steps of this length, without evaluations "
            "and checkpoints."
        )
    yield f"Measured peak of the trainer's process: {found.peak_bytes / GIB:.2f} GiB of memory of the CPU."


def _total_steps(run: Run, found: Calibration) -> float | None:
    """Steps of the whole run; None where its duration does not determine them."""
    duration = to_steps(run, run.trainer.duration) or run.trainer.duration
    if duration.unit == "steps":
        return float(duration.count)
    if duration.unit == "epochs" and found.steps_per_epoch is not None:
        return float(duration.count) * found.steps_per_epoch
    return None


def _duration(seconds: float) -> str:
    """A duration with a unit that suits it."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"
