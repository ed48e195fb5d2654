"""`strop verl generate` writes responses, which `strop verl eval` scores by source."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.compat.verl import evaluation, generation
from strop.config.schema.generation import GenerationConfig
from strop.models.tiny import make_model
from strop.rewards.majority_vote import final_answer, majority_indices
from strop.run.entry.score_file import pass_at_k
from tests.models.vision.images import image, vision_model

from .conftest import Cli
from .foreign import rows, verl_rows, write_rows

RESPONSES = [
    # 2 of 4 are correct and win the majority vote
    ("openai/gsm8k", "3", ["#### 3", "so #### 3", "#### 4", "#### 5"]),
    # 1 of 4 is correct and loses the majority vote
    ("openai/gsm8k", "7", ["#### 7", "#### 8", "#### 8", "#### 9"]),
    ("lighteval/MATH", r"\frac{1}{2}", [r"\boxed{0.5}", r"\boxed{\frac12}"]),
]


def write(folder: Path, source_key: str = "data_source") -> Path:
    table = [
        {
            "prompt": [{"role": "user", "content": "?"}],
            source_key: source,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "responses": responses,
        }
        for source, truth, responses in RESPONSES
    ]
    pq.write_table(pa.Table.from_pylist(table), folder / "answers.parquet")
    return folder / "answers.parquet"


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def figures(output: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    source = ""
    for line in output.splitlines():
        if line.startswith("  "):
            name, value = line.split()
            found[source][name] = float(value)
        else:
            source = line.partition(":")[0]
            found[source] = {}
    return found


def test_scores_computed_by_hand(cli: Cli, tmp_path: Path) -> None:
    result = cli("verl", "eval", f"data.path={write(tmp_path)}")
    assert result.exit_code == 0, result.output
    assert "openai/gsm8k: 2 prompts, 8 responses" in result.output
    pass_at_2 = pytest.approx((1 - 1 / 6 + 1 - 3 / 6) / 2, abs=1e-5)
    one = {"mean": 0.375, "best-of-n": 1, "pass@1": 0.375, "pass@2": pass_at_2, "pass@4": 1, "majority": 0.5}
    other = {"mean": 1, "best-of-n": 1, "pass@1": 1, "pass@2": 1, "majority": 1}
    found = figures(result.output)
    assert (found["openai/gsm8k"], found["lighteval/MATH"]) == (one, other)


def test_a_custom_reward_and_columns(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(len(solution_str)), 'pred': solution_str}\n"
    )
    (tmp_path / "evaluation.yaml").write_text(
        f"data: {{path: {write(tmp_path, 'origin')}, data_source_key: origin}}\n"
        "custom_reward_function: {path: mine.py}\n"
    )
    result = cli("verl", "eval", "--config", "evaluation.yaml")
    assert result.exit_code == 0, result.output
    assert figures(result.output)["openai/gsm8k"]["best-of-n"] == (9 + 6) / 2


def test_a_sum_that_rounding_keeps_below_1_is_correct(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return 0.7 + 0.2 + 0.1\n"
    )
    overrides = [f"data.path={write(tmp_path)}", f"custom_reward_function.path={tmp_path / 'mine.py'}"]
    result = cli("verl", "eval", *overrides)
    assert result.exit_code == 0, result.output
    assert figures(result.output)["openai/gsm8k"]["pass@1"] == 1


def test_pass_at_k_is_the_fraction_of_draws_with_a_correct_response() -> None:
    for n, right, k in ((4, 2, 2), (5, 1, 3), (6, 0, 2), (3, 3, 1)):
        draws = list(combinations(range(n), k))
        assert pass_at_k(n, right, k) == pytest.approx(sum(min(d) < right for d in draws) / len(draws))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"I say 3, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("<answer> B </answer>", "B"),
        ("12 and so #### 1,234", "1234"),
        ("The answer is (C).", "(C)"),
        ("**Answer:** 42.", "42"),
        ("we get 5 and then 6", "6"),
        (" yes ", "yes"),
    ],
)
def test_final_answers(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_ties_go_to_the_first_response() -> None:
    assert majority_indices(["#### 2", "#### 1", "#### 1", "#### 2"]) == (0, 3)


def test_fields_of_the_ledgers_exist() -> None:
    for row in evaluation.LEDGER.rows:
        if row.disposition == "accepted without effect":
            assert row.note, row.key
        else:
            assert row.disposition == "mapped"
            assert row.fields[0].split(".")[0] in evaluation.EvaluationOptions.model_fields
    for field in (field for row in generation.LEDGER.rows for field in row.fields):
        found: Any = GenerationConfig
        for part in field.split("."):
            found = found.model_fields[part].annotation


def test_explain_describes_an_evaluation_without_scoring(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.yaml"
    path.write_text("data: {path: [a.parquet, b.parquet], response_key: answers}\n")
    assert f"strop verl eval --config {path} (--explain" in cli("explain", path).stderr
    output = cli("verl", "eval", "--config", path, "--explain", "data.data_source_key=from").output
    said = "every response in the column answers of a.parquet, b.parquet with the built-in reward"
    assert said in output and "row's reward_model.ground_truth" in output
    assert "value of the column from" in output


def test_verls_defaults_of_a_generation() -> None:
    found = generation.read_verl_generate([]).generation
    sampling, data = found.sampling, found.data
    assert (found.rollouts_per_task, found.tasks_per_batch, found.model.dtype) == (5, 128, "bfloat16")
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 50, 0.7)
    assert (data.max_prompt_tokens, data.max_response_tokens) == (1536, 512)


WORDS = (
    "verl",
    "generate",
    "--here",
    "data.path=prompts.jsonl",
    "model.path=tiny",
    "data.output_path=a.parquet",
)


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    found = [row["question"] for row in rows("gsm8k/train.jsonl", 6)]
    write_rows(tmp_path / "prompts.jsonl", verl_rows(6))
    make_model(tmp_path / "tiny", found, vocab_size=400)
    return found


def test_generated_responses_are_scored_and_the_batch_size_does_not_change_them(
    cli: Cli, tmp_path: Path, prompts: list[str]
) -> None:
    more = ("data.n_samples=3", "data.batch_size=4", "rollout.response_length=8", "rollout.top_p=1.0")
    result = cli(*WORDS, *more, "trainer.n_gpus_per_node=8", "data.output_path=out/a.parquet")
    assert result.exit_code == 0, result.output
    assert "overridden: trainer.n_gpus_per_node=8" in result.output
    assert "Wrote responses to 6 prompts: out/a.parquet" in result.output
    table = read(tmp_path / "out" / "a.parquet")
    assert [row["prompt"][0]["content"] for row in table] == prompts
    assert all(len(row["responses"]) == 3 for row in table)
    assert {row["data_source"] for row in table} == {"openai/gsm8k"}
    assert any(len(set(row["responses"])) == 3 for row in table)
    assert cli(*WORDS, *more, "data.batch_size=6", "data.output_path=b.parquet").exit_code == 0
    assert read(tmp_path / "b.parquet") == table
    scored = cli("verl", "eval", "data.path=out/a.parquet")
    assert scored.exit_code == 0, scored.output
    assert "openai/gsm8k: 6 prompts, 18 responses" in scored.output and "pass@3" in scored.output


def test_greedy_responses_equal_transformers(cli: Cli, tmp_path: Path, prompts: list[str]) -> None:
    more = ("data.n_samples=1", "rollout.do_sample=False", "rollout.response_length=6", "rollout.dtype=fp32")
    assert cli(*WORDS, *more).exit_code == 0
    answers = [row["responses"][0] for row in read(tmp_path / "a.parquet")]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    given = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    for prompt, answer in zip(prompts[:2], answers[:2], strict=True):
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], **given)["input_ids"]
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) == answer


def test_prompts_with_images(cli: Cli, tmp_path: Path) -> None:
    picture = image(tmp_path, 32, 16).path.read_bytes()
    messages = [{"role": "user", "content": "<image>What?"}]
    row = {"prompt": messages, "images": [{"bytes": picture, "path": None}]}
    text = {"prompt": [{"role": "user", "content": "And?"}], "images": []}
    pq.write_table(pa.Table.from_pylist([row, text]), tmp_path / "prompts.parquet")
    words = ("data.path=prompts.parquet", f"model.path={vision_model('qwen2_5_vl')}")
    result = cli(*WORDS, *words, "data.n_samples=2", "rollout.response_length=3")
    assert result.exit_code == 0, result.output
    first, second = read(tmp_path / "a.parquet")
    assert first["prompt"] == messages and len(first["responses"]) == 2
    assert [Path(path).read_bytes() for path in first["images"]] == [picture]
    assert second["images"] == []
