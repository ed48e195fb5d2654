"""Trinity's modes and synchronizer: in turns in one process, or explorer and trainer apart."""

from __future__ import annotations

import pytest

from strop.config.dialects.trinity import LEDGER
from strop.config.dialects.write import write_dialect
from strop.config.schema.buffer import PriorityBuffer, QueueBuffer, SqlBuffer
from strop.config.schema.synchronizer import (
    ByExplorer,
    ByTrainer,
    CheckpointSync,
    CollectiveSync,
    Fixed,
    Free,
    MemorySync,
)
from strop.config.units import Amount
from strop.errors import ConfigError

from .trinity_file import BUFFER, read

pytestmark = pytest.mark.usefixtures("trinity_file")
SYNC = "synchronizer"
APART = f"+{SYNC}={{sync_interval: 10, sync_offset: 2}}"


def steps(count: int) -> Amount:
    return Amount(count, "steps")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{}", MemorySync()),
        ("{sync_method: nccl, sync_interval: 1, sync_offset: 0, sync_style: fixed}", MemorySync()),
        ("{sync_method: checkpoint}", MemorySync()),
        ("{sync_interval: 10}", CollectiveSync(style=Fixed(every=steps(10)))),
        (
            "{sync_method: checkpoint, sync_interval: 10, sync_offset: 2, sync_timeout: 60}",
            CheckpointSync(style=Fixed(every=steps(10), ahead=steps(2)), timeout_seconds=60),
        ),
        (
            "{sync_method: nccl, sync_style: dynamic_by_trainer, sync_interval: 4}",
            CollectiveSync(style=ByTrainer(every=steps(4))),
        ),
        ("{sync_style: dynamic_by_explorer}", CollectiveSync(style=ByExplorer())),
    ],
)
def test_who_waits_for_whom(written: str, expected: object) -> None:
    run = read(f"+{SYNC}={written}").run
    assert (run.synchronizer, run.mode) == (expected, "both")
    assert isinstance(run.buffer, QueueBuffer)
    assert write_dialect(LEDGER, run).unsaid == ()


@pytest.mark.parametrize("mode", ["train", "explore"])
def test_one_half_meets_the_other_in_a_database_and_a_folder(mode: str) -> None:
    run = read(f"mode={mode}", f"+{BUFFER}={{storage_type: sql, name: shared, path: 'sqlite:///b.db'}}").run
    assert (run.mode, run.synchronizer) == (mode, CheckpointSync())
    assert isinstance(run.buffer, SqlBuffer)
    assert (run.buffer.url, run.buffer.name) == ("sqlite:///b.db", "shared")
    assert write_dialect(LEDGER, run).unsaid == ()


def test_a_queue_between_two_processes_is_a_third_one() -> None:
    buffer = read(APART, f"+{BUFFER}={{path: 'sqlite:///q.db', name: between}}").run.buffer
    assert isinstance(buffer, QueueBuffer) and (buffer.backup, buffer.name) == ("q.db", "between")
    large = read(APART, "buffer.batch_size=1000").run.buffer
    assert isinstance(large, QueueBuffer) and large.capacity_groups == 12000
    by_priority = f"+{BUFFER}={{use_priority_queue: true, reuse_cooldown_time: 5}}"
    reused = read(f"+{SYNC}.sync_style=dynamic_by_explorer", by_priority).run.buffer
    assert isinstance(reused, PriorityBuffer) and reused.reuse_cooldown_seconds == 5


def test_with_a_priority_queue_weights_get_no_older_than_they_would() -> None:
    run = read(APART, f"+{BUFFER}.use_priority_queue=True").run
    assert isinstance(run.buffer, PriorityBuffer)
    style = Free(every=Amount(10, "steps"), max_staleness=Amount(11, "steps"))
    assert run.synchronizer == CollectiveSync(style=style)
    assert write_dialect(LEDGER, run).unsaid == ()


def test_a_queue_in_postgresql_or_between_halves_that_are_started_apart_is_a_database() -> None:
    buffer = read(APART, f"+{BUFFER}.path='postgresql://u@h/d'").run.buffer
    assert isinstance(buffer, SqlBuffer) and buffer.url == "postgresql://u@h/d"
    half = read("mode=train", f"+{BUFFER}.path=sqlite:///q.db").run.buffer
    assert isinstance(half, SqlBuffer) and half.url == "sqlite:///q.db"


def test_what_means_nothing_is_said() -> None:
    (note,) = read(f"+{SYNC}.sync_timeout=60").notes
    assert note.endswith("take turns in one process, without waiting.")
    notes = read(f"+{SYNC}={{sync_style: dynamic_by_trainer, sync_offset: 3}}").notes
    assert [note.partition("because ")[2] for note in notes] == ["sync_style is dynamic_by_trainer."]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["mode=train", f"+{SYNC}.sync_method=nccl"], "Write sync_method: checkpoint"),
        (["mode=explore", "continue_from_checkpoint=false"], "has to find this one by its name"),
        (["mode=train", f"+{BUFFER}.use_priority_queue=True"], "use_priority_queue out, or write mode: both"),
        ([f"+{SYNC}.sync_style=free"], "fixed or dynamic_by_trainer or dynamic_by_explorer"),
        ([f"+{SYNC}.sync_interval=0"], "must be more than zero"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(*overrides)
    assert "\n\n" not in str(caught.value)
