"""`strop verl merge`: a checkpoint becomes a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import write_rows


def test_strops_own_checkpoints_an_adapter_merged(cli: Cli, tmp_path: Path) -> None:
    write_rows(tmp_path / "t.jsonl", [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(8)])
    make_model(tmp_path / "tiny", ["1+1"], vocab_size=300)
    words = ["data.train_files=t.jsonl", "data.val_files=null", "data.train_batch_size=4", "optim.lr=1e-2"]
    words += ["model.partial_pretrain=tiny", "model.lora_rank=4", "trainer.total_epochs=1"]
    words += ["trainer.default_local_dir=out", "trainer.logger=console", "trainer.n_gpus_per_node=1"]
    assert cli("verl", "sft", "--here", *words).exit_code == 0
    for source, target in (("out", "a"), ("out/checkpoints/step-000002", "b")):
        result = cli("verl", "merge", "--backend", "fsdp", "--local_dir", source, "--target_dir", target)
        assert result.exit_code == 0 and f"Wrote {target}" in result.output, result.output
        left, merged = (load_file(tmp_path / each / "model.safetensors") for each in ("out/model", target))
        assert left.keys() == merged.keys()
        assert all(torch.equal(left[name], merged[name]) for name in left)
        AutoModelForCausalLM.from_pretrained(tmp_path / target)


def test_verl_shards(cli: Cli, tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny", ["1+1"], vocab_size=300)
    (tmp_path / "actor").mkdir()
    saved = load_file(model / "model.safetensors")
    torch.save(saved, tmp_path / "actor" / "model_world_size_1_rank_0.pt")
    result = cli("verl", "merge", "local_dir=actor", "target_dir=whole", "hf_model_path=tiny")
    assert result.exit_code == 0, result.output
    merged = load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(saved[name], merged[name]) for name in saved)
    assert (tmp_path / "whole" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "local_dir is missing"),
        (["--local_dir", "none"], "none: the folder does not exist"),
        (["--local_dir=here"], "here: it holds neither of these"),
        (["--local_dirr=here"], "did you mean 'local_dir'"),
        (["--local_dir=here", "local_dir=there"], "given twice"),
        (["--local_dir=here", "--target_dir=full"], "full is not empty"),
        (["--local_dir=here", "--backend", "megatron"], "does not read Megatron's shards"),
        (["--local_dir=here", "--hf_upload_path", "a/b"], "does not upload"),
        (["--local_dir=here", "--is-value-model"], "only to Megatron's shards"),
        (["--local_dir=here", "--lora_alpha=x"], "lora_alpha must be a number"),
        (["--local_dir"], "write options as --name value"),
    ],
)
def test_bad_input(cli: Cli, tmp_path: Path, words: list[str], expected: str) -> None:
    for name in ("here", "full"):
        (tmp_path / name).mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "full" / "x.safetensors")
    result = cli("verl", "merge", *words)
    assert result.exit_code != 0 and expected in result.stderr, result.stderr
    assert result.stderr.startswith("strop: ") and "\n\n" not in result.stderr
