"""Tests of `strop verl generate`, whose output `strop verl eval` scores."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.config.schema.generation import GenerationConfig
from strop.dialects.verl.generation import LEDGER, read_verl_generate
from strop.models.tiny import make_model
from tests.models.vision.images import image, vision_model

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows

WORDS = ("data.path=prompts.jsonl", "model.path=tiny", "data.output_path=out/answers.parquet")


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    found = rows("gsm8k/train.jsonl", 6)
    write_rows(tmp_path / "prompts.jsonl", verl_rows(6))
    make_model(tmp_path / "tiny", [row["question"] for row in found], vocab_size=400)
    return [row["question"] for row in found]


def test_generate_and_eval_gsm8k(cli: Cli, tmp_path: Path, prompts: list[str]) -> None:
    more = ("data.n_samples=3", "data.batch_size=4", "rollout.response_length=8", "rollout.top_p=1.0")
    result = cli("verl", "generate", "--here", *WORDS, *more, "trainer.n_gpus_per_node=8")
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.n_gpus_per_node=8" in result.output
    assert "Wrote responses to 6 prompts: out/answers.parquet" in result.output
    table = pq.read_table(tmp_path / "out" / "answers.parquet").to_pylist()
    assert [row["prompt"][0]["content"] for row in table] == prompts
    assert all(len(row["responses"]) == 3 for row in table)
    assert {row["data_source"] for row in table} == {"openai/gsm8k"}
    assert any(len(set(row["responses"])) == 3 for row in table)
    again = cli(
        "verl", "generate", "--here", *WORDS, *more, "data.batch_size=6", "data.output_path=b.parquet"
    )
    assert again.exit_code == 0, again.output
    assert pq.read_table(tmp_path / "b.parquet").to_pylist() == table, (
        "the batch size does not change responses"
    )
    scored = cli("verl", "eval", "data.path=out/answers.parquet")
    assert scored.exit_code == 0, scored.output
    assert "openai/gsm8k: 6 prompts, 18 responses" in scored.output and "pass@3" in scored.output


def test_greedy_responses_equal_transformers(cli: Cli, tmp_path: Path, prompts: list[str]) -> None:
    more = ("data.n_samples=1", "rollout.do_sample=False", "rollout.response_length=6", "rollout.dtype=fp32")
    assert cli("verl", "generate", "--here", *WORDS, *more).exit_code == 0
    answers = [r["responses"][0] for r in pq.read_table(tmp_path / "out" / "answers.parquet").to_pylist()]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    for prompt, answer in zip(prompts[:2], answers[:2], strict=True):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) == answer


def test_prompts_with_images(cli: Cli, tmp_path: Path) -> None:
    picture = image(tmp_path, 32, 16).path.read_bytes()
    row = {
        "prompt": [{"role": "user", "content": "<image>What?"}],
        "images": [{"bytes": picture, "path": None}],
    }
    text = {"prompt": [{"role": "user", "content": "And?"}], "images": []}
    pq.write_table(pa.Table.from_pylist([row, text]), tmp_path / "prompts.parquet")
    words = (
        "data.path=prompts.parquet",
        f"model.path={vision_model('qwen2_5_vl')}",
        "data.output_path=out/a.parquet",
    )
    result = cli("verl", "generate", "--here", *words, "data.n_samples=2", "rollout.response_length=3")
    assert result.exit_code == 0, result.output
    first, second = pq.read_table(tmp_path / "out" / "a.parquet").to_pylist()
    assert first["prompt"] == row["prompt"] and len(first["responses"]) == 2
    assert [Path(path).read_bytes() for path in first["images"]] == [picture]
    assert second["images"] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data.n_sample=3"], "did you mean 'data.n_samples'"),
        (["rollout.temperature=0"], "greedy responses to one prompt are identical"),
        (["rollout.n=2"], "write data.n_samples"),
        (["data.n_samples=0"], "data.n_samples=0: must be greater than 0, got 0"),
        (["rollout.use_fire_sampling=True"], "first token"),
        (["data.path=none.parquet"], "There is no file"),
        (["algorithm.gamma=1"], "there is no key algorithm.gamma"),
    ],
)
def test_bad_input(cli: Cli, tmp_path: Path, words: list[str], expected: str) -> None:
    make_model(tmp_path / "tiny", ["a b"], vocab_size=300)
    result = cli("verl", "generate", "--here", *WORDS, *words)
    assert result.exit_code != 0 and expected in result.stderr, result.stderr
    assert result.stderr.startswith("strop: ") and "\n\n" not in result.stderr


def test_verl_defaults() -> None:
    generation = read_verl_generate([]).generation
    sampling = generation.sampling
    assert (generation.rollouts_per_task, generation.tasks_per_batch) == (5, 128)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 50, 0.7)
    assert (generation.data.max_prompt_tokens, generation.data.max_response_tokens) == (1536, 512)
    assert generation.model.dtype == "bfloat16"


def test_ledger_fields_exist_in_the_generation_config() -> None:
    for row in LEDGER.rows:
        for field in row.fields:
            found: object = GenerationConfig
            for part in field.split("."):
                found = found.model_fields[part].annotation  # type: ignore[attr-defined]
