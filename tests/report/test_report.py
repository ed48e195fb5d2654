"""The report of a run: complete, self-contained, and safe to open whatever a model wrote."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from strop.data.images.store import ImageStore
from strop.errors import Interrupted, RunFolderError
from strop.report.build import subject_of, write_report
from strop.report.charts import make_charts
from strop.report.page import make_thumbnails
from strop.runs.folder import RunFolder
from strop.runs.reader import RunData, read_run
from tests.data.images.pictures import encoded
from tests.report.run_folders import group, metrics, open_recorder

HOSTILE = "</pre></script><script>alert('boo')</script><img src=x onerror=alert(1)> & \u202e"


class Page(HTMLParser):
    """Parsed page: its tags, its text, and the URLs that it would load."""

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
        record.log_step(0, {"eval/sums/reward": 0.25})
        record.log_evaluation("sums", 0, [group(1, ["five"], [0.0], prompt)])
        for step in range(1, 11):
            record.log_step(step, metrics(step) | ({"eval/sums/reward": 0.75} if step == 10 else {}))
        record.log_evaluation("sums", 10, [group(1, [text], [1.0], prompt)])
        record.log_rollouts(
            10, [group(1, [text, "five"], [1.0, 0.0], prompt), group(2, ["a", ""], [None, 0.0])]
        )
    return folder


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that has finished; to be read only."""
    return make_run(tmp_path_factory.mktemp("report") / "sums" / "first")


SHOWN = """
sums / first | finished | GRPO, all weights of model, on tasks.jsonl. | Held-out reward, sums | 0.750 | from 0.250
KL divergence from the reference | Difference between sampler and trainer log-probs | Time by phase
Held out, sums: improved | after step 0 | after step 10 | Training, step 10: best and worst | best of the group
it failed | tasks_per_step
"""


def test_shows_outcome_headline_charts_and_samples_and_loads_nothing(finished: Path) -> None:
    page = page_of(finished)
    assert [words for words in re.split(r" \| |\n", SHOWN.strip()) if words not in page.text] == []
    assert "hunter2" not in page.text and page.loads == []
    html = (finished / "report.html").read_text(encoding="utf-8")
    assert html.count("data-chart=") == html.count('class="card chart"') > 5
    assert len(html) < 300_000


def test_model_output_is_escaped(tmp_path: Path, finished: Path) -> None:
    page = page_of(make_run(tmp_path, HOSTILE, HOSTILE))
    assert sorted(page.tags) == sorted(page_of(finished).tags)
    assert page.text.count("alert('boo')") >= 4


def recorded(folder: Path, *rows: dict[str, float]) -> RunData:
    """A run with the metrics of one step per row."""
    with open_recorder(folder) as record:
        for step, row in enumerate(rows, start=1):
            record.log_step(step, row)
    return read_run(folder)


def test_metric_names_are_escaped_in_charts(tmp_path: Path) -> None:
    row = {"eval/<x></script><script>alert(1)/reward": 0.5, "eval/b/reward": 0.5}
    recorded(tmp_path, row, row)
    assert "</script><script>alert(1)" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_series_skip_steps_without_the_metric(tmp_path: Path, finished: Path) -> None:
    data = read_run(finished)
    assert data.series("eval/sums/reward") == ([0, 10], [0.25, 0.75])
    assert data.series("reward/mean")[0] == list(range(1, 11))
    (held_out,) = [chart for chart in make_charts(data) if chart.title == "Held-out reward"]
    (line,) = json.loads(held_out.json)["series"]
    assert (line["label"], line["steps"], line["values"]) == ("eval/sums/reward", [0, 10], [0.25, 0.75])
    infinite = recorded(tmp_path, *({"grad_norm": norm} for norm in (0.5, float("nan"), 0.7)))
    assert infinite.series("grad_norm") == ([1, 3], [0.5, 0.7])
    write_report(tmp_path)


@pytest.mark.parametrize(("age", "titles"), [(0.0, []), (1.0, ["Staleness of the sampling weights"])])
def test_the_staleness_chart_is_omitted_if_staleness_is_0(
    tmp_path: Path, age: float, titles: list[str]
) -> None:
    row = {"staleness/mean": age / 2, "staleness/max": age, "importance/mean": 0.9}
    charts = make_charts(recorded(tmp_path, row))
    assert [chart.title for chart in charts] == [*titles, "Importance weights"]


@pytest.mark.parametrize(
    ("parts", "legend"), [({}, ["reward"]), ({"reward/part/format": 0.0}, ["reward", "gsm8k", "format"])]
)
def test_a_single_reward_component_is_not_drawn(tmp_path: Path, parts: dict, legend: list[str]) -> None:
    row = {"reward/mean": 0.5, "reward/part/gsm8k": 0.5}
    chart = make_charts(recorded(tmp_path, row | parts))[0]
    assert [one.label for one in chart.series] == legend


