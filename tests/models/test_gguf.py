"""Models in GGUF files."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from strop.config.load.loader import load_values
from strop.config.load.preflight import missing_files
from strop.config.paths import gguf_file
from strop.config.plan.model_size import read_model_size
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.fingerprint import model_fingerprint
from strop.models.formats import gguf as gguf_format
from strop.models.loading import load_config, load_generation_config, load_model, load_tokenizer
from strop.models.tiny import make_model
from strop.models.vision.model_images import ModelImages

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the extra gguf")

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Module of a decoder layer -> its name in a GGUF file (the specification of GGUF, `docs/gguf.md` of ggml)."""


def write_gguf(folder: Path, file: Path) -> None:
    """Convert the folder of a tiny Qwen2 model with tied embeddings."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    tokens += [f"<|unused_{number}|>" for number in range(len(tokens), config["vocab_size"])]
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number in special else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{number}.{NAMES[module]}.{kind}"


@needs_gguf
def test_a_gguf_file_is_the_model_that_it_was_written_from(tmp_path: Path) -> None:
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
    ModelImages(section, ImagesConfig()).copy_files(tmp_path)
    tokenizer = load_tokenizer(section)
    assert tokenizer.eos_token == "<|end|>"
    messages = [{"role": "user", "content": "one and 2"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False).startswith("<|user|>\none and 2<|end|>")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_format, "find_spec", lambda name: None)
    monkeypatch.setattr("strop.config.load.preflight.find_spec", lambda name: None)
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
