"""Pairs of responses, the dataset that their ratings become, and its use by DPO."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from strop.config.load.loader import load_run
from strop.errors import DataError
from strop.pipelines.human_feedback import AnnotationQueue, Answer
from strop.runs.folder import RunFolder
from strop.runs.rollout_file import rollout_path, write_rollouts
from strop.runs.rollout_index import RolloutIndex
from strop.studio.preferences import (
    _changing,
    _prompt,
    draw_pair,
    pairs_run_file,
    preference_file,
    read_preferences,
)
from strop.workers.child_process import child_environment
from tests.report.run_folders import group, metrics, open_recorder
from tests.studio.conftest import SETTINGS


@pytest.fixture
def run(client: TestClient) -> Path:
    """A run with two groups of different responses, and one group of equal ones."""
    path = Path("runs/sums/first")
    with open_recorder(path) as recorder:
        recorder.log_step(1, metrics(1))
        groups = [group(0, ["a", "b"], [1.0, 0.0]), group(1, ["c", "d"], [0.0, 1.0])]
        recorder.log_rollouts(1, [*groups, group(2, ["e", "e"], [0.0, 0.0])])
    return path


def test_rating_writes_the_dataset_and_ends_when_all_pairs_are_rated(client: TestClient, run: Path) -> None:
    assert "sums/first" in client.get("/rate").text
    page = client.get("/rate?run=sums/first").text
    for count in (1, 2):
        step, name = (page.partition(f'data-{key}="')[2].partition('"')[0] for key in ("step", "group"))
        vote = {"run": "sums/first", "set": "training", "file": "preferences.jsonl", "step": step}
        vote |= {"group": name, "chosen": "1", "rejected": "0"}
        assert client.post("/rate/choose", json=vote).json() == {"rated": count}
        page = client.get("/rate/pair?run=sums/first&set=training&file=preferences.jsonl").text
    assert "No further pair" in page
    rows = [json.loads(line) for line in Path("preferences.jsonl").read_text().splitlines()]
    found = {(row["prompt"], row["chosen"], row["rejected"]) for row in rows}
    assert found == {("2+2?", "b", "a"), ("2+2?", "d", "c")}
    with Path("preferences.jsonl").open("a") as file:
        file.write(json.dumps(other := rows[0] | {"rollouts": [7, 8]}) + "\n")
    for rated in (2, 2):  # the choice of this page, and not the last one of the file; once
        assert client.post("/rate/undo", json=vote).json()["rated"] == rated
    assert read_preferences(Path("preferences.jsonl")) == [rows[0], other]


def test_choices_of_many_people_at_once_are_all_kept(client: TestClient, run: Path) -> None:
    vote = {
        "run": "sums/first",
        "set": "training",
        "file": "out/preferences.jsonl",
        "step": "1",
        "group": "t0",
    }
    votes = [vote | {"chosen": "1", "rejected": "0"}, vote | {"chosen": "0", "rejected": "1"}] * 8
    with ThreadPoolExecutor(16) as people:
        answers = [*people.map(lambda each: client.post("/rate/choose", json=each).status_code, votes)]
    assert answers == [200] * 16 and len(read_preferences(Path("out/preferences.jsonl"))) == 16
    assert [path.name for path in Path("out").iterdir()] == ["preferences.jsonl"]


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    path, count = tmp_path / "preferences.jsonl", 20
    script = """
import sys
from pathlib import Path
from strop.studio.preferences import _changing
for number in range(int(sys.argv[2])):
    with _changing(Path(sys.argv[1])) as rows:
        rows.append({"chosen": sys.argv[3], "rejected": number})
