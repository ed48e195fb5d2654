"""Differences between two starts of one run that would change what it learns, which prevent a resume.

`semantic_diff` compares the meaning of two configurations instead.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from strop.config.load.config_tree import iter_values, split_key
from strop.config.load.loader import load_values
from strop.config.load.yaml_file import read_bounded, read_yaml
from strop.config.redact import redact
from strop.config.save import escape_interpolations, fingerprint, recorded_fingerprints
from strop.config.schema import Run
from strop.config.schema.algorithm import PpoConfig, PrimeConfig
from strop.config.schema.schedule import ConstantScheduleConfig, ReduceOnPlateauScheduleConfig
from strop.config.schema.walk import leaves
from strop.config.units import Amount

NON_LEARNING_FIELDS = (
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
    "export",
    "evaluate",
    "data.eval",
    "data.tokenize_workers",
    "record",
    "buffer.on_timeout",
    "reward.timeout_seconds",
    "reward.workers",
    "reward.worker",
    "reward.sandbox",
    "reward.judge_calls",
    "reward.models.*.device",
    "reward.models.*.microbatch",
    "reward.judges.*.url",
    "reward.judges.*.api_key_env",
    "rollout.max_error_fraction",
    "rollout.engine.merge_lora",
    "rollout.engine.native.merge_lora",
    "rollout.pool",
    "rollout.max_concurrent_rollouts",
    "trainer.elastic",
    "trainer.engine",
    "trainer.microbatch",
    "trainer.skip_zero_advantages",
    "trainer.stop_after",
    "cluster",
)
"""Fields and sections that do not change what is learned: locations, checkpoints, evaluation, the number of processes,
and the division of an update's work, which change results only by rounding."""


def recorded_differences(run_file: Path, run: Run) -> list[str]:
    """Return the fields by which a run and the one of a saved run file would learn differently.

    A value that the file has as an interpolation of an environment variable is compared by its fingerprint,
    so that the variables of the recorded run need not be set.
    """
    tree = read_yaml(run_file)
    now = dict(iter_values(run.model_dump(mode="json")))
    changed = []
    for field, recorded in recorded_fingerprints(read_bounded(run_file)).items():
        keys = split_key(field)
        if not (isinstance(now.get(keys), str) and tree.has(keys)):
            continue
        is_same = not recorded or fingerprint(field, now[keys]) == recorded
        if not is_same and not _is_non_learning(field, NON_LEARNING_FIELDS):
            changed.append(f"{field} was another value of {tree.get(keys)}")
        tree.replace_value(keys, escape_interpolations(now[keys]))
    return [*changed, *resume_differences(load_values(tree.values, origin=str(run_file)).run, run)]


def resume_differences(recorded: Run, run: Run) -> list[str]:
    """Return the fields by which two runs would learn differently, as `field was ..., is ...`.

    `trainer.duration` may change if neither learning rate nor weight decay depends on the run's length.
    Secrets are compared in their redacted form, as they are saved.
    """
    free = tuple(field for field in _non_learning_fields(run) if field in _non_learning_fields(recorded))
    if not (_depends_on_length(run) or _depends_on_length(recorded)):
        free += ("trainer.duration",)
    was, now = _values(recorded), _values(run)
    return [
        f"{field} was {_show(was.get(field))}, is {_show(now.get(field))}"
        for field in dict.fromkeys((*was, *now))
        if was.get(field) != now.get(field) and not _is_non_learning(field, free)
    ]


def learning_fields(run: Run) -> dict[str, Any]:
    """Return the fields that determine what is learned, including the run's length; secrets are redacted."""
    free = _non_learning_fields(run)
    return {field: value for field, value in _values(run).items() if not _is_non_learning(field, free)}


def is_learning_field(run: Run, field: str) -> bool:
    """Return whether a field determines what a run learns."""
    return not _is_non_learning(field, _non_learning_fields(run))


def _values(run: Run) -> dict[str, Any]:
    return {".".join(leaf.keys): redact(leaf.value, leaf.keys[-1]) for leaf in leaves(run)}


def _show(value: Any) -> str:
    return "unset" if value is None else str(value)


def _is_non_learning(field: str, free: tuple[str, ...]) -> bool:
    return any(fnmatchcase(field, known) or fnmatchcase(field, f"{known}.*") for known in free)


def _non_learning_fields(run: Run) -> tuple[str, ...]:
    """Return the fields without an effect on learning; a schedule that follows evaluations excludes those."""
    follows = isinstance(run.trainer.schedule, ReduceOnPlateauScheduleConfig)
    return tuple(
        field for field in NON_LEARNING_FIELDS if not (follows and field in ("evaluate", "data.eval"))
    )


def _depends_on_length(run: Run) -> bool:
    schedules = [run.trainer.schedule]
    if isinstance(run.algorithm, PpoConfig):
        schedules.append(run.algorithm.critic.schedule)
    if isinstance(run.algorithm, PrimeConfig):
        schedules.append(run.algorithm.process_reward.schedule)
    if run.trainer.weight_decay_increase is not None:
        return True
    return any(not isinstance(s, ConstantScheduleConfig) or _is_fraction(s.warmup) for s in schedules)


def _is_fraction(warmup: Amount) -> bool:
    """Return whether the warm-up's length depends on the run's length."""
    return warmup.unit == "%" and warmup.count > 0
