"""Ledger rows of Trinity's `explorer` section, except its models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    MAPPING,
    NUMBER,
    UNSET,
    ForeignValues,
    ValueConversion,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    placement,
    refused,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.inference_model import RUNNERS, engines
from strop.compat.verl.trainer import every, frequency


@written_by(lambda run: {"explorer.max_timeout": run.rollout.timeout_seconds})
def time_limit(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the time limit of a rollout; null leaves Strop's."""
    limit = foreign["explorer.max_timeout"]
    return {} if limit is None else {"rollout.timeout_seconds": limit}


@written_by(lambda run: {"explorer.eval_interval": frequency(run, run.evaluate.every)})
def evaluation_interval(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the interval of evaluations in steps."""
    return {"evaluate.every": every(foreign["explorer.eval_interval"])}


_ENVIRONMENT = ValueConversion(
    lambda variables: {name: str(value) for name, value in (variables or {}).items()}, lambda value: value
)
"""Environment variables, which may be numbers in a file; null means none."""
_SLOW = (
    "it leaves out the tasks of a step that finish last, so which are trained on depends on the machine's speed; "
    "remove it: with a sync_style other than fixed, Strop's explorer starts further tasks while slow ones run, and "
    "under fixed explorer.max_timeout limits a rollout"
)
_TIMES = (
    "it derives the time limit of a step's tasks from the run's own times, so that a resumed run would fail other "
    "rollouts than the uninterrupted one; remove it, and write the limit of a rollout as explorer.max_timeout"
)
_SWITCH = "its switch is off"
_NO_RUNNERS = "tasks run in the explorer's process, without runners of their own"
ROWS = (
    *unstated_defaults(
        placement(
            RUNNERS,
            8,
            "maximum number of concurrent tasks per engine, each with all its rollouts; not set, all tasks "
            "of a step run concurrently",
            fields=("rollout.max_concurrent_rollouts",),
            read=engines,
        ),
        mapped(
            "explorer.max_timeout",
            None,
            "rollout.timeout_seconds",
            read=time_limit,
            value_type=nullable(NUMBER),
            note="null means 3600, because all rollouts of a step start at once and waiting counts",
        ),
        mapped("explorer.max_retry_times", 2, "rollout.retries"),
        mapped("explorer.env_vars", {}, "rollout.env", converts=_ENVIRONMENT, value_type=nullable(MAPPING)),
        mapped(
            "explorer.eval_interval", 100, "evaluate.every", read=evaluation_interval, note="counts steps"
        ),
        mapped("explorer.eval_on_startup", True, "evaluate.at_start"),
    ),
    *not_on_page(
        no_effect(
            "explorer.bench_on_latest_checkpoint",
            False,
            "bench evaluates all checkpoints, the latest included",
        ),
        *(
            no_effect(f"explorer.{name}", default, "Strop has no mode serve", value_type=ANY)
            for name, default in (
                ("proxy_port", 8010),
                ("listen_address", "0.0.0.0"),
                ("service_status_check_interval", 60),
                ("min_running_model_num", 1),
                ("db_url", None),
                ("api_port", 8010),
            )
        ),
        no_effect(
            "explorer.runner_state_report_interval",
            0,
            "metrics have the state of the rollouts",
            value_type=ANY,
        ),
        refused("explorer.over_rollout.ratio", 0.0, _SLOW),
        no_effect("explorer.over_rollout.wait_after_min", 30.0, _SWITCH),
        refused("explorer.dynamic_timeout.enable", False, _TIMES),
        no_effect("explorer.dynamic_timeout.ratio", 3.0, _SWITCH),
        placement("explorer.runner_num", None, _NO_RUNNERS),
        placement("explorer.max_repeat_times_per_runner", None, _NO_RUNNERS),
    ),
    *versions(
        no_effect(
            "explorer.concurrent_mode",
            "sequential",
            "all rollouts of a task run concurrently",
            value_type=ANY,
        ),
        since="0.5",
    ),
    *versions(
        *no_effects(
            "explorer",
            ("runner_prepare_concurrency", "runner_prepare_max_retries"),
            "Strop's runners need no preparation of a process",
        ),
        *no_effects(
            "explorer", ("over_rollout.return_partial_tasks", "dynamic_timeout.warmup_min_steps"), _SWITCH
        ),
        no_effect(
            "explorer.max_inflight_batches",
            UNSET,
            "synchronizer.sync_offset, or under other styles than fixed the capacity of the buffer, bounds it",
        ),
        since="0.6",
    ),
)
