"""The page that composes a configuration: answers, faults, plan, conversion, files and start."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ruamel.yaml", reason="comes with strop[studio]")

import yaml
from starlette.testclient import TestClient

from strop.models.tiny import make_model

TEXT = """\
# Sums.
project: sums
name: first
model: {path: ./m}
data:
  train: {path: train.jsonl}  # one task per row
  eval: [{name: held-out, path: train.jsonl}]
  max_prompt_tokens: 16
  max_response_tokens: 4
  chat_template: none
reward: exact
trainer: {duration: 2 steps, tasks_per_step: 2}
"""


@pytest.fixture
def files(client: TestClient) -> None:
    """A data file, and a model folder that has what checks and plans look at."""
    config = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 300}
    header = json.dumps({"w": {"dtype": "F32", "shape": [300, 16], "data_offsets": [0, 19200]}}).encode()
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    Path("m/tokenizer.json").write_text("{}")
    Path("m/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    Path("train.jsonl").write_text('{"prompt": "1+1=", "answer": "2", "other": 3}\n' * 8)


def ask(client: TestClient, what: str, text: str = TEXT, **values: Any) -> Any:
    body = {"text": text, "name": "run.yaml", "mode": "beginner", "dialect": "strop"} | values
    return client.post(f"/compose/{what}", json=body)


def test_new_page_lists_what_a_run_needs(client: TestClient) -> None:
    page = client.get("/compose").text
    for part in ("model.path: empty; write a value", "data.train.path: empty", "reward: empty", "3 faults"):
        assert part in page


def test_answers_change_the_text_and_keep_its_comments(client: TestClient, files: None) -> None:
    answer = ask(client, "set", key="model.lora.rank", value="8").json()
    assert answer["faults"] == [] and answer["loads"]
    assert answer["values"]["model.lora.rank"] == "8"
    assert "# one task per row" in answer["text"]
    back = ask(client, "set", answer["text"], key="model.lora.rank", value="").json()
    assert back["text"] == TEXT


def test_columns_of_the_training_data_are_those_of_the_held_out_data(client: TestClient, files: None) -> None:
    text = ask(client, "set", key="data.train.prompt", value="question").json()["text"]
    data = yaml.safe_load(text)["data"]
    assert data["train"]["prompt"] == data["eval"][0]["prompt"] == "question"
    expert = ask(client, "set", key="data.train.prompt", value="question", mode="expert").json()["text"]
    assert "prompt" not in yaml.safe_load(expert)["data"]["eval"][0]


def test_faults_stand_at_their_fields(client: TestClient, files: None) -> None:
    answer = ask(client, "set", key="trainer.tasks_per_step", value="many").json()
    (fault,) = answer["faults"]
    assert (fault["key"], fault["line"]) == ("trainer.tasks_per_step", 12)
    assert not answer["loads"]


def test_form_is_sent_only_where_its_fields_change(client: TestClient, files: None) -> None:
    first = ask(client, "check", mode="expert").json()
    assert 'data-key="algorithm.rollouts_per_task"' in first["form"]
    same = ask(client, "set", mode="expert", structure=first["structure"], key="seed", value="2").json()
    assert "form" not in same
    other = ask(
        client, "set", mode="expert", structure=first["structure"], key="algorithm.type", value="sft"
    ).json()
    assert 'data-key="algorithm.rollouts_per_task"' not in other["form"]


def test_differences_from_the_defaults(client: TestClient, files: None) -> None:
    differences = ask(client, "check").json()["differences"]
    assert "trainer.duration" in differences and "data.train.prompt" not in differences


def test_plan_has_memory_tokens_and_a_summary(client: TestClient, files: None) -> None:
    plan = ask(client, "plan").text
    assert (
        "Memory on" in plan and "Tokens per step: at most 64 sampled" in plan and "Memory at the peak" in plan
    )
    assert "has no plan" in ask(client, "plan", "seed: x").text


def test_run_file_becomes_trinity_yaml_and_back(client: TestClient, files: None) -> None:
    answer = ask(client, "convert", to="trinity").json()
    values = yaml.safe_load(answer["text"])
    assert values["model"]["model_path"] == "./m" and values["algorithm"]["algorithm_type"] == "grpo"
    checked = ask(client, "check", answer["text"], dialect="trinity").json()
    assert checked["faults"] == [] and checked["values"]["model.model_path"] == "./m"
    back = ask(client, "convert", answer["text"], dialect="trinity", to="strop").json()
    assert yaml.safe_load(back["text"])["model"]["path"] == "./m"
    faulty = ask(client, "convert", "seed: x", to="trinity")
    assert faulty.status_code == 400 and "is not converted" in faulty.json()["error"]


def test_file_is_opened_changed_and_saved_with_its_comments(client: TestClient, files: None) -> None:
    Path("mine.yaml").write_text(TEXT)
    page = client.get("/compose?file=mine.yaml").text
    known = page.partition('data-known="')[2].partition('"')[0]
    text = ask(client, "set", key="trainer.optimizer.lr", value="1e-5").json()["text"]
    saved = ask(client, "save", text, name="mine.yaml", known=known)
    assert saved.status_code == 200
    assert Path("mine.yaml").read_text() == TEXT.replace(
        "tasks_per_step: 2}", "tasks_per_step: 2, optimizer: {lr: 1e-5}}"
    )
    Path("mine.yaml").write_text("changed: elsewhere\n")
    refused = ask(client, "save", text, name="mine.yaml", known=saved.json()["known"])
    assert refused.status_code == 400 and "has changed since it was opened" in refused.json()["error"]
    assert Path("mine.yaml").read_text() == "changed: elsewhere\n"


def test_existing_file_is_not_replaced_by_a_new_one(client: TestClient, files: None) -> None:
    Path("run.yaml").write_text("mine\n")
    assert "exists. Save under another name" in ask(client, "save").json()["error"]
    assert "not the name of a YAML file" in ask(client, "save", name="run.py").json()["error"]
    assert 'data-name="run2.yaml"' in client.get("/compose").text


def test_files_of_other_tools_are_refused_with_the_command(client: TestClient) -> None:
    Path("verl.yaml").write_text("actor_rollout_ref: {actor: {}}\n")
    page = client.get("/compose?file=verl.yaml")
    assert page.status_code == 400 and "strop convert verl.yaml --output run.yaml" in page.text


def test_suggestions(client: TestClient, files: None) -> None:
    def suggested(kind: str) -> list[str]:
        found: list[str] = ask(client, "suggestions", kind=kind).json()["suggestions"]
        return found

    assert suggested("column") == ["prompt", "answer", "other"]
    assert suggested("model") == ["m"]
    assert "train.jsonl" in suggested("data")
    assert "gsm8k" in suggested("reward")


def test_text_with_faults_is_not_started(client: TestClient, files: None) -> None:
    refused = ask(client, "start", TEXT.replace("./m", "./nowhere"))
    assert refused.status_code == 400 and "nowhere" in refused.json()["error"]
    assert not Path("run.yaml").exists() and not Path("runs").exists()


@pytest.mark.slow
def test_check_start_and_log(client: TestClient, files: None) -> None:
    shutil.rmtree("m")
    make_model(Path("m"), ["1+1=2"], vocab_size=300, hidden_size=16)
    checked = ask(client, "complete-check").json()["html"]
    assert "The run can start" in checked and "train: 8 rows" in checked
    answer = ask(client, "start").json()
    assert answer["location"] == "/run?run=sums%2Ffirst" and Path("run.yaml").read_text() == TEXT
    again = ask(client, "start", known=answer["known"])
    assert again.status_code == 400 and "runs already" in again.json()["error"]
    deadline = time.monotonic() + 900
    while "finished" not in (page := client.get(answer["location"]).text) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert "Step 2 of 2" in page
    assert "Finished 2 steps" in client.get("/run/logs?run=sums/first").text
    process = json.loads(Path("runs/sums/first/.studio/process.json").read_text())
    assert process["arguments"] == ["train", "run.yaml"]


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b'"text"'])
def test_body_that_is_no_json_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/compose/check", content=body)
    assert answer.status_code == 400
    assert answer.json() == {"error": "The body of the request is not a JSON object; write one."}
