"""Selection of rollouts for the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from strop.runs.folder import RunFolder
from strop.runs.reader import read_run
from strop.runs.rollout_file import read_rollouts, rollout_files, write_rollouts
from strop.runs.rollout_index import RolloutFilter, RolloutIndex
from strop.runs.samples import SampleList, choose_samples, sample_of
from strop.types import RolloutGroup
from tests.report.run_folders import group, open_recorder


def lists(folder: Path) -> dict[str, SampleList]:
    return {one.title: one for one in choose_samples(read_run(folder))}


def evaluated(folder: Path, evaluations: dict[int, list[RolloutGroup]]) -> dict[str, SampleList]:
    """The lists of a run with evaluations of `sums` at the given steps."""
    with open_recorder(folder) as record:
        record.log_step(0, {})
        for step, groups in evaluations.items():
            record.log_evaluation("sums", step, groups)
    return lists(folder)


def texts(chosen: SampleList) -> list[tuple[str, ...]]:
    return [tuple(answer.text for answer in sample.answers) for sample in chosen.samples]


def test_first_and_last_evaluation_are_compared(tmp_path: Path) -> None:
    first = [group(n, [f"before {n}"], [reward]) for n, reward in enumerate((0.0, 1.0, 0.0, 0.5))]
    last = [group(n, [f"after {n}"], [reward]) for n, reward in enumerate((1.0, 0.0, 0.0, 0.75))]
    found = evaluated(tmp_path, {0: first, 5: [group(0, ["in between"], [0.0])], 10: last})
    pairs = [(f"before {n}", f"after {n}") for n in range(4)]
    assert {title: texts(one) for title, one in found.items()} == {
        "Held out, sums: improved": [pairs[0], pairs[3]],
        "Held out, sums: worse": [pairs[1]],
        "Held out, sums: lowest": pairs[1:],
    }
    labels = [answer.label for answer in found["Held out, sums: improved"].samples[0].answers]
    assert labels == ["after step 0", "after step 10"]


@pytest.mark.parametrize(
    ("rewards", "best", "lowest"),
    [([n / 5 for n in range(6)], [5, 4, 3], [0, 1, 2]), ([1.0] * 4, [3, 2, 1], None)],
    ids=["different", "perfect"],
)
def test_a_single_evaluation_shows_its_best_and_lowest(tmp_path: Path, rewards, best, lowest) -> None:
    found = evaluated(tmp_path, {0: [group(n, [f"text {n}"], [each]) for n, each in enumerate(rewards)]})
    expected = {"Held out, sums: best": best} | ({"Held out, sums: lowest": lowest} if lowest else {})
    assert {title: texts(one) for title, one in found.items()} == {
        title: [(f"text {n}",) for n in numbers] for title, numbers in expected.items()
    }


def test_training_shows_the_groups_with_the_largest_differences(tmp_path: Path) -> None:
    groups = [
        group(1, ["all right", "as well"], [1.0, 1.0]),
        group(2, ["close", "closer", "far"], [0.5, 0.6, 0.0]),
        group(3, ["wrong", "right"], [0.0, 1.0]),
        group(4, ["", "fine"], [None, 1.0]),
    ]
    with open_recorder(tmp_path) as record:
        record.log_rollouts(5, [group(0, ["old"], [0.0])])
        record.log_rollouts(10, groups)
    found = lists(tmp_path)
    pairs = [("right", "wrong"), ("closer", "far")]
    assert texts(found["Training, step 10: best and worst"]) == pairs
    assert [s.answers[0].error for s in found["Training, step 10: failed"].samples] == ["it failed"]
    assert len(found["Training, step 10: equal rewards"].samples) == 2


def test_long_texts_keep_their_beginning_and_end_and_blank_ones_are_described(tmp_path: Path) -> None:
    given = ["a" * 5000 + "b" * 5000, " \n\n", ""]
    found = evaluated(tmp_path, {0: [group(n, [text], [1.0]) for n, text in enumerate(given)]})
    empty, blank, long = sorted((text for (text,) in texts(found["Held out, sums: best"])), key=len)
    assert (blank, empty) == ("(3 white-space characters)", "(empty)")
    assert long.startswith("aaa") and long.endswith("bbb") and len(long) < 4100
    assert "6,001 characters" in long


def test_the_fixed_selection_has_the_same_tasks_after_every_evaluation(tmp_path: Path) -> None:
    evaluated(tmp_path, {step: [group(n, [f"{n} at {step}"], [0.5]) for n in range(9)] for step in (0, 5)})
    (tmp_path / "run.yaml").write_text("record: {eval_answers: 2}\n")
    found = texts(lists(tmp_path)["Held out, sums: fixed selection"])
    assert len(found) == 2 and len(set(found)) == 2
    assert all(before.replace("at 0", "at 5") == after for before, after in found)


def test_rollouts_from_before_images_are_shown(tmp_path: Path) -> None:
    evaluated(tmp_path, {0: [group(0, ["right"], [1.0])]})
    (file,) = rollout_files(RunFolder(tmp_path))
    pq.write_table(pq.read_table(file).drop_columns(["images"]), file)
    (sample,) = lists(tmp_path)["Held out, sums: best"].samples
    assert (sample.answers[0].text, sample.images) == ("right", ())
    index = RolloutIndex(RunFolder(tmp_path))
    index.refresh()
    (row,) = index.find(RolloutFilter("eval/sums"), 0, 10).rows
    assert row["text"] == "right"


def test_recorded_rollouts_show_the_prompt_that_the_model_read(tmp_path: Path) -> None:
    made = group(0, ["a", "b"], [1.0, 0.0], prompt="a long question")
    turn = replace(made.rollouts[0].turns[0], prompt_ids=np.array([7, 8], np.int32))
    failed = replace(made.rollouts[1], turns=())
    made = replace(made, rollouts=(replace(made.rollouts[0], turns=(turn,)), failed))
    path = tmp_path / "step-000001.parquet"
    write_rollouts(path, 1, [made], decode=lambda ids: f"<s>question{ids}")
    first, second = read_rollouts(path)
    assert (first["prompt"], first["model_prompt"]) == ("a long question", "<s>question[7, 8]")
    assert second["model_prompt"] is None, "no turn began"
    assert sample_of([("", first)]).prompt == "<s>question[7, 8]"
    assert sample_of([("", second)]).prompt == "a long question"
