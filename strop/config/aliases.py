"""Deprecated names of run file keys, values, metrics and command-line flags, and the names that replaced
them.

Each table maps a deprecated name to its current name. Deprecated names work in run files, overrides,
interpolations, recorded `run.yaml` and `metrics.jsonl` files; loading them gives a one-line notice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KEY_ALIASES: Mapping[str, str] = {
    "algorithm.critic.passes": "algorithm.critic.epochs_per_step",
    "algorithm.critic.schedule.counts": "algorithm.critic.schedule.interval",
    "algorithm.expert_share": "algorithm.expert_fraction",
    "bench.model": "bench.initial_model",
    "buffer.outage_seconds": "buffer.reconnect_timeout_seconds",
    "checkpoint.beside": "checkpoint.async_save",
    "checkpoint.copy_to": "checkpoint.mirror",
    "checkpoint.optimizer": "checkpoint.save_optimizer",
    "checkpoint.writers": "checkpoint.save_concurrency",
    "cluster.explorer": "cluster.explorer_name",
    "cluster.trainer": "cluster.trainer_name",
    "data.auxiliary": "data.demonstrations",
    "data.eval.reward.calls": "data.eval.reward.judge_calls",
    "data.eval.reward.judges.best": "data.eval.reward.judges.max_score",
    "data.eval.reward.judges.key_variable": "data.eval.reward.judges.api_key_env",
    "data.eval.reward.judges.worst": "data.eval.reward.judges.min_score",
    "data.eval.reward.models.batch": "data.eval.reward.models.microbatch",
    "data.overlong_workers": "data.tokenize_workers",
    "reward.calls": "reward.judge_calls",
    "reward.judges.best": "reward.judges.max_score",
    "reward.judges.key_variable": "reward.judges.api_key_env",
    "reward.judges.worst": "reward.judges.min_score",
    "reward.models.batch": "reward.models.microbatch",
    "rollout.experience_per": "rollout.sequence_per",
    "rollout.max_concurrent_tasks": "rollout.max_concurrent_rollouts",
    "rollout.max_error_share": "rollout.max_error_fraction",
    "rollout.runners": "rollout.max_concurrent_rollouts",
    "synchronizer.style.ahead": "synchronizer.style.max_lead",
    "trainer.passes": "trainer.epochs_per_step",
    "trainer.sample": "trainer.batch_selection",
    "trainer.sample.answers": "trainer.batch_selection.demonstrations",
    "trainer.sample.answers_per_update": "trainer.batch_selection.demonstrations_per_update",
    "trainer.schedule.counts": "trainer.schedule.interval",
    "trainer.shuffle_passes": "trainer.shuffle_each_epoch",
}
"""Dotted keys, without the positions of list items. Only the last name of a key changes, so that a key below
a renamed section has an entry for each of its renamed parts."""

TYPE_ALIASES: Mapping[str, Mapping[str, str]] = {
    "synchronizer.style": {"explorer": "on_request", "free": "bounded", "trainer": "latest"},
    "trainer.engine": {"single": "local"},
}
"""Values of a section's `type`, by the section's key."""

METRIC_ALIASES: Mapping[str, str] = {
    "eval/<name>/error_share": "eval/<name>/error_fraction",
    "eval/<name>/late_share": "eval/<name>/timeout_fraction",
    "eval/<name>/truncated_share": "eval/<name>/truncated_fraction",
    "groups/again": "groups/reused",
    "groups/left_out": "groups/filtered",
    "groups/no_signal_share": "groups/zero_variance_fraction",
    "groups/too_old": "groups/stale_dropped",
    "groups/waiting": "groups/queued",
    "importance/capped_share": "importance/capped_fraction",
    "kl/old": "approx_kl",
    "rollouts/error_share": "rollouts/error_fraction",
    "rollouts/failed_share": "rollouts/workflow_error_fraction",
    "rollouts/late_share": "rollouts/timeout_fraction",
    "rollouts/truncated_share": "rollouts/truncated_fraction",
    "time/put_seconds": "time/buffer_write_seconds",
}
"""Names of metrics; `<name>` stands for an eval taskset's name."""

METRIC_KEYS = frozenset({"checkpoint.best.metric", "trainer.schedule.metric"})
"""Keys whose value is the name of a metric."""

FLAG_ALIASES: Mapping[str, str] = {"--local": "--here"}
"""Command-line flags."""

_LAST_NAMES = {
    (new.rpartition(".")[0], old.rpartition(".")[2]): new.rpartition(".")[2]
    for old, new in KEY_ALIASES.items()
}
"""Current name of a key by its section's current key and its deprecated name."""
_EVAL_METRIC = re.compile(r"eval/(?P<name>.+)/(?P<last>[^/]+)")


def current_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """The current names of a way through a run file, such as `("data", "eval", "0", "reward", "calls")`."""
    renamed: tuple[str, ...] = ()
    for key in keys:
        renamed += (_LAST_NAMES.get((section_key(renamed), key), key),)
    return renamed


def section_key(keys: tuple[str, ...]) -> str:
    """The dotted key in the tables: without positions of list items and without the stage before it."""
    inside = keys[2:] if keys[:1] == ("stages",) else keys
    return ".".join(key for key in inside if not key.isdigit())


def current_type(section: str, value: str) -> str:
    """The current name of a section's `type`."""
    return TYPE_ALIASES.get(section, {}).get(value, value)


def current_metric(name: str) -> str:
    """The current name of a metric; the name itself if it is not deprecated."""
    if name in METRIC_ALIASES:
        return METRIC_ALIASES[name]
    match = _EVAL_METRIC.fullmatch(name)
    if match is None:
        return name
    renamed = METRIC_ALIASES.get(f"eval/<name>/{match['last']}")
    return name if renamed is None else renamed.replace("<name>", match["name"])
