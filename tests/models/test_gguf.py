"""Models in GGUF files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from strop.config.load.loader import load_values
from strop.config.paths import gguf_file
from strop.config.preflight import missing_files
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.fingerprint import model_fingerprint
from strop.models.formats import gguf as gguf_format
from strop.models.loading import load_config, load_generation_config, load_model, load_tokenizer
from strop.models.tiny import make_model
from strop.models.vision.model_images import ModelImages
from strop.plan.memory import read_model_size

from .gguf_files import write_gguf

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")


@needs_gguf
def test_a_gguf_file_is_the_model_that_it_was_written_from(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_model(tmp_path / "model", ["one and one is two"], vocab_size=280, hidden_size=32)
    (tmp_path / "gguf").mkdir()
    write_gguf(folder, tmp_path / "gguf" / "tiny.gguf")
    assert read_model_size(str(tmp_path / "gguf")) == read_model_size(str(folder))
    original = load_model(ModelConfig(path=str(folder)), device="cpu")
    for path in (tmp_path / "gguf" / "tiny.gguf", tmp_path / "gguf"):
        section = ModelConfig(path=str(path))
        model = load_model(section, device="cpu")
        expected = dict(original.named_parameters())
        assert all(torch.equal(value, expected[name]) for name, value in model.named_parameters())
        assert all(value.requires_grad for value in model.parameters())
        assert load_generation_config(section) is None
    assert capfd.readouterr().err == "", "no progress bar in a log"
    ModelImages(section, ImagesConfig()).copy_files(tmp_path)
    tokenizer = load_tokenizer(section)
    assert tokenizer.eos_token == "<|end|>"
    messages = [{"role": "user", "content": "one and 2"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False).startswith("<|user|>\none and 2<|end|>")


@needs_gguf
def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    section = ModelConfig(path=str(tmp_path / "gguf" / "tiny.gguf"))
    (tmp_path / "gguf").mkdir()
    sizes = []
    for hidden in (32, 64):
        folder = make_model(
            tmp_path / f"m{hidden}", ["one and one is two"], vocab_size=280, hidden_size=hidden
        )
        write_gguf(folder, Path(section.path))
        load_config(section).hidden_size = 7  # a caller's copy
        sizes.append(load_config(section).hidden_size)
    assert sizes == [32, 64]


@needs_gguf
@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9], ids=["empty", "header", "metadata", "weights"])
def test_a_file_that_is_cut_is_refused(tmp_path: Path, part: float) -> None:
    folder = make_model(tmp_path / "model", ["one and one is two"], vocab_size=280, hidden_size=32)
    file = tmp_path / "cut.gguf"
    write_gguf(folder, file)
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(ModelError, match=r"model\.path") as caught:
        load_model(ModelConfig(path=str(file)), device="cpu")
    assert "\n" not in str(caught.value)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_format, "find_spec", lambda name: None)
    monkeypatch.setattr("strop.config.preflight.find_spec", lambda name: None)
    for load in (load_config, load_tokenizer):
        with pytest.raises(ModelError, match=r"pip install 'strop\[gguf\]'"):
            load(ModelConfig(path=str(file)))
    values = {"model": {"path": str(file)}, "data": {"train": {"path": "owner/data"}}, "reward": "exact"}
    (fault,) = missing_files(load_values({**values, "output": str(tmp_path)}))
    assert "model.path: reading" in fault and "strop[gguf]" in fault


def test_which_file_a_path_names(tmp_path: Path) -> None:
    assert gguf_file(str(tmp_path)) is None
    (tmp_path / "a.gguf").write_bytes(b"a")
    assert gguf_file(str(tmp_path)) == gguf_file(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    first = model_fingerprint(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"b")
    assert first.startswith("contents ") and model_fingerprint(str(tmp_path)) != first
    (tmp_path / "b.gguf").write_bytes(b"b")
    with pytest.raises(ModelError, match="holds 2 GGUF files"):
        load_config(ModelConfig(path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert gguf_file(str(tmp_path)) is None
