"""Verdict on a run: whether its held-out reward rose, fell or collapsed beyond chance, and what hinders learning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from strop.errors import see_troubleshooting
from strop.reward_comparison import are_equal
from strop.runs.formatting import format_number
from strop.runs.metrics_file import MetricsRow
from strop.runs.reader import RunData
from strop.runs.rollout_file import read_rollouts

MIN_STEPS = 3
"""Steps after which a run is judged."""
_MANY_TRUNCATED = 0.8
"""Fraction of truncated responses above which a run is warned about them."""
_SHOWN_TRUNCATED = 0.005
"""Fraction of truncated responses from which the verdict names them: a smaller one would be shown as 0%."""
_FAR_FROM_REFERENCE = 1.0
"""KL divergence from the reference model per token, in nats, above which a rising one is warned about."""


_NORMAL_95 = 1.96
"""Standard errors on each side of a 95% interval."""
_BEST_ERRORS = 3.0
"""Standard errors beyond which an evaluation is worse than the best one, which chance has favored."""
_COLLAPSED = 0.5
"""Fraction of the earlier reward below which a fallen one has collapsed."""


@dataclass(frozen=True, slots=True)
class MeanChange:
    """Difference between two means, with its standard error."""

    first: float
    last: float
    standard_error: float | None
    """None where it cannot be estimated."""

    @property
    def difference(self) -> float:
        """`last - first`."""
        return self.last - self.first

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the difference, of the normal distribution; None where its error is not known."""
        if self.standard_error is None:
            return None
        margin = _NORMAL_95 * self.standard_error
        return self.difference - margin, self.difference + margin

    @property
    def is_significant(self) -> bool:
        """Whether the 95% interval leaves 0 out; false where it is not known."""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


