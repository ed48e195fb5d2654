"""Whether two configurations are the same run: what may change between two starts of it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from strop.config.redact import redact
from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.schema.schedule import ConstantSchedule, ReduceOnPlateauSchedule
from strop.config.schema.walk import leaves
from strop.config.units import Amount

FREE = (
    "output",
    "project",
    "name",
    "folder",
    "resume",
    "mode",
    "bench",
    "synchronizer.backend",
    "synchronizer.folder",
    "synchronizer.timeout_seconds",
    "synchronizer.max_restarts",
    "checkpoint",
    "evaluate",
    "data.eval",
    "data.overlong_workers",
    "record",
    "reward.timeout_seconds",
    "reward.workers",
    "reward.calls",
    "reward.models.*.device",
    "reward.models.*.batch",
    "reward.judges.*.url",
    "reward.judges.*.key_variable",
    "rollout.max_error_share",
    "rollout.pool",
    "rollout.runners",
    "trainer.engine",
    "cluster",
)
"""Fields and sections that never change what is learned: where a run is, what is kept and measured of it, and
how many processes learn and sample, which changes it by rounding alone."""


def differences(recorded: Run, run: Run) -> list[str]:
    """The fields by which two runs would learn differently, as `field was ..., is ...`.

    `trainer.duration` may change where neither learning rate nor weight decay depends on the run's length.
    Secrets are compared as they are saved: redacted.
    """
    free = tuple(field for field in _free(run) if field in _free(recorded))
    if not (_depends_on_length(run) or _depends_on_length(recorded)):
        free += ("trainer.duration",)
    was, now = _values(recorded), _values(run)
    return [
        f"{field} was {_show(was.get(field))}, is {_show(now.get(field))}"
        for field in dict.fromkeys((*was, *now))
        if was.get(field) != now.get(field) and not _is_free(field, free)
    ]


def learned_by(run: Run) -> dict[str, Any]:
    """All that what is learned depends on, by its field, the run's length included; secrets redacted."""
    free = _free(run)
    return {field: value for field, value in _values(run).items() if not _is_free(field, free)}


def _values(run: Run) -> dict[str, Any]:
    return {".".join(leaf.keys): redact(leaf.value, leaf.keys[-1]) for leaf in leaves(run)}


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)


def _is_free(field: str, free: tuple[str, ...]) -> bool:
    return any(fnmatchcase(field, known) or fnmatchcase(field, f"{known}.*") for known in free)


def _free(run: Run) -> tuple[str, ...]:
    """Where the learning rate follows the evaluations, they are a part of what is learned."""
    follows = isinstance(run.trainer.schedule, ReduceOnPlateauSchedule)
    return tuple(field for field in FREE if not (follows and field in ("evaluate", "data.eval")))


def _depends_on_length(run: Run) -> bool:
    schedules = [run.trainer.schedule]
    if isinstance(run.algorithm, Ppo):
        schedules.append(run.algorithm.critic.schedule)
    if run.trainer.weight_decay_increase is not None:
        return True
    return any(not isinstance(s, ConstantSchedule) or _is_part(s.warmup) for s in schedules)


def _is_part(warmup: Amount) -> bool:
    """Whether it is as long as the run makes it."""
    return warmup.unit == "%" and warmup.count > 0
