"""The model card of an exported model, and its upload to a fake of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub.errors import HFValidationError

from strop.errors import ModelError
from strop.run.entry import export
from strop.runs.model_card import model_card
from strop.runs.reader import read_run
from tests.report.run_folders import metrics, open_recorder


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    with open_recorder(folder) as record:
        record.log_step(0, {"eval/sums/reward": 0.25})
        for step in range(1, 41):
            evaluated = {"eval/sums/reward": step / 100} if step % 2 == 0 else {}
            record.log_step(step, {**metrics(step), **evaluated})
    _, header, text = model_card(read_run(folder)).split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_card_says_what_was_trained_how_and_with_which_result(tmp_path: Path) -> None:
    header, text = card_of(tmp_path)
    (entry,) = header.pop("model-index")
    (result,) = entry["results"]
    assert (result["dataset"]["name"], result["metrics"]) == ("sums", [{"type": "reward", "value": 0.4}])
    assert header == {"library_name": "transformers", "tags": ["strop", "grpo"]}
    for words in ("model, trained by GRPO with Strop", "Data: tasks.jsonl", "Length: 10 steps", "torch "):
        assert words in text, words
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[0] == "| step | eval/sums/reward | reward/mean | response_tokens/mean |"
    assert table[2].startswith("| 0 | 0.250 |") and len(table) <= 2 + 12
    assert "hunter2" not in text
    file = tmp_path / "run.yaml"
    file.write_text(file.read_text().replace("path: model\n", "path: owner/base\n", 1))
    assert "base_model: owner/base" in model_card(read_run(tmp_path)), "a base model of the Hub"


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: apache-2.0\n---\n# base\n", {"license": "apache-2.0"}),
        (
            "---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n",
            {"license": "other", "license_name": "own", "license_link": "LICENSE"},
        ),
        ("# no header\n", {}),
        ("---\nlicense: [a, b]\n---\n", {}),
        ("---\n- a list\n---\n", {}),
        ("---\nlicense: {a\n---\n", {}),
    ],
)
def test_the_card_has_the_license_of_the_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: str, license: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/README.md").write_text(card)
    header, _ = card_of(tmp_path / "run")
    assert {key: value for key, value in header.items() if key.startswith("license")} == license


class FakeHub:
    """Stands for `HfApi`: repositories are folders in memory."""

    repositories: dict[str, dict[str, str]]

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if "/" not in name:
            raise HFValidationError(f"Repo id must be in the form 'namespace/repo_name': {name!r}.")
        self.repositories.setdefault(name, {})
        return f"https://hub.invalid/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        self.repositories[repo_id] |= {file.name: file.read_text() for file in folder_path.iterdir()}


def test_an_upload_to_a_fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHub, "repositories", {}, raising=False)
    monkeypatch.setattr(export, "HfApi", FakeHub)
    (tmp_path / "README.md").write_text("card")
    assert export.push_to_hub(tmp_path, "org/name", private=True) == "https://hub.invalid/org/name"
    assert FakeHub.repositories == {"org/name": {"README.md": "card"}}
    fault = r"could not be uploaded as name: Repo id.*The export itself is complete"
    with pytest.raises(ModelError, match=fault):
        export.push_to_hub(tmp_path, "name", private=False)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CAS service error: reset.\nmore"),
        ConnectionResetError(104, "reset"),
        ValueError("x"),
        KeyError("url"),
        TypeError("list indices must be integers"),
        AttributeError("'list' object has no attribute 'get'"),
        RecursionError("maximum recursion depth exceeded"),
    ],
    ids=repr,
)
def test_an_upload_that_fails_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def upload_folder(self: FakeHub, **_: object) -> None:
        raise error

    def create_repo(self: FakeHub, name: str, **_: object) -> str:
        raise error

    monkeypatch.setattr(FakeHub, "repositories", {}, raising=False)
    monkeypatch.setattr(FakeHub, "upload_folder", upload_folder)
    monkeypatch.setattr(export, "HfApi", FakeHub)
    said = r"to https://hub\.invalid/org/name failed: .*has no part of the model.*`hf upload org/name "
    with pytest.raises(ModelError, match=said) as caught:
        export.push_to_hub(tmp_path, "org/name", private=True)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(FakeHub, "create_repo", create_repo)
    with pytest.raises(
        ModelError, match=r"could not be uploaded as org/name: .*The export itself is complete"
    ):
        export.push_to_hub(tmp_path, "org/name", private=True)
