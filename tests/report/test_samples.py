"""Selection of rollouts for the report."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from strop.runs.folder import RunFolder
from strop.runs.reader import read_run
from strop.runs.rollout_file import rollout_files
from strop.runs.rollout_index import RolloutFilter, RolloutIndex
from strop.runs.samples import SampleList, choose_samples
from tests.report.run_folders import group, open_recorder


def lists(folder: Path) -> dict[str, SampleList]:
    return {one.title: one for one in choose_samples(read_run(folder))}


def test_first_and_last_evaluation_are_compared(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_step(0, {})
        first = [group(n, [f"before {n}"], [reward]) for n, reward in enumerate((0.0, 1.0, 0.0, 0.5))]
        last = [group(n, [f"after {n}"], [reward]) for n, reward in enumerate((1.0, 0.0, 0.0, 0.75))]
        record.log_evaluation("sums", 0, first)
        record.log_evaluation("sums", 5, [group(0, ["in between"], [0.0])])
        record.log_evaluation("sums", 10, last)
    found = lists(tmp_path)
    texts = {
        title: [tuple(answer.text for answer in sample.answers) for sample in one.samples]
        for title, one in found.items()
    }
    assert texts == {
        "Held out, sums: improved": [("before 0", "after 0"), ("before 3", "after 3")],
        "Held out, sums: worse": [("before 1", "after 1")],
        "Held out, sums: lowest": [
            ("before 1", "after 1"),
            ("before 2", "after 2"),
            ("before 3", "after 3"),
        ],
    }
    labels = [answer.label for answer in found["Held out, sums: improved"].samples[0].answers]
    assert labels == ["after step 0", "after step 10"]


def test_a_single_evaluation_shows_its_best_and_lowest(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_evaluation("sums", 0, [group(n, [f"text {n}"], [n / 5]) for n in range(6)])
    found = lists(tmp_path)
    best = [sample.answers[0].text for sample in found["Held out, sums: best"].samples]
    wrong = [sample.answers[0].text for sample in found["Held out, sums: lowest"].samples]
    assert (best, wrong) == (["text 5", "text 4", "text 3"], ["text 0", "text 1", "text 2"])


def test_a_perfect_evaluation_has_no_lowest_responses(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_evaluation("sums", 0, [group(n, ["right"], [1.0]) for n in range(4)])
    assert list(lists(tmp_path)) == ["Held out, sums: best"]


def test_training_shows_the_groups_with_the_largest_differences(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_rollouts(5, [group(0, ["old"], [0.0])])
        record.log_rollouts(
            10,
            [
                group(1, ["all right", "as well"], [1.0, 1.0]),
                group(2, ["close", "closer", "far"], [0.5, 0.6, 0.0]),
                group(3, ["wrong", "right"], [0.0, 1.0]),
                group(4, ["", "fine"], [None, 1.0]),
            ],
        )
    found = lists(tmp_path)
    pairs = [
        tuple(answer.text for answer in sample.answers)
        for sample in found["Training, step 10: best and worst"].samples
    ]
    assert pairs == [("right", "wrong"), ("closer", "far")]
    assert [s.answers[0].error for s in found["Training, step 10: failed"].samples] == ["it failed"]
    assert len(found["Training, step 10: equal rewards"].samples) == 2


def test_a_long_text_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_evaluation("sums", 0, [group(0, ["a" * 5000 + "b" * 5000], [1.0])])
    text = lists(tmp_path)["Held out, sums: best"].samples[0].answers[0].text
    assert text.startswith("aaa") and text.endswith("bbb") and len(text) < 4100
    assert "6,001 characters" in text


def test_a_blank_text_is_described(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_evaluation("sums", 0, [group(0, [" \n\n"], [1.0]), group(1, [""], [1.0])])
    shown = [sample.answers[0].text for sample in lists(tmp_path)["Held out, sums: best"].samples]
    assert sorted(shown) == ["(3 white-space characters)", "(empty)"]


def test_the_fixed_selection_has_the_same_tasks_after_every_evaluation(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        for step in (0, 5):
            record.log_evaluation("sums", step, [group(n, [f"{n} at {step}"], [0.5]) for n in range(9)])
    (tmp_path / "run.yaml").write_text("record: {eval_answers: 2}\n")
    found = lists(tmp_path)["Held out, sums: fixed selection"]
    texts = [tuple(answer.text for answer in sample.answers) for sample in found.samples]
    assert len(texts) == 2 and len(set(texts)) == 2
    assert all(before.replace("at 0", "at 5") == after for before, after in texts)


def test_rollouts_from_before_images_are_shown(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.log_evaluation("sums", 0, [group(0, ["right"], [1.0])])
    (file,) = rollout_files(RunFolder(tmp_path))
    pq.write_table(pq.read_table(file).drop_columns(["images"]), file)
    (sample,) = lists(tmp_path)["Held out, sums: best"].samples
    assert (sample.answers[0].text, sample.images) == ("right", ())
    index = RolloutIndex(RunFolder(tmp_path))
    index.refresh()
    (row,) = index.find(RolloutFilter("eval/sums"), 0, 10).rows
    assert row["text"] == "right"
