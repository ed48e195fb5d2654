"""Distributed runs: the same run as in one process, and every group trained on exactly once.

Explorer and trainer are threads here, which is faster; `test_launch.py` and `test_distributed_kill.py` start
processes.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from contextlib import contextmanager
from unittest.mock import patch

import pytest

import strop
from strop.buffer.codec import encode
from strop.errors import CheckpointError, StoreError
from strop.models import loading
from strop.run.entry.explore import explore
from strop.run.entry.train import train
from strop.run.state.explorer_state import ExplorerState
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import merge_rows, read_metrics
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import OLDEST_NEEDED
from strop.types import ExperienceGroup
from tests.files import digest

from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of

pytest.importorskip("sqlalchemy")
CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/", "sampled_version")


@contextmanager
def one_model_at_a_time():
    """transformers cannot load two models in one process at the same time."""
    lock, read = threading.Lock(), loading._read

    def locked(*args, **kwargs):
        with lock:
            return read(*args, **kwargs)

    with patch.object(loading, "_read", locked):
        yield


def rows_of(folder):
    files = RunFolder(folder)
    rows = merge_rows(read_metrics(files.explorer.metrics), read_metrics(files.metrics))
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


def run_distributed(values, *, explorer_first=False):
    """Run explorer and trainer in two threads; returns the run's folder."""
    loaded = strop.load({"synchronizer": {"type": "checkpoint"}} | values)
    return run_both(loaded, explorer_first=explorer_first)