def test_an_interrupted_run_shows_its_message(tmp_path: Path) -> None:
    with pytest.raises(Interrupted), open_recorder(tmp_path) as record:
        record.log_step(1, metrics(1))
        raise Interrupted("SIGTERM came & went.", 15)
    page = page_of(tmp_path)
    assert "interrupted" in page.text and "SIGTERM came & went." in page.text


def test_a_running_run_has_a_report(tmp_path: Path) -> None:
    with open_recorder(tmp_path):
        page = page_of(tmp_path)
    assert "not ended" in page.text and "No step has been recorded yet." in page.text


def test_metrics_are_enough_for_a_report(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5, "from/another/version": 1}\n')
    assert "Training reward" in page_of(tmp_path).text


def test_a_report_has_no_half_of_a_surrogate_pair(tmp_path: Path, finished: Path) -> None:
    """UTF-8 cannot encode it, and JSON can."""
    text = (finished / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"command": "', '"command": "\\udfff'))
    assert r"\udfff" in write_report(tmp_path).read_text()


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_task_pipeline(tmp_path: Path) -> None:
    """Rows in and out of each operator, and a bar for each bin of a score."""
    folder = make_run(tmp_path / "run")
    scores = {"quality": {"edges": [0.0, 0.5, 1.0], "counts": [1, 4], "count": 5, "mean": 0.7}}
    operator = {"type": "llm_score", "rows_in": 5, "rows_out": 4, "seconds": 1.0, "removed": {"below 0.5": 1}}
    manifest = {"rows_in": 5, "rows_out": 4, "operators": [operator | {"counts": {}, "scores": scores}]}
    (folder / "task_pipeline.json").write_text(json.dumps({"folder": "x", "manifest": manifest}))
    html = write_report(folder).read_text(encoding="utf-8")
    text = " ".join(Page(html).text.split())
    assert "made 4 training rows out of 5" in text and "1 below 0.5" in text
    assert "quality of 5 rows, mean 0.7" in text
    assert "width: 25.0%" in html and "width: 100.0%" in html
    (folder / "task_pipeline.json").write_text("{}")
    with pytest.raises(RunFolderError, match="cannot be read"):
        write_report(folder)


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("{path: '${oc.env:ROOT,runs}/a.jsonl'}", "$ROOT/a.jsonl"),
        ("[{path: a.jsonl, weight: 2}, {path: b.jsonl}]", "a.jsonl, b.jsonl"),
        ("{path: [a.jsonl, b.jsonl]}", "a.jsonl, b.jsonl"),
    ],
)
def test_header_names_the_data(tmp_path: Path, train: str, expected: str) -> None:
    text = f"model: {{path: '${{oc.env:ROOT}}/m'}}\ndata: {{train: {train}}}\n"
    data = RunData(RunFolder(tmp_path), [], [], text)
    assert subject_of(data) == f"GRPO, all weights of $ROOT/m, on {expected}."


def test_a_thumbnail_is_small_and_has_the_proportions(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(size=(900, 300)))
    (tmp_path / "b.png").write_bytes(b"damaged")
    found = make_thumbnails(tmp_path, ["a.png", "b.png", "gone.png", "a.png"])
    assert list(found) == ["a.png"]
    data = base64.b64decode(found["a.png"].removeprefix("data:image/webp;base64,"))
    assert Image.open(BytesIO(data)).size == (240, 80)


def test_the_report_shows_the_images_of_a_prompt(tmp_path: Path) -> None:
    store = ImageStore(RunFolder(tmp_path).images)
    shown, gone = (store.add(encoded(color, (60, 40)), "row 1") for color in ("red", "blue"))
    gone.path.unlink()
    one = group(0, ["a red square"], [1.0])
    content = [
        {"type": "image", "image": shown},
        {"type": "image", "image": gone},
        {"type": "text", "text": "What?"},
    ]
    task = replace(one.task, messages=({"role": "user", "content": content},), media=(shown, gone))
    with open_recorder(tmp_path) as record:
        record.log_evaluation("shapes", 0, [replace(one, task=task)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "&lt;image&gt;&lt;image&gt;What?" in page
    assert f'<a href="images/{shown.path.name}"><img src="data:image/webp;base64,' in page
    assert f">{gone.path.name}</a>" in page


@pytest.mark.parametrize(
    ("step", "all_due", "written"),
    [(1, True, 6), (9, False, 0), (10, False, 4), (10, True, 6), (20, False, 4)],
)
def test_every_tenth_step_writes_some_groups(tmp_path: Path, step: int, all_due: bool, written: int) -> None:
    groups = [group(number, ["x"], [0.0]) for number in range(6)]
    with open_recorder(tmp_path) as record:
        assert list(record.groups_to_write(step, groups, all_due=all_due)) == groups[:written]