"""
    arguments = [sys.executable, "-c", script, str(path), str(count)]
    writers = [subprocess.Popen([*arguments, name], env=child_environment()) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    rows = [(row["chosen"], row["rejected"]) for row in read_preferences(path)]
    assert sorted(rows) == [(name, number) for name in "ab" for number in range(count)]


def test_a_row_has_any_character_that_a_response_has(tmp_path: Path) -> None:
    path = tmp_path / "preferences.jsonl"
    rows = [{"chosen": f"a{mark}b", "rejected": ""} for mark in "\u2028\u2029\x85\x0b\x0c\x1c\x1e\r\n\ud800"]
    for row in rows:
        with _changing(path) as found:
            found.append(row)
    assert read_preferences(path) == rows
    path.write_bytes(path.read_bytes()[:-5])  # a kill
    assert read_preferences(path) == rows[:-1]
    path.write_text('{"chosen": "a", "rejected": "b"}')  # by hand, without an end of the line
    assert len(read_preferences(path)) == 1


def test_pairs_are_of_different_responses_of_one_group(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    groups = [group(0, ["a", "a", "b"], [1.0, 0.0, None]), group(1, ["c", "c", "d"], [0.0, 0.0, 0.0])]
    write_rollouts(rollout_path(folder.rollouts, 1), 1, groups)
    index = RolloutIndex(folder)
    index.refresh()
    found = [draw_pair(index, "training", [], "run", seed) for seed in range(20)]
    assert {frozenset({one.first["text"], one.second["text"]}) for one in found if one} == {frozenset("cd")}
    assert len({one.first["text"] for one in found if one}) == 2  # either response comes first


def test_prompts_become_messages_again() -> None:
    assert _prompt("What is [1]?") == "What is [1]?"
    assert _prompt("[system]\nBe short.\n\n[user]\nHi\n\nthere") == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi\n\nthere"},
    ]


def test_run_file_for_the_preferences_loads(client: TestClient, run: Path) -> None:
    Path("p.jsonl").write_text('{"prompt": "2+2?", "chosen": "4", "rejected": "5"}\n' * 3)
    values = {"model": {"path": "m"}, "data": {"max_prompt_tokens": 9, "chat_template": "none"}}
    Path("dpo.yaml").write_text(pairs_run_file(values, Path("p.jsonl"), 3))
    found = load_run("dpo.yaml").run
    assert (found.algorithm.type, found.data.max_prompt_tokens, found.trainer.tasks_per_step) == ("dpo", 9, 3)
    page = client.get("/compose?pairs=p.jsonl&run=sums/first").text
    assert "{type: dpo, beta: 0.1}" in page and "Column of the preferred response" in page


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ends in \.jsonl"):
        preference_file("preferences.csv", SETTINGS)
    other = tmp_path / "tasks.jsonl"
    other.write_text('{"prompt": "1+1"}\n')
    with pytest.raises(DataError, match="is not a file of preferences"):
        read_preferences(other)


def question(name: str, kind: str, *texts: str) -> dict[str, object]:
    responses = [{"index": 2 * place, "text": text, "messages": None} for place, text in enumerate(texts)]
    shown = {"prompt": "2+2?", "images": [], "answer": "4", "responses": responses}
    return {"id": name, "question": kind, "group": "g", "task_id": "t", **shown}


def test_questions_of_a_run_are_answered(client: TestClient, run: Path) -> None:
    assert "questions</option>" not in client.get("/rate?run=sums/first").text
    queue = AnnotationQueue(RunFolder(run).annotations)
    queue.ask(question("q-1", "preference", "four", "<b>five"))
    queue.ask(question("q-2", "score", "four", "five"))
    page = client.get("/rate?run=sums/first&set=questions").text
    assert "questions</option>" in page and "2 questions wait" in page and "&lt;b&gt;five" in page
    assert 'data-question="q-1"' in page and 'data-choice="2" data-other="0"' in page
    vote = {"run": "sums/first", "id": "q-1", "chosen": "2", "rejected": "0"}
    assert client.post("/rate/answer", json=vote).json() == {"waiting": 1}
    assert queue.find_answer("q-1") == Answer("answered", {2: 1.0, 0: 0.0})
    again = client.post("/rate/answer", json=vote)
    assert again.status_code == 400 and "has been answered" in again.json()["error"]

    part = client.get("/rate/pair?run=sums/first&set=questions").text
    assert 'data-question="q-2"' in part and 'name="score-2" value="0.75"' in part
    assert [each["id"] for each in client.get("/rate/questions?run=sums/first").json()["waiting"]] == ["q-2"]
    faults = (({"1": 1}, "indices 0, 2"), ({"0": 1.5}, "between 0 and 1"), ({"a": 1}, "by index"))
    for scores, fault in faults:
        refused = client.post("/rate/answer", json={"run": "sums/first", "id": "q-2", "scores": scores})
        assert refused.status_code == 400 and fault in refused.json()["error"]
    client.post("/rate/answer", json={"run": "sums/first", "id": "q-2"})
    assert queue.find_answer("q-2") == Answer("skipped", {})
    assert "asks no question now" in client.get("/rate/pair?run=sums/first&set=questions").text
    outside = client.post("/rate/answer", json={"run": "sums/first", "id": "../questions/q-1"})
    assert "No question" in outside.json()["error"]
