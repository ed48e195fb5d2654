"""The page that composes a configuration: answers, faults, plan, conversion, files and start."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from strop.models.tiny import make_model
from strop.studio.processes import started_process
from tests.plan.headers import write_header

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
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 300}
    write_header(Path("m"), [300, 16], **sizes)
    Path("m/tokenizer.json").write_text("{}")
    Path("train.jsonl").write_text('{"prompt": "1+1=", "answer": "2", "other": 3}\n' * 8)


pytestmark = pytest.mark.usefixtures("files")


def ask(client: TestClient, what: str, text: str = TEXT, **values: Any) -> Any:
    body = {"text": text, "name": "run.yaml", "mode": "beginner", "dialect": "strop"} | values
    return client.post(f"/compose/{what}", json=body)


@pytest.mark.parametrize(
    ("what", "values", "fault"),
    [
        ("convert", {"text": "seed: x", "to": "trinity"}, "is not converted"),
        ("save", {"name": "mine.yaml"}, "exists. Save under another name"),
        ("save", {"name": "run.py"}, "not the name of a YAML file"),
        ("start", {"text": TEXT.replace("./m", "./nowhere")}, "nowhere"),
    ],
)
def test_a_request_is_refused(client: TestClient, what: str, values: dict[str, str], fault: str) -> None:
    Path("mine.yaml").write_text("mine\n")
    refused = ask(client, what, **values)
    assert refused.status_code == 400 and fault in refused.json()["error"]
    assert Path("mine.yaml").read_text() == "mine\n"
    assert not Path("run.yaml").exists() and not Path("runs").exists()


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b'"text"', b'{"text": "\\ud800"}'])
def test_a_body_that_is_no_json_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/compose/check", content=body)
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "The body of the request is not a JSON object of Unicode text; write one."
    }


def test_texts_of_any_kind_are_answered(client: TestClient) -> None:
    escape = ask(client, "check", 'data: {train: {path: "\\uD800"}}\n')
    assert escape.status_code == 200 and escape.json()["values"]["data.train.path"] == "\ud800"
    for deep in ("- " * 50_000, "{" * 50_000):
        refused = ask(client, "set", deep, key="seed", value="1")
        assert refused.status_code == 400 and "nested too deeply" in refused.json()["error"]


def test_scripts_are_not_run(client: TestClient) -> None:
    """The text is a run file's mapping and a Python script, which imports trl."""
    text = "if True: import trl\nif 1: open('executed', 'w')\n"
    Path("train.py").write_text(text)
    for answer in (ask(client, "check", text, name="train.py"), client.get("/compose?file=train.py")):
        assert answer.status_code == 400 and not Path("executed").exists()
        assert "train.py is a Python script, and Studio edits configurations" in answer.text
        assert "strop convert train.py --output run.yaml" in answer.text


def test_answers_change_the_text_and_keep_its_comments(client: TestClient) -> None:
    answer = ask(client, "set", key="model.lora.rank", value="8").json()
    assert answer["faults"] == [] and answer["loads"]
    assert answer["values"]["model.lora.rank"] == "8"
    assert "# one task per row" in answer["text"]
    back = ask(client, "set", answer["text"], key="model.lora.rank", value="").json()
    assert back["text"] == TEXT


def test_columns_of_the_training_data_are_those_of_the_held_out_data(client: TestClient) -> None:
    set_prompt = {"key": "data.train.prompt", "value": "question"}
    data = yaml.safe_load(ask(client, "set", **set_prompt).json()["text"])["data"]
    assert data["train"]["prompt"] == data["eval"][0]["prompt"] == "question"
    expert = ask(client, "set", **set_prompt, mode="expert").json()["text"]
    assert "prompt" not in yaml.safe_load(expert)["data"]["eval"][0]


def test_held_out_data_gets_the_columns_of_the_training_data(client: TestClient) -> None:
    train = "{path: train.jsonl, prompt: question, answer: 'yes'}"
    text = f"data:\n  train: {train}\n"
    added = ask(client, "set", text, key="data.eval.0.path", value="train.jsonl").json()["text"]
    assert yaml.safe_load(added)["data"]["eval"] == [yaml.safe_load(train)]
    other = ask(client, "set", added, key="data.eval.0.path", value="other.jsonl").json()["text"]
    assert yaml.safe_load(other)["data"]["eval"] == [yaml.safe_load(train) | {"path": "other.jsonl"}]
    removed = ask(client, "set", other, key="data.eval.0.path", value="").json()["text"]
    assert yaml.safe_load(removed) == yaml.safe_load(text)


def test_an_answer_that_was_not_given_is_no_fault(client: TestClient) -> None:
    page = client.get("/compose").text
    assert "3 answers are missing" in page and "verdict bad" not in page
    answer = ask(client, "set", "reward: ''\nseed: 1\n", key="seed", value="x").json()
    assert {fault["key"]: fault["is_unanswered"] for fault in answer["faults"]}["reward"]
    assert "1 answer is missing" not in answer["status"] and "verdict bad" in answer["status"]


def test_completions(client: TestClient) -> None:
    def labels(before: str, after: str = "", **values: str) -> list[str]:
        answer = ask(client, "completions", before=before, after=after, **values).json()
        return [option["label"] for option in answer["options"]]

    assert "optimizer" in labels("seed: 1\ntrainer:\n  op", "\nreward: exact\n")
    assert labels("data:\n  train:\n    path: tr", "\n") == ["train.jsonl"]
    assert labels("data: {train: {path: train.jsonl, answer: ", "}}\n") == ["prompt", "answer", "other"]
    assert "beta" in labels("algorithm: {type: dpo, b", "}\n")
    assert "model_path" in labels("model:\n  ", dialect="trinity")
    assert labels("# a comm") == [] == labels("data: [}")


