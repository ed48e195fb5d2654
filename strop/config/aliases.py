"""Deprecated names of run file keys, values, metrics and command-line flags, and the names that replaced
them.

Each table maps a deprecated name to its current name. Deprecated names work in run files, overrides,
interpolations, recorded `run.yaml` and `metrics.jsonl` files; loading them gives a one-line notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strop.config.load.config_tree import ConfigTree, KeyPath, Source, iter_values, split_key, to_plain
from strop.errors import ConfigError, FaultKind

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


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


_INTERPOLATION = re.compile(r"(?P<escape>(?<!\\)\\*)\$\{(?P<dots>\.*)(?P<key>[A-Za-z_][\w.\[\]]*)\}")


def replace_deprecated(tree: ConfigTree) -> tuple[str, ...]:
    """Give deprecated keys, types, metrics and interpolated keys of the tree their current names.

    Returns one notice per deprecated name, with its source. A key that is written under its deprecated name
    and under its current one is a fault of the tree.
    """
    tree.values = to_plain(tree.values)  # A YAML anchor shares one mapping between several keys.
    return (*_replace_keys(tree), *_replace_values(tree))


def replace_in_override(override: Override, source: Source) -> tuple[Override, tuple[str, ...]]:
    """The override with current names, and the notices for the deprecated ones. Raises ConfigError."""
    keys = split_key(override.key_or_group)
    current = current_keys(keys)
    tree = ConfigTree()
    tree.set(current, override.value(), source)
    notices = replace_deprecated(tree)
    if tree.faults:
        raise ConfigError(*tree.faults)
    if current != keys:
        notices = (_notice(source, ".".join(keys), ".".join(current)), *notices)
    if not notices:
        return override, ()
    return replace(override, key_or_group=".".join(current), _value=tree.get(current)), notices


def replace_resolved_types(values: Any, keys: KeyPath = ()) -> Any:
    """The values with current names for types and metrics that an interpolation gave."""
    if isinstance(values, dict):
        return {key: replace_resolved_types(item, (*keys, str(key))) for key, item in values.items()}
    if isinstance(values, list):
        return [replace_resolved_types(item, (*keys, str(index))) for index, item in enumerate(values)]
    return _current_value(keys, values) if isinstance(values, str) else values


def _replace_keys(tree: ConfigTree, at: KeyPath = ()) -> Iterator[str]:
    container = tree.get(at) if at else tree.values
    if isinstance(container, list):
        for index in range(len(container)):
            yield from _replace_keys(tree, (*at, str(index)))
    elif isinstance(container, dict):
        for key in list(container):
            old = (*at, str(key))
            new = current_keys(old)
            if new != old:
                yield from _rename(tree, old, new)
            yield from _replace_keys(tree, new)


def _rename(tree: ConfigTree, old: KeyPath, new: KeyPath) -> Iterator[str]:
    source = tree.nearest_source(old)
    if tree.has(new):
        tree.add_fault(
            FaultKind.UNSUPPORTED,
            f"{source}: {'.'.join(old)} is the deprecated name of {'.'.join(new)}, which is written too "
            f"({tree.nearest_source(new)}); remove {'.'.join(old)}.",
            new,
        )
        tree.delete(old)
        return
    tree.rename(old, new[-1])
    yield _notice(source, ".".join(old), ".".join(new))


def _replace_values(tree: ConfigTree) -> Iterator[str]:
    for keys, value in list(iter_values(tree.values)):
        if not isinstance(value, str):
            continue
        source = tree.nearest_source(keys)
        current = _current_value(keys, value)
        if current != value:
            yield _notice(source, f"{'.'.join(keys)}: {value}", current)
        for match in _INTERPOLATION.finditer(current):
            written, renamed = match[0], _current_interpolation(match, keys)
            if renamed != written:
                current = current.replace(written, renamed)
                yield _notice(source, written, renamed)
        if current != value:
            tree.replace_value(keys, current)


def _current_value(keys: KeyPath, value: str) -> str:
    section = section_key(keys)
    if section in METRIC_KEYS:
        return current_metric(value)
    return current_type(section.removesuffix(".type"), value)


def _current_interpolation(match: re.Match[str], keys: KeyPath) -> str:
    """`${a.b}` names a key from the top of the file, `${.b}` from the section that has it, `${..b}` one
    up."""
    if len(match["escape"]) % 2:
        return match[0]
    dots = len(match["dots"])
    above = keys[: len(keys) - dots] if dots else ()
    named = tuple(re.sub(r"\[(\w+)\]", r".\1", match["key"]).split("."))
    renamed = current_keys((*above, *named))[len(above) :]
    if renamed == named:
        return match[0]
    return f"{match['escape']}${{{match['dots']}{'.'.join(renamed)}}}"


def _notice(source: Source | None, old: str, new: str) -> str:
    return f"{source}: {old} is deprecated; write {new}."
