"""End-to-end tests of the files in examples/trinity, scaled down by overrides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model
from tests.datasets import data_folder

from .conftest import Cli
from .foreign import rows, write_rows

EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
TOKENS = ("model.max_prompt_tokens=700", "model.max_response_tokens=8")
GIVEN = ("buffer.train_batch_size=2", "buffer.total_steps=2")
STAGED = ("stages.0.buffer.train_batch_size=2", "stages.0.buffer.total_steps=1")
LAST = {"stages_gsm8k": "stages_gsm8k-grpo"}
"""Name of the run of each file's last stage."""
SAMPLED = (*TOKENS, "buffer.total_steps=2", "buffer.batch_size=2", "algorithm.repeat_times=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of every dataset, and a model with a tokenizer for them."""
    made = tmp_path_factory.mktemp("trinity")
    for name in ("gsm8k", "countdown"):
        tasks = rows(f"{name}/train.jsonl", 6)
        (made / name).mkdir()
        write_rows(made / name / "train.jsonl", tasks[:4])
        write_rows(made / name / "test.jsonl", tasks[4:])
    pairs = [{key: text[:40] for key, text in row.items()} for row in rows("human_like/train.jsonl", 4)]
    write_rows(made / "pairs.jsonl", pairs)
    texts = [task["question"] for name in ("gsm8k", "countdown") for task in rows(f"{name}/train.jsonl", 6)]
    make_model(made / "model", texts, vocab_size=400, hidden_size=32, layers=2, heads=4, kv_heads=2)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "taskset", "overrides", "metric"),
    [
        ("grpo_gsm8k", "gsm8k", SAMPLED, "eval/gsm8k_eval/reward"),
        ("ppo_countdown", "countdown", (*SAMPLED, "model.max_model_len=708"), "critic/loss"),
        ("mix_gsm8k", "gsm8k", (*SAMPLED, "buffer.train_batch_size=8"), "sft_loss"),
        pytest.param("priority_countdown", "countdown", SAMPLED, "advantages/std", marks=pytest.mark.slow),
        ("stages_gsm8k", "gsm8k", (*SAMPLED, *STAGED), "advantages/std"),
        ("sft_tools", None, GIVEN, "sft_loss"),
        ("dpo", None, GIVEN, "dpo/margin"),
    ],
)
def test_example_runs_end_to_end(
    cli: Cli,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    taskset: str | None,
    overrides: tuple[str, ...],
    metric: str,
) -> None:
    monkeypatch.setenv("MODEL_PATH", str(folder / "model"))
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(folder / (taskset or "")))
    given = data_folder() / "sft_with_tools" / "sft_with_tools.jsonl"
    monkeypatch.setenv(
        "TRINITY_SFT_DATASET_PATH", str(folder / "gsm8k" / "train.jsonl" if taskset else given)
    )
    monkeypatch.setenv("TRINITY_DATASET_PATH", str(folder / "pairs.jsonl"))
    monkeypatch.delenv("TRINITY_CHECKPOINT_ROOT_DIR", raising=False)
    result = cli("trinity", EXAMPLES / f"{name}.yaml", "--here", *overrides)
    assert result.exit_code == 0, result.output
    run = tmp_path / "checkpoints" / "Trinity-RFT" / LAST.get(name, name)
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found[-1]["step"] == 2 and metric in found[-1]
    AutoModelForCausalLM.from_pretrained(run / "model")
