"""Which rollouts a report shows."""

from __future__ import annotations

from pathlib import Path

from strop.report.contents import read_contents
from strop.report.samples import SampleList, choose_samples
from tests.report.runs import group, open_recorder


def lists(folder: Path) -> dict[str, SampleList]:
    return {one.title: one for one in choose_samples(read_contents(folder))}


def test_held_out_before_and_after(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.step(0, {})
        first = [group(n, [f"before {n}"], [reward]) for n, reward in enumerate((0.0, 1.0, 0.0, 0.5))]
        last = [group(n, [f"after {n}"], [reward]) for n, reward in enumerate((1.0, 0.0, 0.0, 0.75))]
        record.evaluation("sums", 0, first)
        record.evaluation("sums", 5, [group(0, ["in between"], [0.0])])
        record.evaluation("sums", 10, last)
    found = lists(tmp_path)
    texts = {
        title: [tuple(answer.text for answer in sample.answers) for sample in one.samples]
        for title, one in found.items()
    }
    assert texts == {
        "Held out, sums: learned": [("before 0", "after 0"), ("before 3", "after 3")],
        "Held out, sums: lost": [("before 1", "after 1")],
        "Held out, sums: still wrong": [
            ("before 1", "after 1"),
            ("before 2", "after 2"),
            ("before 3", "after 3"),
        ],
    }
    labels = [answer.label for answer in found["Held out, sums: learned"].samples[0].answers]
    assert labels == ["after step 0", "after step 10"]


def test_one_evaluation_shows_its_best_and_worst(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.evaluation("sums", 0, [group(n, [f"text {n}"], [n / 5]) for n in range(6)])
    found = lists(tmp_path)
    best = [sample.answers[0].text for sample in found["Held out, sums: best"].samples]
    wrong = [sample.answers[0].text for sample in found["Held out, sums: still wrong"].samples]
    assert (best, wrong) == (["text 5", "text 4", "text 3"], ["text 0", "text 1", "text 2"])


def test_a_perfect_evaluation_has_nothing_wrong(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.evaluation("sums", 0, [group(n, ["right"], [1.0]) for n in range(4)])
    assert list(lists(tmp_path)) == ["Held out, sums: best"]


def test_training_shows_what_a_group_compares(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.rollouts(5, [group(0, ["old"], [0.0])])
        record.rollouts(
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
    assert [s.answers[0].error for s in found["Training, step 10: broken"].samples] == ["it broke"]
    assert len(found["Training, step 10: nothing to compare"].samples) == 2


def test_a_long_text_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.evaluation("sums", 0, [group(0, ["a" * 5000 + "b" * 5000], [1.0])])
    text = lists(tmp_path)["Held out, sums: best"].samples[0].answers[0].text
    assert text.startswith("aaa") and text.endswith("bbb") and len(text) < 4100
    assert "6,001 characters" in text


def test_a_text_that_cannot_be_seen_is_said(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        record.evaluation("sums", 0, [group(0, [" \n\n"], [1.0]), group(1, [""], [1.0])])
    shown = [sample.answers[0].text for sample in lists(tmp_path)["Held out, sums: best"].samples]
    assert sorted(shown) == ["(3 characters of white space)", "(empty)"]


def test_the_same_tasks_each_time(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        for step in (0, 5):
            record.evaluation("sums", step, [group(n, [f"{n} at {step}"], [0.5]) for n in range(9)])
    (tmp_path / "run.yaml").write_text("record: {eval_answers: 2}\n")
    found = lists(tmp_path)["Held out, sums: the same tasks each time"]
    texts = [tuple(answer.text for answer in sample.answers) for sample in found.samples]
    assert len(texts) == 2 and len(set(texts)) == 2
    assert all(before.replace("at 0", "at 5") == after for before, after in texts)
