"""Export of MLflow models, loaded with MLflow's own code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.compat.azureml.component import find_model
from strop.errors import MissingExtraError, ModelError
from strop.models.formats import mlflow as mlflow_folder
from strop.models.formats.mlflow import write_mlflow
from strop.models.tiny import make_model

QUESTION = {"messages": [{"role": "user", "content": "How many are two and three?"}]}


@pytest.fixture(scope="module")
def mlflow() -> Any:
    """MLflow, whose import takes seconds."""
    import mlflow

    return mlflow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("plain") / "m", ["two and three"], vocab_size=300).parent / "m"


@pytest.fixture(scope="module")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow")
    write_mlflow(model, folder, max_new_tokens=4)
    return folder


def test_mlflow_loads_the_same_weights(mlflow: Any, model: Path, written: Path) -> None:
    pipeline = mlflow.transformers.load_model(str(written))
    assert pipeline.task == "text-generation" and pipeline.tokenizer.chat_template
    ids = torch.arange(8)[None]
    with torch.no_grad():
        found = pipeline.model(ids).logits
        assert torch.equal(found, AutoModelForCausalLM.from_pretrained(model)(ids).logits)


def test_pyfunc_responds_to_messages(mlflow: Any, written: Path) -> None:
    (answer,) = mlflow.pyfunc.load_model(str(written)).predict(QUESTION)
    choice = answer["choices"][0]["message"]
    assert choice["role"] == "assistant" and isinstance(choice["content"], str)
    assert answer["usage"]["completion_tokens"] <= 4


def test_an_mlflow_model_is_a_model_input(written: Path, tmp_path: Path) -> None:
    parts = (Path("model"), Path("components/tokenizer"))
    assert find_model(written) == tuple(written / part for part in parts)
    inside = tmp_path / "import" / "Qwen2"
    shutil.copytree(written, inside)
    (tmp_path / "import" / "model_selector_args.json").write_text("{}")
    assert find_model(tmp_path / "import") == tuple(inside / part for part in parts)


def test_an_export_replaces_an_older_one(model: Path, written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(written, folder)
    (folder / "model" / "model-00002-of-00002.safetensors").touch()
    (folder / "notes.txt").write_text("kept")
    write_mlflow(model, folder, max_new_tokens=4)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    first = {path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file()}
    assert names == first | {"notes.txt"}
    assert "+" not in (folder / "requirements.txt").read_text()


def test_without_a_chat_template_it_takes_text(mlflow: Any, model: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(model, plain)
    (plain / "chat_template.jinja").unlink()
    folder = tmp_path / "text"
    folder.mkdir()
    write_mlflow(plain, folder, max_new_tokens=4)
    (answer,) = mlflow.pyfunc.load_model(str(folder)).predict("two and")
    assert answer.startswith("two and")


def test_errors_of_an_export(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="could not be written to"):
        write_mlflow(model, tmp_path / "file", max_new_tokens=4)
    monkeypatch.setattr(mlflow_folder, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'strop\[mlflow\]'"):
        write_mlflow(model, tmp_path, max_new_tokens=4)
