"""Buttons of a run: notes, archive, trash, report, further processes; and the list's filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from strop.models.tiny import make_model
from strop.studio.pages import run_actions, run_view
from strop.studio.run_notes import RunNotes, read_notes

NAME = "sums/first"


def names(client: TestClient, **query: str) -> list[str]:
    text = client.get("/runs/table", params=query).text
    return [name for name in ("sums/first", "sums/second") if f">{name}</a>" in text]


def test_tags_and_notes_are_kept_shown_and_found(client: TestClient, run: Path) -> None:
    values = {"run": NAME, "tags": " base, lora,, base", "note": "<b>lower</b> rate\n"}
    assert client.post("/run/note", json=values).status_code == 200
    assert read_notes(run) == RunNotes(("base", "lora"), "<b>lower</b> rate")
    assert "&lt;b&gt;lower" in client.get("/run", params={"run": NAME}).text
    assert names(client, find="LORA rate") == [NAME]
    assert names(client, find="sums") == ["sums/first", "sums/second"]
    assert "No run fits" in client.get("/runs?find=nothing").text


@pytest.mark.parametrize("text", ["[]", "{", '{"tags": 3}', "\0"])
def test_a_damaged_file_of_notes_is_said_and_kept(client: TestClient, run: Path, text: str) -> None:
    file = run / ".studio/notes.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert "are damaged and not shown" in (read_notes(run).fault or "")
    assert "are damaged and not shown" in client.get("/run", params={"run": NAME}).text
    assert client.post("/run/note", json={"run": NAME, "tags": "base", "note": ""}).status_code == 200
    assert read_notes(run) == RunNotes(("base",))
    assert file.with_name("notes.json.damaged").read_text() == text


def test_the_list_is_sorted_and_filtered(client: TestClient, run: Path) -> None:
    assert names(client, status="interrupted") == [NAME]
    for order in ("newest", "name", "reward", "held-out", "step", "unknown"):
        assert len(names(client, sort=order)) == 2
    text = client.get("/runs/table?sort=step").text
    assert text.index("sums/first<") < text.index("sums/second<")


def test_an_archived_run_leaves_the_list_and_comes_back(client: TestClient, run: Path) -> None:
    for listed, archived in ((["sums/second"], [NAME]), (["sums/first", "sums/second"], [])):
        assert client.post("/run/archive", json={"run": NAME}).json() == {"location": "/runs"}
        assert (names(client), names(client, status="archived")) == (listed, archived)


def test_a_deleted_run_is_in_the_trash(
    client: TestClient, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "runs/.trash" in client.post("/run/delete", json={"run": NAME}).json()["question"]
    monkeypatch.setattr(run_actions, "state_of", lambda *_: "running")
    refused = client.post("/run/delete", json={"run": NAME, "confirmed": True})
    assert (refused.status_code, run.is_dir()) == (400, True)
    monkeypatch.setattr(run_actions, "state_of", run_view.state_of)
    assert client.post("/run/delete", json={"run": NAME, "confirmed": True}).status_code == 200
    (trashed,) = Path("runs/.trash").iterdir()
    assert trashed.name.startswith("sums--first-") and (trashed / "run.yaml").is_file()
    assert names(client) == ["sums/second"] and not run.exists()


def test_the_report_is_written_and_downloaded(client: TestClient, run: Path) -> None:
    assert client.get("/run/report", params={"run": NAME}).status_code == 400
    place = client.post("/run/write-report", json={"run": NAME}).json()["location"]
    answer = client.get(place)
    assert "Training reward" in answer.text and "attachment" in answer.headers["content-disposition"]


def test_further_processes_start_after_a_question(
    client: TestClient, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], str]] = []
    monkeypatch.setattr(run_actions, "start_process", lambda words, path, job: started.append((words, job)))
    for action in ("evaluate", "export"):
        assert "strop" in client.post(f"/run/{action}", json={"run": NAME}).json()["question"]
        client.post(f"/run/{action}", json={"run": NAME, "confirmed": True})
    assert started == [
        (["evaluate", "runs/sums/first"], "evaluate"),
        (["export", "runs/sums/first", "--to", "runs/sums/first/export"], "export"),
    ]


def test_resume_takes_changes(client: TestClient, run: Path) -> None:
    asked = client.post("/run/resume", json={"run": NAME, "change": "seed=2 trainer.optimizer.lr=1e-6"})
    assert "--change=seed=2 --change=trainer.optimizer.lr=1e-6" in json.dumps(asked.json())


def test_a_run_that_a_person_stopped_shows_no_error(client: TestClient, run: Path) -> None:
    assert 'class="message calm">Stopped by SIGTERM.' in client.get("/run", params={"run": NAME}).text


def test_the_style_sheet_is_not_escaped(client: TestClient) -> None:
    style = client.get("/static/studio.css").text
    assert "&#34;" not in style and ".u-legend" in style


@pytest.mark.slow
def test_a_conversation_with_the_model_of_a_run(client: TestClient, run: Path) -> None:
    def say(**values: Any) -> Any:
        return client.post("/run/say", json={"run": "sums/first", "message": "1+1="} | values)

    assert "strop chat runs/sums/first --json" in say(is_new=True).json()["question"]
    refused = say(is_new=True, confirmed=True)
    assert refused.status_code == 400 and "model" in refused.json()["error"]
    make_model(run / "model", ["1+1=2"], vocab_size=300, hidden_size=16)
    first, second = say(is_new=True, confirmed=True).json()["answer"], say().json()["answer"]
    assert isinstance(first, str) and isinstance(second, str)
    assert client.post("/run/end-chat", json={}).status_code == 200
    ended = say()
    assert ended.status_code == 400 and "has ended" in ended.json()["error"]
