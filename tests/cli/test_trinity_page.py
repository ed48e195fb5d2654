"""End-to-end test of a file assembled from the fragments of Trinity's seed page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model

from .conftest import Cli
from .foreign import rows, write_rows

PAGE = Path(__file__).parent / "trinity_page.yaml"
SMALL = (
    "buffer.batch_size=2",
    "buffer.train_batch_size=4",
    "algorithm.repeat_times=2",
    "trainer.total_steps=2",
    "model.max_prompt_tokens=700",
    "model.max_response_tokens=8",
    "explorer.auxiliary_models.0.model_path=model",
    "stages.0.buffer.train_batch_size=2",
    "stages.0.buffer.total_steps=1",
)


@pytest.mark.slow
def test_page_runs_end_to_end(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has ppo's advantage function under grpo, so there is a critic; it synchronizes every 10 steps,
    so explorer and trainer are separate processes with a database as their queue; the first stage is a
    supervised warm-up."""
    pytest.importorskip("sqlalchemy")
    tasks = rows("countdown/train.jsonl", 6)
    given = [{"prompt": task["question"], "response": "<answer> 1 + 1 </answer>"} for task in tasks]
    monkeypatch.setenv("TRINITY_DATASET_PATH", str(write_rows(tmp_path / "given.jsonl", given)))
    (tmp_path / "countdown").mkdir()
    write_rows(tmp_path / "countdown" / "train.jsonl", tasks[:4])
    write_rows(tmp_path / "countdown" / "test.jsonl", tasks[4:])
    make_model(tmp_path / "model", [task["question"] for task in tasks], vocab_size=400)
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "model"))
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(tmp_path / "countdown"))
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", str(tmp_path / "countdown" / "train.jsonl"))
    monkeypatch.delenv("TRINITY_CHECKPOINT_ROOT_DIR", raising=False)
    result = cli("trinity", PAGE, "--here", *SMALL)
    assert result.exit_code == 0, result.output
    warm, folder = (
        tmp_path / "checkpoints" / "Trinity-RFT" / f"example-{stage}" for stage in ("sft_warmup", "rft")
    )
    assert "sft_loss" in json.loads((warm / "metrics.jsonl").read_text().splitlines()[-1])
    trained, explored = (
        [json.loads(line) for line in (part / "metrics.jsonl").read_text().splitlines()]
        for part in (folder, folder / "explorer")
    )
    assert trained[-1]["step"] == 2 and "critic/loss" in trained[-1]
    assert {row["step"] for row in explored} == {0, 1, 2} and "eval/countdown_eval/reward" in explored[0]
    assert (folder / "countdown_buffer.db").is_file()
    assert any((folder / "monitor" / "tensorboard").iterdir())
    AutoModelForCausalLM.from_pretrained(folder / "model")


def test_placement_is_refused_without_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_PATH", *(f"TRINITY_{kind}_PATH" for kind in ("TASKSET", "SFT_DATASET", "DATASET"))):
        monkeypatch.setenv(name, "x")
    result = cli("trinity", PAGE)
    assert result.exit_code == 2 and "--here" in result.output
