"""Tests of `strop verl eval`, which scores a file of responses by source."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strop.dialects.verl.evaluation import LEDGER, EvaluationOptions
from strop.rewards.majority_vote import final_answer, majority_indices
from strop.run.entry.score_file import pass_at_k

from .conftest import Cli

ROWS = [
    # 2 of 4 are correct and win the majority vote
    ("openai/gsm8k", "3", ["#### 3", "so #### 3", "#### 4", "#### 5"]),
    # 1 of 4 is correct and loses the majority vote
    ("openai/gsm8k", "7", ["#### 7", "#### 8", "#### 8", "#### 9"]),
    ("lighteval/MATH", r"\frac{1}{2}", [r"\boxed{0.5}", r"\boxed{\frac12}"]),
]


def write(folder: Path, rows: list[Any] = ROWS, **renamed: str) -> Path:
    table = [
        {
            "prompt": [{"role": "user", "content": "?"}],
            renamed.get("source", "data_source"): source,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "responses": responses,
        }
        for source, truth, responses in rows
    ]
    pq.write_table(pa.Table.from_pylist(table), folder / "answers.parquet")
    return folder / "answers.parquet"


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
    found = figures(result.output)
    assert found["openai/gsm8k"] == {
        "mean": 0.375,
        "best-of-n": 1,
        "pass@1": 0.375,
        "pass@2": pytest.approx((1 - 1 / 6 + 1 - 3 / 6) / 2, abs=1e-5),
        "pass@4": 1,
        "majority": 0.5,
    }
    assert found["lighteval/MATH"] == {
        "mean": 1,
        "best-of-n": 1,
        "pass@1": 1,
        "pass@2": 1,
        "majority": 1,
    }


def test_custom_reward_and_columns(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(len(solution_str)), 'pred': solution_str}\n"
    )
    (tmp_path / "evaluation.yaml").write_text(
        f"data: {{path: {write(tmp_path, source='origin')}, data_source_key: origin}}\n"
        "custom_reward_function: {path: mine.py}\n"
    )
    result = cli("verl", "eval", "--config", "evaluation.yaml")
    assert result.exit_code == 0, result.output
    assert figures(result.output)["openai/gsm8k"]["best-of-n"] == (9 + 6) / 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data.pth=x"], "did you mean 'data.path'"),
        (["data.path=3"], "data.path must be a string"),
        (["data.path=none.parquet"], "There is no file"),
        (["data.response_key=prompt"], "must hold a list of texts"),
        (["data.response_key=none"], "has no 'none'"),
        (["data.data_source_key=responses"], "verl has no reward for the"),
        (["custom_reward_function.path=none.py"], "there is no file"),
        (["algorithm.gamma=1"], "there is no key algorithm.gamma"),
    ],
)
def test_bad_input(cli: Cli, tmp_path: Path, words: list[str], expected: str) -> None:
    write(tmp_path)
    given = [] if words[0].startswith("data.path") else ["data.path=answers.parquet"]
    result = cli("verl", "eval", *given, *words)
    assert result.exit_code != 0 and expected in result.stderr
    assert result.stderr.startswith("strop: ") and "\n\n" not in result.stderr


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


def test_ledger_fields_exist_in_the_evaluation_options() -> None:
    for row in LEDGER.rows:
        if row.disposition == "accepted without effect":
            assert row.note, row.key
        else:
            assert (
                row.disposition == "mapped" and row.fields[0].split(".")[0] in EvaluationOptions.model_fields
            )


def test_explain_describes_without_scoring(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "evaluation.yaml"
    path.write_text("data: {path: [a.parquet, b.parquet], response_key: answers}\n")
    assert f"strop verl eval --config {path} (--explain" in cli("explain", path).stderr
    result = cli("verl", "eval", "--config", path, "--explain", "data.data_source_key=from")
    assert result.exit_code == 0, result.output
    assert (
        "every response in the column answers of a.parquet, b.parquet with the built-in reward"
        in result.output
    )
    assert "row's reward_model.ground_truth" in result.output and "value of the column from" in result.output
