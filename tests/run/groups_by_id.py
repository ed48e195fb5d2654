"""Which groups of a finished run were trained on how often: by their ids in the buffer that it leaves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from pathlib import Path

from strop.run.rollout.explorer import step_of_group


def states(folder: Path) -> dict[str, str]:
    """The state of every group that was ever put into a run's `buffer.db`, by id: of an sql buffer's, or of a
    queue's backup."""
    with sqlite3.connect(folder / "buffer.db") as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'strop_groups'").fetchone():
            return dict(database.execute("SELECT id, state FROM strop_groups").fetchall())
        kept = "SELECT id, CASE WHEN content IS NULL THEN 'done' ELSE 'queued' END FROM groups"
        return dict(database.execute(kept).fetchall())


def rows(folder: Path) -> list[dict[str, float]]:
    """The trainer's rows of its steps: each once, however often it was killed."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in found if row["step"] > 0]
    numbers = [row["step"] for row in steps]
    assert numbers == list(range(1, len(steps) + 1)), f"a step is missing, or there twice: {numbers}"
    return steps


def assert_each_once(folder: Path, explored: Collection[str]) -> None:
    """Every group that was explored has been trained on exactly once, or is left over in the buffer.

    The buffer acknowledges a group once, after the checkpoint that has it, and the record has each step once.
    So where the steps trained on as many groups as are done, none was trained on twice and none was lost.
    """
    found, steps = states(folder), rows(folder)
    assert found.keys() == set(explored), "every group came into the buffer, under one id"
    assert set(found.values()) <= {"done", "queued"}, "a group was taken, and never acknowledged"
    done = [id for id, state in found.items() if state == "done"]
    if "groups/trained" in steps[-1]:
        assert sum(int(row.get("groups/trained", 0)) for row in steps) == len(done)
    else:  # by step: a step's groups, and no others, are trained on in it
        assert {step_of_group(id) for id in done} == {int(row["step"]) for row in steps}


def assert_as_often_as_allowed(folder: Path, backup: Path) -> None:
    """The same for a priority queue: the uses that its backup has noted are those that stand in the record.

    A group's last use, after which it does not come back, is not noted, but makes it done; so does
    being dropped.
    """
    with sqlite3.connect(backup) as database:
        noted, done = database.execute("SELECT sum(uses), sum(content IS NULL) FROM groups").fetchone()
    steps = rows(folder)
    trained = sum(int(row["groups/trained"]) for row in steps)
    assert noted <= trained <= noted + done, f"{trained} uses in the record, {noted} and {done} in the buffer"
