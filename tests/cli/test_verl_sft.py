"""End-to-end test of `strop verl sft` on rows of GSM8K."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import rows, write_rows


def test_gsm8k_with_a_file_and_overrides(cli: Cli, tmp_path: Path) -> None:
    found = rows("gsm8k/train.jsonl", 12)
    write_rows(tmp_path / "train.jsonl", [{"extra_info": row} for row in found[:8]])
    write_rows(tmp_path / "val.jsonl", [{"extra_info": row} for row in found[8:]])
    make_model(tmp_path / "tiny", [row["question"] for row in found], vocab_size=400)
    (tmp_path / "sft.yaml").write_text(
        "data: {train_files: train.jsonl, val_files: val.jsonl, train_batch_size: 4, max_length: 1000}\n"
        "model: {partial_pretrain: tiny, lora_rank: 4}\n"
        "trainer: {total_epochs: 1, logger: console, default_local_dir: out, n_gpus_per_node: 8}\n"
    )
    words = ["data.prompt_key=extra_info", "+data.prompt_dict_keys=['question']", "optim.lr=1e-4"]
    more = ["data.response_key=extra_info", "+data.response_dict_keys=['answer']"]
    result = cli("verl", "sft", "--here", "--config", "sft.yaml", *words, *more)
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.n_gpus_per_node=8" in result.output
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 and any(name.startswith("eval/val/") for name in last)
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