def run_both(loaded, *, explorer=None, explorer_first=False):
    """Run explorer and trainer of a loaded run file; `explorer` is a run file of the explorer's own."""
    explorer = explorer or loaded
    errors: list[Exception] = []

    def run_role(work, loaded):
        try:
            work(loaded)
        except Exception as error:  # noqa: BLE001  (raised again in the test's thread)
            errors.append(error)

    with one_model_at_a_time():
        roles = ((explore, explorer), (train, loaded))
        threads = [threading.Thread(target=run_role, args=args, daemon=True) for args in roles]
        threads[0].start()
        state = RunFolder(explorer.run.folder_path).explorer.path / "explorer.json"
        while explorer_first and not state.exists() and not errors:
            time.sleep(0.02)
        threads[1].start()
        deadline = time.monotonic() + 900
        while any(thread.is_alive() for thread in threads) and not errors:
            assert time.monotonic() < deadline, "deadlock of explorer and trainer"
            time.sleep(0.02)
    if errors:
        raise errors[0]
    return loaded.run.folder_path


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["checkpoint", "collective"])
@pytest.mark.parametrize(
    "changes",
    [
        {
            "model__lora": {"rank": 4},
            "algorithm__kl_loss": {"coef": 0.01},
            "trainer__epochs_per_step": 2,
            "rollout__engine": {"type": "native", "merge_lora": True},
        },
        {"algorithm": {"type": "remax", "rollouts_per_task": 2}},
        {
            "algorithm": {"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 2}},
            "data__incomplete_batch": "keep",
            "data__train__limit_tasks": 20,
            "model__compute_dtype": "bfloat16",
        },
    ],
    ids=["lora, kl, passes", "greedy baselines", "short steps, filtered groups, mixed precision"],
)
def test_without_lead_the_run_equals_the_run_in_one_process(values, changes, transport):
    reference = strop.train(strop.load(values(name="one", **changes)))
    folder = run_distributed(values(name="two", synchronizer=transport, **changes))
    assert rows_of(folder) == rows_of(reference.folder)
    weights = "model.safetensors"
    assert digest(folder / "model" / weights) == digest(reference.model / weights)
    assert set(states_of(folder).values()) == {"done"}


def numbers(folder, name):
    return [row[name] for row in rows_of(folder) if name in row]


@pytest.mark.slow
def test_a_lead_makes_steps_off_policy_and_is_reproducible(values):
    style = {"type": "fixed", "max_lead": "1 steps"}
    first, second = (
        run_distributed(values(name=transport, synchronizer={"type": transport, "style": style}))
        for transport in ("checkpoint", "collective")
    )
    assert numbers(first, "staleness/max") == [0.0, 1.0, 1.0, 1.0]
    assert rows_of(first) == rows_of(second)
    stale = [row["logprob_diff/mean_abs"] for row in rows_of(first)[1:]]
    assert stale[0] < 1e-5 < min(stale[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "bound"),
    [
        ({"type": "bounded", "max_staleness": "1 steps"}, 1),
        ({"type": "bounded", "every": "2 steps", "max_staleness": "2 steps"}, 2),
        ({"type": "latest", "every": "2 steps"}, 4),
        ({"type": "on_request", "every": "2 steps"}, 4),
        ({"type": "fixed", "every": "2 steps"}, 1),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("transport", ["checkpoint", "collective"])
def test_every_style_trains_on_each_group_once(values, style, bound, transport):
    folder = run_distributed(values(synchronizer={"type": transport, "style": style}))
    assert max(numbers(folder, "staleness/max")) <= bound
    assert states_of(folder) == {f"train-{s:06d}-{n:05d}": "done" for s in range(1, 5) for n in range(8)}
    assert_each_once(folder, states_of(folder))
    assert numbers(folder, "eval/held-out/reward")[-1:], "the final weights are evaluated"


def test_a_repeated_step_uses_the_same_weights_and_adds_no_groups(values):
    """The state after a kill of the explorer between its last put and its last save."""
    run = values(synchronizer={"type": "checkpoint", "style": {"type": "fixed", "max_lead": "3 steps"}})
    folder = run_distributed(run)
    own = RunFolder(folder).explorer
    before, rows = states_of(folder), own.metrics.read_text()
    done = ExplorerState.load(own)
    version = int(read_metrics(own.metrics)[-2]["sampled_version"])
    FolderVersionStore(folder / "sync").set_signal(OLDEST_NEEDED, version)
    ExplorerState(step=3, tasks_taken=24, next_version=version, groups_written=24).save(own)
    (folder / "sync" / "ended").unlink()
    # Alone: a trainer would end at once, and an explorer that sees it ends before its step.
    explore(strop.load(run))
    assert states_of(folder) == before
    assert ExplorerState.load(own).tasks_taken == done.tasks_taken
    again = [json.loads(line) for line in own.metrics.read_text().splitlines()]
    was = [json.loads(line) for line in rows.splitlines()]
    last = [row for row in again if row.get("sampled_version") is not None and row["step"] == 4]
    first = [row for row in was if row.get("sampled_version") is not None and row["step"] == 4]
    assert [row["reward/mean"] for row in last] == [row["reward/mean"] for row in first]


@pytest.mark.slow
@pytest.mark.parametrize("style", ["fixed", "latest"])
def test_unacknowledged_groups_of_a_checkpoint_are_not_trained_on_again(values, style):
    """The state after a kill of the trainer between its checkpoint and the acknowledgement."""
    run = values(synchronizer={"type": "checkpoint", "style": style})
    folder = run_distributed(run)
    rows = rows_of(folder)
    with sqlite3.connect(folder / "buffer.db") as database:
        last = "id LIKE 'train-000003-%' OR id LIKE 'train-000004-%'"
        database.execute(f"UPDATE strop_groups SET state = 'queued', session = NULL WHERE {last}")
        for (id,) in database.execute("SELECT id FROM strop_groups WHERE state = 'queued'").fetchall():
            content = encode(ExperienceGroup(id, ()))
            database.execute("UPDATE strop_groups SET content = ? WHERE id = ?", (content, id))
    train(strop.load(run))
    assert_each_once(folder, states_of(folder))
    assert set(states_of(folder).values()) == {"done"}
    assert rows_of(folder) == rows


def test_the_trainer_refuses_groups_of_another_step(values):
    run = values()
    folder = run_distributed(run)
    with sqlite3.connect(folder / "buffer.db") as database:
        database.execute("DELETE FROM strop_groups")
        for number in range(8):
            id = f"train-000009-{number:05d}"
            database.execute(
                "INSERT INTO strop_groups (buffer, state, id, content) "
                "VALUES ('strop/small', 'queued', ?, ?)",
                (id, encode(ExperienceGroup(id, ()))),
            )
    longer = strop.load({"synchronizer": {"type": "checkpoint"}} | run, ["trainer.duration=6 steps"])
    with pytest.raises(StoreError, match=r"next step is 5, and the buffer gave groups of step 9"):
        train(longer)


@pytest.mark.slow
def test_an_explorer_starts_a_new_run_with_an_empty_buffer(values, tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    shared = {"type": "sql", "url": url, "name": "shared"}
    run_distributed(values(name="old", buffer=shared))
    folder = run_distributed(values(name="new", buffer=shared), explorer_first=True)
    assert len(numbers(folder, "loss")) == 4


@pytest.mark.slow
def test_one_process_cannot_resume_from_a_trainers_checkpoint_without_the_task_position(values):
    folder = run_distributed(values(name="apart"))
    alone = values(name="alone", resume=str(folder), trainer__duration="6 steps")
    with pytest.raises(CheckpointError, match=r"does not say which tasks come next.*model.path"):
        strop.train(strop.load(alone))


def test_an_explorer_without_a_trainer_fills_a_folder_that_a_trainer_reads_later(values):
    alone = {"style": {"type": "latest"}, "type": "checkpoint"}
    run = values(buffer="file", synchronizer=alone, data__eval=[])
    assert explore(strop.load(run, ["mode=explore"])).step == 4
    result = strop.train(strop.load(run, ["mode=train"]))
    assert result.steps == 4
    rows = [row for row in rows_of(result.folder) if "loss" in row]
    assert [row["staleness/max"] for row in rows] == [0, 1, 2, 3], (
        "all groups were sampled with the initial model"
    )


def test_an_explorer_that_waits_for_a_full_buffer_notices_the_trainers_end(values):
    style = {"type": "checkpoint", "style": {"type": "latest"}}
    run = values(buffer={"type": "sql", "capacity_groups": 8}, synchronizer=style, data__eval=[])
    loaded = strop.load(run, ["mode=explore"])
    folder = RunFolder.of(loaded.run)

    def end() -> None:
        while (state := ExplorerState.load(folder.explorer)) is None or state.groups_written < 8:
            time.sleep(0.02)
        FolderVersionStore(folder.path / "sync").finish(4)

    trainer = threading.Thread(target=end, daemon=True)
    trainer.start()
    state = explore(loaded)
    assert (state.groups_written, state.step <= 1) == (8, True), (
        "the buffer holds 8 groups, which nobody takes"
    )
    trainer.join()
