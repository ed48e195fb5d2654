"""Tests of Trinity's modes and synchronizer: one alternating process, or separate explorer and trainer."""

from __future__ import annotations

import pytest

from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig, SqlBufferConfig
from strop.config.schema.synchronizer import (
    BoundedStyleConfig,
    CheckpointSyncConfig,
    CollectiveSyncConfig,
    FixedStyleConfig,
    LatestStyleConfig,
    MemorySyncConfig,
    OnRequestStyleConfig,
)
from strop.config.units import Amount
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER
from strop.errors import ConfigError

from .trinity_file import BUFFER, read

pytestmark = pytest.mark.usefixtures("trinity_file")
SYNC = "synchronizer"
SEPARATE = f"+{SYNC}={{sync_interval: 10, sync_offset: 2}}"


def steps(count: int) -> Amount:
    return Amount(count, "steps")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{}", MemorySyncConfig()),
        ("{sync_method: nccl, sync_interval: 1, sync_offset: 0, sync_style: fixed}", MemorySyncConfig()),
        ("{sync_method: checkpoint}", MemorySyncConfig()),
        ("{sync_interval: 10}", CollectiveSyncConfig(style=FixedStyleConfig(every=steps(10)))),
        (
            "{sync_method: checkpoint, sync_interval: 10, sync_offset: 2, sync_timeout: 60}",
            CheckpointSyncConfig(
                style=FixedStyleConfig(every=steps(10), max_lead=steps(2)), timeout_seconds=60
            ),
        ),
        (
            "{sync_method: nccl, sync_style: dynamic_by_trainer, sync_interval: 4}",
            CollectiveSyncConfig(style=LatestStyleConfig(every=steps(4))),
        ),
        ("{sync_style: dynamic_by_explorer}", CollectiveSyncConfig(style=OnRequestStyleConfig())),
        ("{sync_style: fully_async}", CollectiveSyncConfig(style=LatestStyleConfig())),
    ],
)
def test_synchronization_styles(written: str, expected: object) -> None:
    run = read(f"+{SYNC}={written}").run
    assert (run.synchronizer, run.mode) == (expected, "both")
    assert isinstance(run.buffer, QueueBufferConfig)
    assert write_dialect(LEDGER, run).unsupported == ()


@pytest.mark.parametrize("mode", ["train", "explore"])
def test_single_role_uses_a_database_and_a_folder(mode: str) -> None:
    run = read(f"mode={mode}", f"+{BUFFER}={{storage_type: sql, name: shared, path: 'sqlite:///b.db'}}").run
    assert (run.mode, run.synchronizer) == (mode, CheckpointSyncConfig())
    assert isinstance(run.buffer, SqlBufferConfig)
    assert (run.buffer.url, run.buffer.name) == ("sqlite:///b.db", "shared")
    assert write_dialect(LEDGER, run).unsupported == ()


def test_queue_is_a_separate_process() -> None:
    buffer = read(SEPARATE, f"+{BUFFER}={{path: 'sqlite:///q.db', name: between}}").run.buffer
    assert isinstance(buffer, QueueBufferConfig) and (buffer.backup, buffer.name) == ("q.db", "between")
    large = read(SEPARATE, "buffer.batch_size=1000").run.buffer
    assert isinstance(large, QueueBufferConfig) and large.capacity_groups == 12000
    by_priority = f"+{BUFFER}={{use_priority_queue: true, reuse_cooldown_time: 5}}"
    reused = read(f"+{SYNC}.sync_style=dynamic_by_explorer", by_priority).run.buffer
    assert isinstance(reused, PriorityBufferConfig) and reused.reuse_cooldown_seconds == 5


def test_priority_queue_bounds_staleness() -> None:
    run = read(SEPARATE, f"+{BUFFER}.use_priority_queue=True").run
    assert isinstance(run.buffer, PriorityBufferConfig)
    style = BoundedStyleConfig(every=Amount(10, "steps"), max_staleness=Amount(11, "steps"))
    assert run.synchronizer == CollectiveSyncConfig(style=style)
    assert write_dialect(LEDGER, run).unsupported == ()


def test_queue_becomes_a_database() -> None:
    buffer = read(SEPARATE, f"+{BUFFER}.path='postgresql://u@h/d'").run.buffer
    assert isinstance(buffer, SqlBufferConfig) and buffer.url == "postgresql://u@h/d"
    half = read("mode=train", f"+{BUFFER}.path=sqlite:///q.db").run.buffer
    assert isinstance(half, SqlBufferConfig) and half.url == "sqlite:///q.db"


def test_inactive_keys_have_notices() -> None:
    (note,) = read(f"+{SYNC}.sync_timeout=60").notes
    assert note.endswith("alternate in one process and never wait.")
    notes = read(f"+{SYNC}={{sync_style: dynamic_by_trainer, sync_offset: 3}}").notes
    assert [note.partition("because ")[2] for note in notes] == ["sync_style is dynamic_by_trainer."]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["mode=explore", "continue_from_checkpoint=false"], "find each other by the run's name"),
        (
            ["mode=train", f"+{BUFFER}.use_priority_queue=True"],
            "remove use_priority_queue, or write mode: both",
        ),
        ([f"+{SYNC}.sync_style=free"], "fixed or trainer_driven or explorer_driven"),
        ([f"+{SYNC}.sync_interval=0"], "must be more than zero"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(*overrides)
    assert "\n\n" not in str(caught.value)
