"""Loading of valid and invalid model folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_model, load_tokenizer
from strop.models.packed_attention.forward import can_share_prompts
from strop.models.tiny import make_model
from tests.models.families import family_folder


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "good"
    return make_model(folder, ["one and one is two"], vocab_size=280, hidden_size=32)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def load(path: Path | str, **fields: object) -> torch.nn.Module:
    return load_model(ModelConfig.model_validate({"path": str(path), **fields}), device="cpu")


def test_weights_equal_the_files_and_have_their_own_storage(good: Path) -> None:
    model = load(good)
    assert can_share_prompts(model) == (True, "")
    saved = load_file(good / "model.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[name])
        assert parameter.requires_grad
        assert parameter.data_ptr() % 64 == 0
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"compute_dtype": "bfloat16"}, torch.float32),
        ({"compute_dtype": "bfloat16", "lora": {}}, torch.bfloat16),
    ],
)
def test_dtype_follows_what_is_trained(good: Path, fields: dict[str, object], dtype: torch.dtype) -> None:
    model = load(good, **fields)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize(
    ("family", "name"),
    [("mixtral", "mlp.gate"), ("glm4_moe", "mlp.gate"), ("llama4_text", "feed_forward.router")],
)
def test_frozen_routers(family: str, name: str, tmp_path: Path) -> None:
    model = load(family_folder(tmp_path, family), freeze_router=True)
    frozen = {key.rpartition(".")[0] for key, value in model.named_parameters() if not value.requires_grad}
    assert frozen and {key.split(".", 3)[3] for key in frozen} == {name}
    with pytest.raises(
        ModelError, match=r"model.freeze_router: .* is a qwen2 model, in which Strop finds no router"
    ):
        load(family_folder(tmp_path, "qwen2"), freeze_router=True)


def test_a_reference_is_frozen_and_in_the_compute_dtype(good: Path) -> None:
    section = ModelConfig(path=str(good), compute_dtype="bfloat16")
    reference = load_model(section, device="cpu", trainable=False)
    assert {(p.dtype, p.requires_grad) for p in reference.parameters()} == {(torch.bfloat16, False)}


def test_loading_is_quiet(good: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(good)
    load_tokenizer(ModelConfig(path=str(good)))
    assert capfd.readouterr() == ("", "")


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def without_a_layer(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_own_code(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('ran')")
    classes = {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    change_config(folder, model_type="own", auto_map=classes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "no JSON object"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "no JSON object"),
        (
            lambda folder: change_config(folder, num_attention_heads=0),
            "num_attention_heads: .* greater than 0",
        ),
        (
            lambda folder: change_config(folder, num_hidden_layers=10**9),
            "num_hidden_layers: .* less than or equal",
        ),
        (lambda folder: change_config(folder, eos_token_id="</s>"), "eos_token_id: .* got '</s>'"),
        (not_finite, "weights are not finite: model.norm.weight"),
        (lambda folder: (folder / "model.safetensors").unlink(), "there are no weights"),
        (pickled, "safetensors only"),
        (
            lambda folder: change_config(folder, quantization_config={"quant_method": "bitsandbytes"}),
            r"has quantized weights \(bitsandbytes\), of which no gradient is computed. Add model.lora",
        ),
        (cut, "no model could be loaded"),
        (lambda folder: change_config(folder, intermediate_size=40), "down_proj"),
        (without_a_layer, r"layers\.1\.mlp\.up_proj"),
        (with_own_code, "trust_remote_code"),
        *(
            # Its stop tokens may differ from those of config.json.
            (
                lambda folder, text=text: (folder / "generation_config.json").write_text(text),
                r"generation_config\.json cannot be read, or is no JSON object",
            )
            for text in ("", '{"eos_token_id": 2', "[2]")
        ),
    ],
)
def test_damaged_folders_are_refused(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_missing_folders_and_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    missing = ModelConfig(path=str(tmp_path / "nothing"))
    for call in (load_tokenizer, lambda section: load_model(section, device="cpu")):
        with pytest.raises(ModelError, match="there is no folder"):
            call(missing)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(ModelError, match="no tokenizer could be loaded"):
        load_tokenizer(ModelConfig(path=str(folder)))


def test_a_tokenizer_from_another_folder(good: Path, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    tokenizer = load_tokenizer(ModelConfig(path=str(folder), tokenizer=str(good)))
    assert tokenizer.decode(tokenizer.encode("one and two")) == "one and two"


def test_gradient_checkpointing_is_enabled(good: Path) -> None:
    assert load(good, gradient_checkpointing=True).is_gradient_checkpointing
    assert not load(good).is_gradient_checkpointing


def test_values_of_the_config_are_overridden(good: Path) -> None:
    model = load(good, override={"attention_dropout": 0.25, "rope_parameters": {"rope_theta": 77.0}})
    assert model.config.attention_dropout == 0.25
    assert model.config.rope_parameters["rope_theta"] == 77.0
    assert model.config.rope_parameters["rope_type"] == "default"
    assert can_share_prompts(model)[0] is False, "the dropout reached the model"
    with pytest.raises(ModelError, match=r"model\.override\.atention_dropout: .* did you mean 'attention_d"):
        load(good, override={"atention_dropout": 0.1})
    with pytest.raises(ModelError, match="do not fit its config"):
        load(good, override={"hidden_size": 64, "head_dim": 16})


def test_modules_are_imported_before_the_model(good: Path, tmp_path: Path) -> None:
    library = tmp_path / "registers.py"
    library.write_text("import transformers\ntransformers.strop_was_here = __file__\n")
    load_tokenizer(ModelConfig(path=str(good), imports=(str(library),)))
    import transformers

    assert transformers.strop_was_here == str(library)  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=r"model\.imports 'no_such_package': there is no module"):
        load(good, imports=["no_such_package"])


def test_home_folders(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(good.parent))
    assert load_tokenizer(ModelConfig(path="~/good")).eos_token
    load("~/good")
