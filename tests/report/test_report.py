"""The page of a run: whole, alone, and safe to open whatever a model wrote."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from strop.errors import Interrupted, RunFolderError
from strop.report.build import write_report
from strop.report.charts import make_charts
from strop.report.contents import read_contents
from tests.report.runs import group, metrics, open_recorder

HOSTILE = "</pre></script><script>alert('boo')</script><img src=x onerror=alert(1)> & \u202e"


class Page(HTMLParser):
    """What stands in a page: its tags, its text, and what it would load from elsewhere."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside.append(tag)
        for name, value in attributes:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.loads.append(value)
            assert not name.startswith("on"), f"{name} on {tag}"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.text += data


def make_run(folder: Path, text: str = "four", prompt: str = "2+2?") -> Path:
    with open_recorder(folder) as record:
        record.step(0, {"eval/sums/reward": 0.25})
        record.evaluation("sums", 0, [group(1, ["five"], [0.0], prompt)])
        for step in range(1, 11):
            record.step(step, metrics(step) | ({"eval/sums/reward": 0.75} if step == 10 else {}))
        record.evaluation("sums", 10, [group(1, [text], [1.0], prompt)])
        record.rollouts(10, [group(1, [text, "five"], [1.0, 0.0], prompt), group(2, ["a", ""], [None, 0.0])])
    return folder


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_says_what_one_wants_to_know(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "sums" / "first"))
    for words in (
        "sums / first",
        "finished",
        "Held-out reward, sums",
        "0.750",
        "from 0.250",
        "Distance from the reference",
        "Sampler against trainer",
        "Time by phase",
        "Held out, sums: learned",
        "after step 0",
        "after step 10",
        "Training, step 10: best and worst",
        "best of the group",
        "it broke",
        "tasks_per_step",
    ):
        assert words in page.text, words
    assert "hunter2" not in page.text


def test_stands_alone(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path)).read_text(encoding="utf-8")
    assert Page(html).loads == []
    assert html.count("plotly.js v") == 1


def test_what_a_model_wrote_is_text_and_nothing_else(tmp_path: Path) -> None:
    harmless, hostile = make_run(tmp_path / "a"), make_run(tmp_path / "b", HOSTILE, HOSTILE)
    page = page_of(hostile)
    assert sorted(page.tags) == sorted(page_of(harmless).tags)
    assert page.text.count("alert('boo')") >= 4


def test_names_from_the_run_file_are_escaped_in_the_charts_too(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        for step in (1, 2):
            record.step(step, {"eval/<x></script><script>alert(1)/reward": 0.5, "eval/b/reward": 0.5})
    with_two = write_report(tmp_path).read_text(encoding="utf-8")
    assert "</script><script>alert(1)" not in with_two


def test_steps_without_a_metric_leave_no_hole(tmp_path: Path) -> None:
    contents = read_contents(make_run(tmp_path))
    assert contents.series("eval/sums/reward") == ([0, 10], [0.25, 0.75])
    assert contents.series("reward/mean")[0] == list(range(1, 11))
    (held_out,) = [chart for chart in make_charts(contents) if chart.title == "Held-out reward"]
    assert '"y":[0.25,0.75]' in held_out.html


def test_how_old_the_weights_were_is_drawn_where_they_were_old(tmp_path: Path) -> None:
    for name, age in (("turns", 0.0), ("ahead", 1.0)):
        with open_recorder(tmp_path / name) as record:
            record.step(1, {"staleness/mean": age / 2, "staleness/max": age, "importance/mean": 0.9})
    ages, weights = "Age of the weights that sampled", "Importance weights"
    titles = [[chart.title for chart in make_charts(read_contents(tmp_path / n))] for n in ("turns", "ahead")]
    assert titles == [[weights], [ages, weights]]


def test_the_only_part_of_a_reward_is_not_drawn_twice(tmp_path: Path) -> None:
    with open_recorder(tmp_path / "one") as record:
        record.step(1, {"reward/mean": 0.5, "reward/part/gsm8k": 0.5})
    with open_recorder(tmp_path / "two") as record:
        record.step(1, {"reward/mean": 0.5, "reward/part/gsm8k": 0.5, "reward/part/format": 0.0})
    one, two = (make_charts(read_contents(tmp_path / name))[0] for name in ("one", "two"))
    assert one.legend == ()
    assert [label for label, _ in two.legend] == ["reward", "gsm8k", "format"]


def test_a_value_that_was_not_finite_is_left_out(tmp_path: Path) -> None:
    with open_recorder(tmp_path) as record:
        for step, norm in enumerate((0.5, float("nan"), 0.7), start=1):
            record.step(step, {"grad_norm": norm})
    assert read_contents(tmp_path).series("grad_norm") == ([1, 3], [0.5, 0.7])
    write_report(tmp_path)


def test_a_run_that_was_interrupted_says_so(tmp_path: Path) -> None:
    with pytest.raises(Interrupted), open_recorder(tmp_path) as record:
        record.step(1, metrics(1))
        raise Interrupted("SIGTERM came & went.", 15)
    page = page_of(tmp_path)
    assert "interrupted" in page.text and "SIGTERM came & went." in page.text


def test_a_run_that_is_still_running_has_a_page(tmp_path: Path) -> None:
    with open_recorder(tmp_path):
        page = page_of(tmp_path)
    assert "not ended" in page.text and "No step has been recorded yet." in page.text


def test_metrics_alone_make_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5, "from/another/version": 1}\n')
    assert "Training reward" in page_of(tmp_path).text


def test_another_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
