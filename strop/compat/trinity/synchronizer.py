"""Ledger rows of Trinity's `synchronizer` section, and the processes of explorer and trainer that it connects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    NUMBER,
    UNSET,
    ForeignValues,
    KeyMapping,
    any_inactive,
    mapped,
    no_effect,
    no_effects,
    not_on_page,
    nullable,
    one_of,
    placement,
    refused,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.cluster import uses_cluster
from strop.compat.trinity.presets import is_later, is_offline, only_sampled
from strop.config.schema import Run
from strop.config.schema.buffer import (
    BoundedStyleConfig,
    CollectiveSyncConfig,
    FixedStyleConfig,
    MemorySyncConfig,
    PriorityBufferConfig,
)

_SYNC_STYLES = {
    "fixed": "fixed",
    "trainer_driven": "latest",
    "explorer_driven": "on_request",
    "dynamic_by_trainer": "latest",
    "dynamic_by_explorer": "on_request",
    "fully_async": "latest",
}
"""The names `dynamic_by_*` are those of Trinity 0.3, which later versions still accept."""


def sync_style(foreign: ForeignValues) -> str:
    """The synchronization style; null means `fixed`."""
    return str(foreign["synchronizer.sync_style"] or "fixed")


def is_single_role(foreign: ForeignValues) -> bool:
    """Whether this process is only the explorer or only the trainer, and the other is started separately."""
    return foreign["mode"] in ("train", "explore") and not is_offline(foreign)


def is_distributed(foreign: ForeignValues) -> bool:
    """Whether explorer and trainer are separate processes; where they alternate on one machine, one process
    does both."""
    if is_offline(foreign) or foreign["mode"] == "bench":
        return False
    at = "synchronizer"
    in_turns = foreign[f"{at}.sync_interval"] == 1 and foreign[f"{at}.sync_offset"] == 0
    return is_single_role(foreign) or uses_cluster(foreign) or sync_style(foreign) != "fixed" or not in_turns


def uses_priority_queue(foreign: ForeignValues) -> bool:
    """Whether the buffer is a priority queue, which does not deliver steps in order."""
    at = "buffer.trainer_input.experience_buffer"
    enabled = foreign[f"{at}.use_priority_queue"] or foreign[f"{at}.replay_buffer.enable"]
    return bool(enabled) and foreign[f"{at}.storage_type"] in (None, "queue")


def write_synchronizer(run: Run) -> Mapping[str, Any]:
    """Write the synchronizer; a single process that alternates needs none of the keys."""
    section = run.synchronizer
    if isinstance(section, MemorySyncConfig):
        return {}
    names = {name: foreign_name for foreign_name, name in reversed(_SYNC_STYLES.items())}
    name = names.get(section.style.type)
    values = {
        "synchronizer.sync_method": "nccl" if isinstance(section, CollectiveSyncConfig) else "checkpoint",
        "synchronizer.sync_style": None if name == "fixed" else name,
        "synchronizer.sync_timeout": section.timeout_seconds,
        "synchronizer.sync_interval": int(section.style.every.count),
    }
    if isinstance(section.style, FixedStyleConfig):
        values["synchronizer.sync_offset"] = int(section.style.max_lead.count)
    if isinstance(section.style, BoundedStyleConfig) and isinstance(run.buffer, PriorityBufferConfig):
        oldest = int(section.style.max_staleness.count)
        values["synchronizer.sync_offset"] = oldest + 1 - int(section.style.every.count)
    return values


def _timeout(foreign: ForeignValues) -> float:
    """The timeout in seconds; 3600 by default since Trinity 0.4."""
    key = "synchronizer.sync_timeout"
    return 3600 if is_later(foreign) and not foreign.is_set(key) else float(foreign[key])


@written_by(write_synchronizer)
def synchronizer(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the synchronizer: none for a single process that alternates; else a collective or checkpoints in a
    folder."""
    at = "synchronizer"
    separate = is_single_role(foreign) or foreign["mode"] == "bench"
    nccl = foreign[f"{at}.sync_method"] in ("nccl", "online", "memory")
    if not is_distributed(foreign):
        return {}
    settings = {
        f"{at}.type": "collective" if nccl and not separate else "checkpoint",
        f"{at}.timeout_seconds": _timeout(foreign),
        f"{at}.style.type": _SYNC_STYLES[sync_style(foreign)],
        f"{at}.style.every": f"{foreign[f'{at}.sync_interval']} steps",
    }
    if sync_style(foreign) == "fixed" and uses_priority_queue(foreign):
        oldest = foreign[f"{at}.sync_interval"] + foreign[f"{at}.sync_offset"] - 1
        return settings | {f"{at}.style.type": "bounded", f"{at}.style.max_staleness": f"{oldest} steps"}
    if sync_style(foreign) == "fixed":
        settings[f"{at}.style.max_lead"] = f"{foreign[f'{at}.sync_offset']} steps"
    return settings


def _synchronous(foreign: ForeignValues) -> str | None:
    return None if is_distributed(foreign) else "explorer and trainer alternate in one process and never wait"


def _not_fixed(foreign: ForeignValues) -> str | None:
    return None if sync_style(foreign) == "fixed" else f"sync_style is {sync_style(foreign)}"


_row = partial(mapped, read=synchronizer)
ROWS: tuple[KeyMapping, ...] = (
    *unstated_defaults(
        placement(
            "synchronizer.sync_method",
            "nccl",
            "nccl is a collective (gloo without two GPUs); a single process that alternates shares the "
            "weights",
            value_type=one_of("nccl", "checkpoint", "memory", "online", "offline"),
            inactive=_synchronous,
            fields=("synchronizer.type",),
            read=synchronizer,
        ),
        _row(
            "synchronizer.sync_interval",
            1,
            "synchronizer.style.every",
            "synchronizer.type",
            inactive=only_sampled,
            note="counts steps; with 1 and sync_offset 0, a single process alternates between exploring and training",
        ),
        _row(
            "synchronizer.sync_offset",
            0,
            "synchronizer.style.max_lead",
            "synchronizer.style.max_staleness",
            inactive=any_inactive(only_sampled, _not_fixed),
            note="counts steps; with a priority queue, sync_interval + sync_offset bounds the staleness of rollouts",
        ),
        _row(
            "synchronizer.sync_timeout",
            1200,
            "synchronizer.timeout_seconds",
            note="3600 by default since Trinity-RFT 0.4",
            value_type=NUMBER,
            inactive=_synchronous,
        ),
    ),
    *not_on_page(
        _row(
            "synchronizer.sync_style",
            None,
            "synchronizer.style.type",
            value_type=nullable(one_of(*_SYNC_STYLES)),
            inactive=only_sampled,
            note="null means fixed; fully_async, of versions after 0.6, loads new weights while rollouts run, as "
            "latest does",
        ),
        no_effect(
            "synchronizer.wait_for_checkpoint",
            False,
            "a separate explorer always waits for the first weights",
        ),
        *no_effects("synchronizer", ("explorer_world_size", "ray_namespace"), "Trinity sets it itself"),
    ),
    *versions(
        no_effect("synchronizer.group_name", UNSET, "the group of processes has no name"),
        *(
            refused(
                f"synchronizer.{role}_sync_interval",
                None,
                "explorer and trainer synchronize at the same steps; write synchronizer.sync_interval",
                supported=lambda foreign, value: value in (None, foreign["synchronizer.sync_interval"]),
            )
            for role in ("explorer", "trainer")
        ),
        since="0.6",
    ),
)
