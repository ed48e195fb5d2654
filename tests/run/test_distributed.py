"""Distributed runs: the same run as in one process, and every group trained on exactly once.

Explorer and trainer are threads here, which is faster; `test_launch.py` and `test_distributed_kill.py` start
processes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import strop
from strop.buffer.codec import encode
from strop.errors import CheckpointError, StoreError
from strop.models import loading
from strop.run.entry.explore import explore
from strop.run.entry.train import train
from strop.run.state.run_state import ExplorerState
from strop.runs.folder import RunFolder
from strop.runs.metrics_file import merge_rows, read_metrics
from strop.sync.folder_store import FolderVersionStore
from strop.sync.transport import OLDEST_NEEDED
from strop.types import ExperienceGroup
from tests.files import digest

from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of
from .results import WEIGHTS, checkpoint, measured
from .results import train as train_together

pytest.importorskip("sqlalchemy")


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
    """The rows of both processes, as one process has them."""
    files = RunFolder(folder)
    rows = merge_rows(read_metrics(files.explorer.metrics), read_metrics(files.metrics))
    return [without_clocks(row) for row in rows]


def without_clocks(row):
    return {name: value for name, value in measured(row).items() if name != "sampled_version"}


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


SYNCHRONOUS = {
    "lora, kl, passes": {
        "model__lora": {"rank": 4},
        "algorithm__kl_loss": {"coef": 0.01},
        "trainer__epochs_per_step": 2,
        "rollout__engine": {"type": "native", "merge_lora": True},
    },
    "greedy baselines": {"algorithm": {"type": "remax", "rollouts_per_task": 2}},
    "short steps, filtered groups, mixed precision": {
        "algorithm": {"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 2}},
        "data__incomplete_batch": "keep",
        "data__train__limit_tasks": 20,
        "model__compute_dtype": "bfloat16",
    },
}


def by_transport(cases: Mapping[str, Any]) -> list[Any]:
    """Each case with one transport in CI, in turns, and with the other transport at night."""
    found = []
    for number, (name, values) in enumerate(cases.items()):
        for at, transport in enumerate(("checkpoint", "collective")):
            marks = () if at == number % 2 else pytest.mark.nightly
            found.append(pytest.param(values, transport, marks=marks, id=f"{name}, {transport}"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "transport"), by_transport(SYNCHRONOUS))
def test_without_lead_the_run_equals_the_run_in_one_process(values, changes, transport):
    reference = train_together(values(name="one", **changes)).folder
    folder = run_distributed(values(name="two", synchronizer=transport, **changes))
    assert rows_of(folder) == rows_of(reference)
    assert digest(folder / "model" / WEIGHTS) == digest(reference / "model" / WEIGHTS)
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


STYLES = {
    "bounded": ({"type": "bounded", "max_staleness": "1 steps"}, 1),
    "bounded, every 2": ({"type": "bounded", "every": "2 steps", "max_staleness": "2 steps"}, 2),
    "latest": ({"type": "latest", "every": "2 steps"}, 4),
    "on request": ({"type": "on_request", "every": "2 steps"}, 4),
    "fixed": ({"type": "fixed", "every": "2 steps"}, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "transport"), by_transport(STYLES))
def test_every_style_trains_on_each_group_once(values, case, transport):
    style, bound = case
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
        train_together(alone)


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
    shutil.rmtree(result.folder / "experiences")
    with pytest.raises(StoreError, match=r"lacks 32 of the 32 groups that the explorer of .* has written"):
        explore(strop.load(run, ["mode=explore"]))


class Late(strop.Callback):
    """Puts the groups that an explorer writes late into the buffer once step 2 is trained."""

    def __init__(self, database: Path, rows: list[tuple[Any, ...]]) -> None:
        self._database, self._rows = database, rows

    def on_step(self, row):
        if row["step"] == 2:
            insert(self._database, self._rows)


def insert(path, rows):
    with sqlite3.connect(path) as database:
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO strop_groups VALUES ({marks})", rows)


@pytest.mark.slow
def test_a_killed_trainer_repeats_an_incomplete_step(values):
    """Three groups of step 2 come too late. A kill before the checkpoint of step 2 leaves all groups in the buffer."""
    buffer = {"type": "sql", "read_timeout_seconds": 0.3, "on_timeout": "train"}
    fixed = {"type": "checkpoint", "style": {"type": "fixed", "max_lead": "3 steps"}}
    saved = {"every": "1 steps", "keep": None}
    run = values(buffer=buffer, synchronizer=fixed, data__eval=[], evaluate={}, checkpoint=saved)
    assert explore(strop.load(run, ["mode=explore"])).step == 4
    folder = strop.load(run).run.folder_path
    path = folder / "buffer.db"
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT * FROM strop_groups ORDER BY number").fetchall()
        early, late = rows[:13], rows[13:]
        database.execute("DELETE FROM strop_groups WHERE number > ?", (early[-1][0],))
    train(strop.load(run, ["mode=train"]), callbacks=[Late(path, late)])
    first, weights = rows_of(folder), digest(folder / "model" / WEIGHTS)
    counts = [(row["groups/trained"], row["groups/missing"], row["groups/late_dropped"]) for row in first[1:]]
    assert counts == [(8, 0, 0), (5, 3, 0), (8, 0, 3), (8, 0, 0)]
    assert (folder / "incomplete_steps.jsonl").is_file()

    for step in (2, 3, 4):
        shutil.rmtree(checkpoint(folder, step))
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM strop_groups WHERE number > ?", (rows[7][0],))
    insert(path, rows[8:])
    train(strop.load(run, ["mode=train"]))
    assert rows_of(folder) == first
    assert digest(folder / "model" / WEIGHTS) == weights


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
