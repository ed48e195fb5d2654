"""End-to-end test of a file assembled from the fragments of Trinity's seed page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model
from strop.pipelines.juicer.process import PYTHON
from tests.pipelines.stand_in import stand_in_endpoint

from .conftest import Cli
from .foreign import rows, write_rows

PAGE = Path(__file__).parent / "trinity_page.yaml"
PIPELINES = PAGE.with_name("trinity_page_pipelines.yaml")
RECIPE = Path(__file__).parents[2] / "examples" / "trinity" / "dj_scoring.yaml"
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the model and the data that the page's environment variables name."""
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
    return tmp_path


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_page_runs_end_to_end(cli: Cli, folder: Path) -> None:
    """The page has ppo's advantage function under grpo, so there is a critic; it synchronizes every 10 steps,
    so explorer and trainer are separate processes with a database as their queue; the first stage is a
    supervised warm-up."""
    pytest.importorskip("sqlalchemy")
    result = cli("trinity", PAGE, "--here", *SMALL)
    assert result.exit_code == 0, result.output
    warm, rft = (
        folder / "checkpoints" / "Trinity-RFT" / f"example-{stage}" for stage in ("sft_warmup", "rft")
    )
    assert "sft_loss" in metrics_of(warm)[-1]
    trained, explored = metrics_of(rft), metrics_of(rft / "explorer")
    assert trained[-1]["step"] == 2 and "critic/loss" in trained[-1]
    assert {row["step"] for row in explored} == {0, 1, 2} and "eval/countdown_eval/reward" in explored[0]
    assert (rft / "countdown_buffer.db").is_file()
    assert any((rft / "monitor" / "tensorboard").iterdir())
    AutoModelForCausalLM.from_pretrained(rft / "model")


@pytest.mark.juicer
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set")
def test_page_runs_with_its_data_pipelines(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strop serves the language model that the task pipeline and Data-Juicer's recipe ask. The stages are left out: the
    supervised one would have the task pipeline too, whose columns its dataset does not have."""
    page = folder / "page.yaml"
    page.write_text(PAGE.read_text().partition("\nstages:")[0] + "\n" + PIPELINES.read_text())
    recipe = folder / "examples" / "grpo_gsm8k_experience_pipeline" / "dj_scoring_exp.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE.read_text())
    with stand_in_endpoint("qwen2.5-7b-instruct", "qwen2.5-32b-instruct") as (access, served):
        monkeypatch.setenv("OPENAI_BASE_URL", access.url)
        monkeypatch.setenv("OPENAI_API_KEY", access.api_key)
        result = cli("trinity", page, "--here", *SMALL[:-2])
    assert result.exit_code == 0, result.output
    (manifest,) = folder.glob("**/task_pipelines/*/manifest.json")
    found = json.loads(manifest.read_text())["operators"]
    assert [(each["type"], each["rows_in"]) for each in found] == [("llm_score", 4)]
    explored = metrics_of(folder / "checkpoints" / "Trinity-RFT" / "example" / "explorer")
    changes = [row["pipeline/1_reward_shaping/changed_fraction"] for row in explored if row["step"]]
    assert len(changes) == 2 and max(changes) > 0
    assert len(served.asked) == 4 + 8


def test_placement_is_refused_without_here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_PATH", *(f"TRINITY_{kind}_PATH" for kind in ("TASKSET", "SFT_DATASET", "DATASET"))):
        monkeypatch.setenv(name, "x")
    result = cli("trinity", PAGE)
    assert result.exit_code == 2 and "--here" in result.output
