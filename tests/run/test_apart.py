"""Explorer and trainer apart: the same run as in one process, and every group trained on once.

Here the two are threads, which is quicker; `test_launch.py` and `test_apart_kill.py` have processes.
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
from strop.models import load
from strop.run.apart.explore import explore
from strop.run.apart.explore_state import ExploreState
from strop.run.folder import RunFolder
from strop.run.records.rows import joined, read_rows
from strop.run.train import train
from strop.sync.folder import FolderVersions
from strop.sync.versions import TAKEN
from strop.types import ExperienceGroup

from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of

pytest.importorskip("sqlalchemy")
CLOCKS = ("time/", "tokens_per_second", "memory/", "sampled_version")


@contextmanager
def one_model_at_a_time():
    """transformers cannot load two in one process side by side."""
    lock, read = threading.Lock(), load._read

    def locked(*args, **kwargs):
        with lock:
            return read(*args, **kwargs)

    with patch.object(load, "_read", locked):
        yield


def rows_of(folder):
    files = RunFolder(folder)
    rows = joined(read_rows(files.explorer.metrics), read_rows(files.metrics))
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


def run_apart(values, *, explorer_first=False):
    """Both halves of a run, side by side; returns its folder."""
    loaded = strop.load({"synchronizer": {"type": "checkpoint"}} | values)
    return run_both(loaded, explorer_first=explorer_first)


def run_both(loaded, *, explorer=None, explorer_first=False):
    """The same for what is loaded; `explorer` where that half has a run file of its own."""
    explorer = explorer or loaded
    errors: list[Exception] = []

    def half(work, loaded):
        try:
            work(loaded)
        except Exception as error:  # noqa: BLE001  (it is raised again, in the test's own thread)
            errors.append(error)

    with one_model_at_a_time():
        halves = ((explore, explorer), (train, loaded))
        threads = [threading.Thread(target=half, args=args, daemon=True) for args in halves]
        threads[0].start()
        state = RunFolder(explorer.run.folder_path).explorer.path / "explorer.json"
        while explorer_first and not state.exists() and not errors:
            time.sleep(0.02)
        threads[1].start()
        deadline = time.monotonic() + 120
        while any(thread.is_alive() for thread in threads) and not errors:
            assert time.monotonic() < deadline, "the two wait for each other"
            time.sleep(0.02)
    if errors:
        raise errors[0]
    return loaded.run.folder_path


@pytest.mark.parametrize("way", ["checkpoint", "collective"])
@pytest.mark.parametrize(
    "changes",
    [
        {"model__lora": {"rank": 4}, "algorithm__kl_loss": {"coef": 0.01}, "trainer__passes": 2},
        {"algorithm": {"type": "remax", "rollouts_per_task": 2}},
        {
            "algorithm": {"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 2}},
            "data__incomplete_batch": "keep",
            "data__train__limit_tasks": 20,
            "model__compute_dtype": "bfloat16",
        },
    ],
    ids=["lora, kl, passes", "greedy baselines", "short steps, groups left out, mixed precision"],
)
def test_in_turns_it_is_the_same_run_as_in_one_process(values, changes, way):
    whole = strop.train(strop.load(values(name="one", **changes)))
    folder = run_apart(values(name="two", synchronizer=way, **changes))
    assert rows_of(folder) == rows_of(whole.folder)
    weights = "model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (whole.model / weights).read_bytes()
    assert set(states_of(folder).values()) == {"done"}


def numbers(folder, name):
    return [row[name] for row in rows_of(folder) if name in row]


def test_ahead_is_off_policy_by_so_many_steps_and_the_same_every_time(values):
    style = {"type": "fixed", "ahead": "1 steps"}
    first, second = (
        run_apart(values(name=way, synchronizer={"type": way, "style": style}))
        for way in ("checkpoint", "collective")
    )
    assert numbers(first, "staleness/max") == [0.0, 1.0, 1.0, 1.0]
    assert rows_of(first) == rows_of(second)
    stale = [row["logprob_diff/mean_abs"] for row in rows_of(first)[1:]]
    assert stale[0] < 1e-5 < min(stale[1:])


@pytest.mark.parametrize(
    ("style", "bound"),
    [
        ({"type": "free", "max_staleness": "1 steps"}, 1),
        ({"type": "free", "every": "2 steps", "max_staleness": "2 steps"}, 2),
        ({"type": "trainer", "every": "2 steps"}, 4),
        ({"type": "explorer", "every": "2 steps"}, 4),
        ({"type": "fixed", "every": "2 steps"}, 1),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else str(value),
)
@pytest.mark.parametrize("way", ["checkpoint", "collective"])
def test_every_style_trains_on_each_group_once(values, style, bound, way):
    folder = run_apart(values(synchronizer={"type": way, "style": style}))
    assert max(numbers(folder, "staleness/max")) <= bound
    assert states_of(folder) == {f"train-{s:06d}-{n:05d}": "done" for s in range(1, 5) for n in range(8)}
    assert_each_once(folder, states_of(folder))
    assert numbers(folder, "eval/held-out/reward")[-1:], "the last weights are measured"


def test_a_step_that_is_done_again_is_done_with_the_same_weights_and_adds_nothing(values):
    """As if the explorer had been killed after it put the groups of its last step."""
    run = values(synchronizer={"type": "checkpoint", "style": {"type": "free", "max_staleness": "3 steps"}})
    folder = run_apart(run)
    own = RunFolder(folder).explorer
    before, rows = states_of(folder), own.metrics.read_text()
    done = ExploreState.load(own)
    version = int(read_rows(own.metrics)[-2]["sampled_version"])
    FolderVersions(folder / "sync").say(TAKEN, version)
    ExploreState(step=3, position=24, version=version, groups=24).save(own)
    (folder / "sync" / "ended").unlink()
    run_apart(run)
    assert states_of(folder) == before
    assert ExploreState.load(own).position == done.position
    again = [json.loads(line) for line in own.metrics.read_text().splitlines()]
    was = [json.loads(line) for line in rows.splitlines()]
    last = [row for row in again if row.get("sampled_version") is not None and row["step"] == 4]
    first = [row for row in was if row.get("sampled_version") is not None and row["step"] == 4]
    assert [row["reward/mean"] for row in last] == [row["reward/mean"] for row in first]


@pytest.mark.parametrize("style", ["fixed", "trainer"])
def test_groups_that_a_checkpoint_has_and_nobody_acknowledged_are_not_learned_from_again(values, style):
    """As if the trainer had been killed between its checkpoint and the acknowledgement."""
    run = values(synchronizer={"type": "checkpoint", "style": style})
    folder = run_apart(run)
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
    folder = run_apart(run)
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


def test_an_explorer_begins_a_new_run_in_an_empty_buffer(values, tmp_path):
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    shared = {"type": "sql", "url": url, "name": "shared"}
    run_apart(values(name="old", buffer=shared))
    folder = run_apart(values(name="new", buffer=shared), explorer_first=True)
    assert len(numbers(folder, "loss")) == 4


def test_one_process_cannot_go_on_from_a_trainer_alone_which_does_not_know_the_tasks(values):
    folder = run_apart(values(name="apart"))
    alone = values(name="alone", resume=str(folder), trainer__duration="6 steps")
    with pytest.raises(CheckpointError, match=r"does not say which tasks come next.*model.path"):
        strop.train(strop.load(alone))


def test_an_explorer_without_a_trainer_fills_a_folder_that_a_trainer_reads_later(values):
    alone = {"style": {"type": "trainer"}, "type": "checkpoint"}
    run = values(buffer="file", synchronizer=alone, data__eval=[])
    assert explore(strop.load(run, ["mode=explore"])).step == 4
    result = strop.train(strop.load(run, ["mode=train"]))
    assert result.steps == 4
    rows = [row for row in rows_of(result.folder) if "loss" in row]
    assert [row["staleness/max"] for row in rows] == [0, 1, 2, 3], "all of it by the model as it was"


def test_an_explorer_that_waits_for_room_hears_that_the_trainer_has_ended(values):
    style = {"type": "checkpoint", "style": {"type": "trainer"}}
    run = values(buffer={"type": "sql", "capacity_groups": 8}, synchronizer=style, data__eval=[])
    loaded = strop.load(run, ["mode=explore"])
    folder = RunFolder.of(loaded.run)

    def end() -> None:
        while not (folder.explorer.metrics.exists() and read_rows(folder.explorer.metrics)):
            time.sleep(0.02)
        FolderVersions(folder.path / "sync").finish(4)

    trainer = threading.Thread(target=end, daemon=True)
    trainer.start()
    assert explore(loaded).step == 1  # the buffer has room for one step, and nobody takes it
    trainer.join()