def learning_faults(rows: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Name what keeps a run from learning, and what to try: equal rewards or zero gradients in all steps, or mostly
    truncated responses in the last ones. Empty for fewer than `MIN_STEPS` steps with a gradient norm or rewards."""
    trained = [row for row in rows if row.get("grad_norm") is not None or row.get("reward/mean") is not None]
    if len(trained) < MIN_STEPS:
        return []
    faults = []
    equal = _values(trained, "groups/zero_variance_fraction")
    gradients = _values(trained, "grad_norm")
    if len(equal) == len(trained) and min(equal) == 1 and not _shaped(trained):
        faults.append(_equal_rewards(trained))
    elif len(gradients) >= MIN_STEPS and not any(gradients):
        faults.append(
            f"The gradient was zero in all {len(trained)} steps, so the weights did not change. Check the learning "
            "rate, masks and filters (data.overlong, algorithm, buffer.pipeline), which may leave nothing to train on."
        )
    truncated = _values(trained, "rollouts/truncated_fraction")[-MIN_STEPS:]
    if truncated and (mean := _mean(truncated)) > _MANY_TRUNCATED:
        faults.append(
            f"{mean:.0%} of the responses of the last {len(truncated)} steps were truncated by "
            "data.max_response_tokens, so most of them have no end to score. Try a larger data.max_response_tokens, a "
            "prompt that asks for short answers, or a model that has been fine-tuned to end its answers."
        )
    if faults:
        faults[-1] += f" {see_troubleshooting('the-reward-stays-flat')}"
    return [*faults, *_divergence_faults(trained)]


def _shaped(rows: Sequence[Mapping[str, float | None]]) -> bool:
    """Whether `buffer.pipeline` changed rewards, after those that the metrics of groups count."""
    shares = (row[name] for row in rows for name in row if fnmatchcase(name, "pipeline/*/changed_fraction"))
    return any(shares)


def _divergence_faults(rows: Sequence[Mapping[str, float | None]]) -> Iterator[str]:
    """Yield a KL divergence from the reference model that is large, and grew in each of the last steps."""
    last = _values(rows, "kl/ref")[-MIN_STEPS:]
    if len(last) == MIN_STEPS and min(last) > _FAR_FROM_REFERENCE and last == sorted(set(last)):
        yield (
            f"The KL divergence from the reference model grew to {format_number(last[-1])} per token (kl/ref), so the "
            "policy runs away from the model that it started from. Try a smaller trainer.optimizer.lr, or a larger "
            f"coefficient of the KL term. {see_troubleshooting('the-reward-rises-then-collapses')}"
        )


def _equal_rewards(rows: Sequence[Mapping[str, float | None]]) -> str:
    rewards = _values(rows, "reward/mean")
    mean = format_number(_mean(rewards)) if rewards else "unknown"
    start = (
        f"All responses to a task had equal rewards in all {len(rows)} steps (mean reward {mean}), so their advantages "
        "are 0 and nothing was learned. "
    )
    if rewards and min(rewards) > 0 and are_equal(rewards):
        return f"{start}If every response is right, try harder tasks; otherwise check the reward function."
    return (
        f"{start}Look at the samples; then try easier tasks, a reward with partial credit, a warm start by SFT "
        "(stages), a higher rollout.sampling.temperature, or more algorithm.rollouts_per_task."
    )


def _values(rows: Sequence[Mapping[str, float | None]], name: str) -> list[float]:
    return [value for row in rows if (value := row.get(name)) is not None]


def series_change(values: Sequence[float]) -> MeanChange | None:
    """The change from the first fifth of a noisy series to the last fifth, at least three values each; for a shorter
    series the first and the last value without a standard error. None for fewer than two values."""
    if len(values) < 2:
        return None
    size = max(3, len(values) // 5)
    if len(values) < 2 * size:
        return MeanChange(values[0], values[-1], None)
    first, last = values[:size], values[-size:]
    return MeanChange(_mean(first), _mean(last), math.hypot(_error_of_mean(first), _error_of_mean(last)))


def evaluation_change(before: Path, after: Path) -> MeanChange | None:
    """The change of the mean reward between two evaluations of one taskset, with the standard error of the paired
    differences by task. None where they have fewer than two tasks in common."""
    first, last = _task_rewards(before), _task_rewards(after)
    common = [task for task in first if task in last]
    if len(common) < 2:
        return None
    differences = [last[task] - first[task] for task in common]
    return MeanChange(
        _mean([first[task] for task in common]),
        _mean([last[task] for task in common]),
        _error_of_mean(differences),
    )


def _task_rewards(file: Path) -> dict[str, float]:
    """Mean reward of each task's scored rollouts."""
    rewards: dict[str, list[float]] = {}
    for row in read_rollouts(file):
        if row["reward"] is not None:
            rewards.setdefault(row["task_id"], []).append(row["reward"])
    return {task: _mean(values) for task, values in rewards.items()}


def verdict(data: RunData) -> str:
    """One line: the change of the held-out reward or loss, whether it still goes on, and the truncated responses."""
    parts = [*_reward_verdicts(data), *_loss_verdicts(data)]
    if not parts and (change := series_change(data.series("reward/mean")[1])) is not None:
        has_fallen = change.is_significant and change.difference < 0
        parts.append(f"training reward {describe_change(change)}{_fall(change) if has_fallen else ''}")
    truncated = data.series("rollouts/truncated_fraction")[1]
    if truncated and truncated[-1] >= _SHOWN_TRUNCATED:
        parts.append(f"{truncated[-1]:.0%} of the responses truncated in the last step")
    return "; ".join(parts)


def _reward_verdicts(data: RunData) -> list[str]:
    found = []
    for name, files in data.eval_files().items():
        change = evaluation_change(files[0], files[-1]) if len(files) > 1 else None
        if change is None:
            continue
        found.append(f"{name} {describe_change(change)}{_course(data, name, files, change)}")
    return found


def _course(data: RunData, name: str, files: Sequence[Path], change: MeanChange) -> str:
    """Course of an eval taskset's reward from the first to the last of its evaluations."""
    has_risen = change.is_significant and change.difference > 0
    recent = evaluation_change(files[-2], files[-1]) if len(files) > 2 else None
    is_rising = recent is not None and recent.is_significant and recent.difference > 0
    if change.is_significant and not has_risen:
        return _fall(change, "; rising again since the evaluation before" if is_rising else "")
    best = _best_file(data, name, files)
    since = None if best is None else evaluation_change(best, files[-1])
    if (
        best is not None
        and since is not None
        and since.difference < -_BEST_ERRORS * (since.standard_error or 0)
    ):
        step = int(best.stem.removeprefix("step-"))
        return _fall(since, best=f" from its best of {format_number(since.first)} at step {step}")
    if is_rising:
        return ", still rising" if has_risen else ", rising since the evaluation before"
    if recent is not None and recent.is_significant:
        return ", falling since the evaluation before"
    return ", flat since the evaluation before" if has_risen and recent is not None else ""


def _best_file(data: RunData, name: str, files: Sequence[Path]) -> Path | None:
    """The file of the evaluation with the largest mean reward; None if that is the first or the last one."""
    steps, values = data.series(f"eval/{name}/reward")
    if not values:
        return None
    best = steps[values.index(max(values))]
    return next((file for file in files[1:-1] if int(file.stem.removeprefix("step-")) == best), None)


def _fall(change: MeanChange, later: str = "", *, best: str = "") -> str:
    """A significant decrease of a reward, with what to try."""
    collapsed = change.first > 0 and change.last < _COLLAPSED * change.first
    return (
        f", {'collapsed' if collapsed else 'fell'}{best}{later}. Try a smaller trainer.optimizer.lr or a KL term "
        "(algorithm.kl_loss); checkpoint.best keeps the best weights. "
        f"{see_troubleshooting('the-reward-rises-then-collapses').rstrip('.')}"
    )


def _loss_verdicts(data: RunData) -> list[str]:
    names = [name for name in data.names() if name.startswith("eval/") and name.endswith("/loss")]
    series = {name.removeprefix("eval/").removesuffix("/loss"): data.series(name)[1] for name in names}
    return [
        f"{name} loss {format_number(values[0])} -> {format_number(values[-1])}"
        for name, values in series.items()
        if len(values) > 1
    ]


def describe_change(change: MeanChange) -> str:
    """`0.172 -> 0.781 (+0.609, 95% interval +0.531 to +0.687)`, or that the interval has 0 in it."""
    text = f"{format_number(change.first)} -> {format_number(change.last)}"
    if change.interval is None:
        return text
    low, high = (f"{bound:+.3g}" for bound in change.interval)
    if not change.is_significant:
        return f"{text} (no change beyond chance, 95% interval {low} to {high})"
    return f"{text} ({change.difference:+.3g}, 95% interval {low} to {high})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean of independent values, and its standard error; None for fewer than two."""
    return _mean(values), _error_of_mean(values) if len(values) > 1 else None


def _error_of_mean(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values."""
    mean = _mean(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


class LearningWatch:
    """Finds out during a run what keeps it from learning, and reports each kind of fault once."""

    def __init__(self) -> None:
        self._rows: list[MetricsRow] = []
        self._reported = False

    def observe(self, row: Mapping[str, float]) -> list[str]:
        """Add a step's row; returns the faults, the first time that there are any."""
        names = (
            "grad_norm",
            "reward/mean",
            "kl/ref",
            "groups/zero_variance_fraction",
            "rollouts/truncated_fraction",
        )
        self._rows.append({name: row.get(name) for name in names})
        faults = [] if self._reported else learning_faults(self._rows)
        self._reported = self._reported or bool(faults)
        return faults
