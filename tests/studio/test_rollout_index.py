"""Index of rollouts against a plain search through all rows."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strop.runs import rollout_index
from strop.runs.folder import RunFolder
from strop.runs.rollout_file import read_rollouts, rollout_path, write_rollouts
from strop.runs.rollout_index import RolloutFilter, RolloutIndex
from tests.report.run_folders import group

STEPS, GROUPS, SIZE = 4, 35, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    draw = random.Random(0)
    found = RunFolder(tmp_path_factory.mktemp("run"))
    for step in range(1, STEPS + 1):
        groups = [
            group(
                number,
                [f"text {draw.randrange(50)} of {step}" for _ in range(SIZE)],
                [None if draw.random() < 0.1 else draw.randrange(9) / 8 for _ in range(SIZE)],
            )
            for number in range(GROUPS)
        ]
        write_rollouts(rollout_path(found.rollouts, step), step, groups)
    write_rollouts(rollout_path(found.evaluations("held-out"), 2), 2, [group(0, ["a", "b"], [0.0, 1.0])])
    return found


@pytest.fixture(scope="module")
def rows(folder: RunFolder) -> list[dict[str, object]]:
    return [row for path in sorted(folder.rollouts.iterdir()) for row in read_rollouts(path)]


def opened(folder: RunFolder) -> RolloutIndex:
    index = RolloutIndex(folder)
    index.refresh()
    return index


def texts(index: RolloutIndex, accepted: RolloutFilter = RolloutFilter()) -> list[object]:  # noqa: B008
    return [row["text"] for row in index.find(accepted, 0, 9).rows]


def identity(row: dict[str, object]) -> tuple[object, ...]:
    return row["step"], row["group"], row["index"], row["text"]


@pytest.mark.parametrize(
    ("chosen", "fits"),
    [
        ({}, lambda row: True),
        ({"first_step": 2, "last_step": 3}, lambda row: 2 <= row["step"] <= 3),
        ({"status": "error"}, lambda row: row["status"] == "error"),
        ({"min_reward": 0.5, "max_reward": 0.75}, lambda row: row["reward"] in (0.5, 0.625, 0.75)),
        ({"text": "TEXT 7 "}, lambda row: "text 7 " in row["text"]),
        ({"group": "t3", "last_step": 1}, lambda row: row["group"] == "t3" and row["step"] == 1),
    ],
    ids=["all", "steps", "failed", "reward", "text", "group"],
)
def test_a_filter_finds_what_a_plain_search_finds(folder: RunFolder, rows, chosen, fits) -> None:
    expected = [identity(row) for row in rows if fits(row)]
    index, found, has_more = opened(folder), [], True
    while has_more:
        page = index.find(RolloutFilter(order="oldest", **chosen), len(found), 50)
        found += [identity(row) for row in page.rows]
        has_more = page.has_more
    assert expected and found == expected


def test_orders(folder: RunFolder, rows: list[dict[str, object]]) -> None:
    index = opened(folder)
    scored = sorted((row["reward"] for row in rows if row["reward"] is not None), reverse=True)
    best = index.find(RolloutFilter(order="best"), 100, 200)
    assert [row["reward"] for row in best.rows] == scored[100:300]
    worst = index.find(RolloutFilter(order="worst"), 0, 30)
    assert [row["reward"] for row in worst.rows] == scored[::-1][:30]
    newest = index.find(RolloutFilter(), 5, 10)
    assert [identity(row) for row in newest.rows] == [identity(row) for row in rows[::-1][5:15]]
    assert (newest.total, newest.has_more) == (len(rows), True)


def test_spreads_are_those_of_the_groups(folder: RunFolder, rows: list[dict[str, object]]) -> None:
    rewards: dict[tuple[object, object], list[float]] = {}
    for row in rows:
        if isinstance(row["reward"], float):
            rewards.setdefault((row["step"], row["group"]), []).append(row["reward"])
    found = opened(folder).spreads(RolloutFilter(), 0, len(rewards))
    assert {(one.step, one.group): (one.best, one.worst, one.rollouts) for one in found} == {
        key: (max(values), min(values), len(values)) for key, values in rewards.items()
    }
    spreads = [one.best - one.worst for one in found]
    assert spreads == sorted(spreads, reverse=True)


def test_evaluations_are_sets_of_their_own(folder: RunFolder) -> None:
    index = opened(folder)
    assert index.sources == ["training", "eval/held-out"]
    assert index.steps("eval/held-out") == [2]
    assert texts(index, RolloutFilter("eval/held-out", order="best")) == ["b", "a"]


def test_new_changed_and_deleted_files_are_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    index = opened(folder)
    assert index.find(RolloutFilter(), 0, 9).total == 0
    write_rollouts(rollout_path(folder.rollouts, 1), 1, [group(0, ["a", "b"], [0.0, 1.0])])
    write_rollouts(rollout_path(folder.rollouts, 2), 2, [group(0, ["c"], [0.0])])
    (folder.rollouts / "step-000003.parquet").write_bytes(b"PAR1 and nothing else")
    index.refresh()
    assert texts(index) == ["c", "b", "a"]
    rollout_path(folder.rollouts, 2).unlink()
    write_rollouts(rollout_path(folder.rollouts, 1), 1, [group(0, ["d"], [0.5])])
    index.refresh()
    assert texts(index) == ["d"]


def test_file_that_is_deleted_while_the_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    write_rollouts(rollout_path(folder.rollouts, 1), 1, [group(0, ["a"], [0.0])])
    listed = [rollout_path(folder.rollouts, step) for step in (1, 2)]
    monkeypatch.setattr(rollout_index, "rollout_files", lambda each: listed if each is folder else [])
    index = RolloutIndex(folder)
    index.refresh()
    assert index.steps("training") == [1]


def test_the_sets_are_named_while_new_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, whose walk through the known files a refresh does not disturb."""
    folder = RunFolder(tmp_path)
    write_rollouts(rollout_path(folder.rollouts, 1), 1, [group(0, ["a"], [0.0])])
    index = opened(folder)
    walk = iter(index._files.values())
    write_rollouts(rollout_path(folder.rollouts, 2), 2, [group(0, ["b"], [0.0])])
    index.refresh()
    assert [each.source for each in walk] == ["training"]
    assert index.steps("training") == [1, 2]


def test_files_have_row_groups_that_can_be_read_alone(folder: RunFolder) -> None:
    metadata = pq.read_metadata(rollout_path(folder.rollouts, 1))
    assert metadata.num_row_groups == -(-GROUPS * SIZE // 256)
