"""Export of Hugging Face folders: the loaded model has the same logits."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.config.schema.model import LoraConfig, ModelConfig
from strop.errors import ModelError
from strop.models.formats.huggingface import ADAPTER_FOLDER, export_model
from strop.models.loading import load_model, load_tokenizer
from strop.models.lora import add_lora, merged_weights
from strop.models.shared_weights import fuse_storage
from strop.models.tiny import make_model

TOKENS = torch.tensor([[5, 9, 30, 7, 11]])


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tmp_path_factory.mktemp("model") / "model"
    return ModelConfig(path=str(make_model(folder, ["one and one is two"], vocab_size=280, hidden_size=32)))


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(TOKENS, use_cache=False).logits


def hugging_face(section: ModelConfig, weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    """A model of the section's configuration with these weights."""
    model = AutoModelForCausalLM.from_pretrained(section.path)
    model.load_state_dict(weights, strict=False)
    return model


def change(model: nn.Module) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)


@pytest.mark.parametrize("fused", [False, True])
def test_a_full_model(
    section: ModelConfig, tmp_path: Path, fused: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load_model(section, device="cpu")
    if fused:
        fuse_storage(model)
    change(model)
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    expected = logits(hugging_face(section, dict(merged_weights(model))))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), expected)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == load_tokenizer(section).chat_template


def test_an_adapter_and_its_merged_model(section: ModelConfig, tmp_path: Path) -> None:
    model = add_lora(load_model(section, device="cpu"), LoraConfig(rank=4), torch.float32)
    change(model)
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out")
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    base = AutoModelForCausalLM.from_pretrained(section.path)
    before = logits(copy.deepcopy(base))
    adapted = PeftModel.from_pretrained(base, tmp_path / "out" / ADAPTER_FOLDER)
    torch.testing.assert_close(logits(adapted), merged, atol=1e-5, rtol=1e-5)
    assert (merged - before).abs().max() > 1e-3
    names = {path.name for path in (tmp_path / "out" / ADAPTER_FOLDER).iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}


DTYPES = {
    # data type of the base's files, of the computation, of `export.dtype` -> of the export
    ("float32", "bfloat16", None): "float32",
    ("float32", None, None): "float32",
    ("float16", "bfloat16", None): "float16",
    ("bfloat16", "bfloat16", None): "bfloat16",
    ("bfloat16", None, None): "bfloat16",
    ("float32", "bfloat16", "bfloat16"): "bfloat16",
    ("bfloat16", "bfloat16", "float32"): "float32",
}


@pytest.mark.parametrize(("stored", "computed", "asked"), DTYPES)
def test_a_merged_model_has_the_dtype_of_the_base(
    section: ModelConfig, tmp_path: Path, stored: str, computed: str | None, asked: str | None
) -> None:
    base = AutoModelForCausalLM.from_pretrained(section.path, dtype=getattr(torch, stored))
    base.save_pretrained(tmp_path / "base")
    lora = LoraConfig(rank=4)
    run = ModelConfig(path=str(tmp_path / "base"), compute_dtype=computed, lora=lora)
    model = add_lora(load_model(run, device="cpu"), lora, torch.float32)
    change(model)
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out", base=run, dtype=asked)

    expected = getattr(torch, DTYPES[stored, computed, asked])
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {expected}
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == expected
    merged = PeftModel.from_pretrained(base.float(), tmp_path / "out" / ADAPTER_FOLDER).merge_and_unload()
    exact = merged.state_dict()
    for name, tensor in exported.items():
        torch.testing.assert_close(
            tensor, exact[name].to(expected), atol=1e-6, rtol=0.008 if expected != torch.float32 else 1e-6
        )


def test_tensors_of_a_mixed_base_keep_their_dtypes(section: ModelConfig, tmp_path: Path) -> None:
    weights = load_file(Path(section.path) / "model.safetensors")
    mixed = {name: tensor if "norm" in name else tensor.bfloat16() for name, tensor in weights.items()}
    shutil.copytree(section.path, tmp_path / "base")
    save_file(mixed, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    lora = LoraConfig(rank=4)
    run = ModelConfig(path=str(tmp_path / "base"), compute_dtype="bfloat16", lora=lora)
    model = add_lora(load_model(run, device="cpu"), lora, torch.float32)
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out", base=run)
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in exported.items()} == {n: t.dtype for n, t in mixed.items()}
    assert all(exported[name].equal(mixed[name]) for name in mixed), "a new adapter changes nothing"


def test_an_export_of_trained_weights_in_another_dtype(section: ModelConfig, tmp_path: Path) -> None:
    model = load_model(section, device="cpu")
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out", dtype="float16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float16


def test_an_export_replaces_an_older_one(section: ModelConfig, tmp_path: Path) -> None:
    model = load_model(section, device="cpu")
    (tmp_path / "out").mkdir()
    for name in ("config.json", "stale"):
        (tmp_path / "out" / name).touch()
    export_model(model, load_tokenizer(section).save_pretrained, tmp_path / "out")
    assert not (tmp_path / "out" / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_export_without_permission_is_an_error(section: ModelConfig, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ModelError, match="could not be exported"):
        export_model(
            load_model(section, device="cpu"), load_tokenizer(section).save_pretrained, tmp_path / "out"
        )


def test_a_file_in_place_of_the_folder_is_an_error(section: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="could not be exported"):
        export_model(
            load_model(section, device="cpu"),
            load_tokenizer(section).save_pretrained,
            tmp_path / "file" / "out",
        )