def test_faults_stand_at_their_fields(client: TestClient) -> None:
    answer = ask(client, "set", key="trainer.tasks_per_step", value="many").json()
    (fault,) = answer["faults"]
    assert (fault["key"], fault["line"]) == ("trainer.tasks_per_step", 12)
    assert not answer["loads"]


def test_the_form_is_sent_only_where_its_fields_change(client: TestClient) -> None:
    first = ask(client, "check", mode="expert").json()
    assert 'data-key="algorithm.rollouts_per_task"' in first["form"]
    known = {"mode": "expert", "structure": first["structure"]}
    assert "form" not in ask(client, "set", **known, key="seed", value="2").json()
    other = ask(client, "set", **known, key="algorithm.type", value="sft").json()
    assert 'data-key="algorithm.rollouts_per_task"' not in other["form"]


def test_differences_from_the_defaults_and_a_plan(client: TestClient) -> None:
    differences = ask(client, "check").json()["differences"]
    assert "trainer.duration" in differences and "data.train.prompt" not in differences
    plan = ask(client, "plan").text
    assert "Memory on" in plan and "Tokens per step: at most 64 sampled" in plan
    assert "Memory at the peak" in plan and "has no plan" in ask(client, "plan", "seed: x").text


def test_a_run_file_becomes_trinity_yaml_and_back(client: TestClient) -> None:
    answer = ask(client, "convert", to="trinity").json()
    values = yaml.safe_load(answer["text"])
    assert values["model"]["model_path"] == "./m" and values["algorithm"]["algorithm_type"] == "grpo"
    checked = ask(client, "check", answer["text"], dialect="trinity").json()
    assert checked["faults"] == [] and checked["values"]["model.model_path"] == "./m"
    back = ask(client, "convert", answer["text"], dialect="trinity", to="strop").json()
    assert yaml.safe_load(back["text"])["model"]["path"] == "./m"


def test_a_file_is_opened_changed_and_saved_with_its_comments(client: TestClient) -> None:
    file = Path("mine.yaml")
    file.write_text(TEXT)
    page = client.get("/compose?file=mine.yaml").text
    known = page.partition('data-known="')[2].partition('"')[0]
    text = ask(client, "set", key="trainer.optimizer.lr", value="1e-5").json()["text"]
    saved = ask(client, "save", text, name="mine.yaml", known=known)
    assert saved.status_code == 200
    assert file.read_text() == TEXT.replace("step: 2}", "step: 2, optimizer: {lr: 1e-5}}")
    file.write_text("changed: elsewhere\n")
    refused = ask(client, "save", text, name="mine.yaml", known=saved.json()["known"])
    assert refused.status_code == 400 and "has changed since it was opened" in refused.json()["error"]
    assert file.read_text() == "changed: elsewhere\n"
    Path("run.yaml").touch()
    assert 'data-name="run2.yaml"' in client.get("/compose").text
    Path("verl.yaml").write_text("actor_rollout_ref: {actor: {}}\n")
    other = client.get("/compose?file=verl.yaml")
    assert other.status_code == 400 and "strop convert verl.yaml --output run.yaml" in other.text


@pytest.mark.parametrize(
    ("kind", "suggested"),
    [
        ("column", ["prompt", "answer", "other"]),
        ("model", ["m"]),
        ("data", ["train.jsonl"]),
        ("reward", ["gsm8k"]),
    ],
)
def test_suggestions(client: TestClient, kind: str, suggested: list[str]) -> None:
    found = ask(client, "suggestions", kind=kind).json()["suggestions"]
    assert set(suggested) <= set(found) and (kind not in ("column", "model") or found == suggested)


def test_models_and_data_of_earlier_runs_are_suggested_and_tokenizers_are_not(
    client: TestClient, run: Path
) -> None:
    Path("tokenizer").mkdir()
    for name in ("config.json", "tokenizer.json"):
        Path("tokenizer", name).write_text("{}")
    shutil.copytree("m", run / "model")
    models = ask(client, "suggestions", kind="model").json()["suggestions"]
    assert models == ["m", "runs/sums/first/model", "model"]  # the last one is what the run began with
    data = ask(client, "suggestions", kind="data").json()["suggestions"]
    assert {"train.jsonl", "tasks.jsonl"} <= set(data)


@pytest.mark.slow
def test_check_start_and_log(client: TestClient) -> None:
    shutil.rmtree("m")
    make_model(Path("m"), ["1+1=2"], vocab_size=300, hidden_size=16)
    checked = ask(client, "complete-check").json()["html"]
    assert "The run can start" in checked and "train: 8 rows" in checked
    answer = ask(client, "start").json()
    assert answer["location"] == "/run?run=sums%2Ffirst" and Path("run.yaml").read_text() == TEXT
    again = ask(client, "start", known=answer["known"])
    assert again.status_code == 400 and "runs already" in again.json()["error"]
    while "finished" not in (page := client.get(answer["location"]).text):
        assert 'id="state">failed<' not in page
        time.sleep(0.5)
    assert "Step 2 of 2" in page
    assert "Finished 2 steps" in client.get("/run/logs?run=sums/first").text
    process = started_process(Path("runs/sums/first"))
    assert process is not None and process.arguments == ("train", "run.yaml")
