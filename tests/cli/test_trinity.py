"""`strop trinity` runs the files in examples/trinity, scaled down by overrides, and a file of all keys of its page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from strop.models.tiny import make_model
from strop.pipelines.juicer.client import PYTHON
from tests.cases import nightly
from tests.datasets import data_folder
from tests.pipelines.stand_in import StandIn, stand_in_endpoint

from .conftest import Cli
from .foreign import rows, write_rows

PAGE = Path(__file__).parent / "trinity_page.yaml"
PIPELINES = PAGE.with_name("trinity_page_pipelines.yaml")
EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
TOOLS_TEMPLATE = EXAMPLES.parent / "workflows" / "tools.jinja"
SIZES = ("model.max_prompt_tokens=700", "model.max_response_tokens=8", "buffer.total_steps=2")
SAMPLED = (*SIZES, "buffer.batch_size=2", "algorithm.repeat_times=2")
STAGED = (*SAMPLED, "stages.0.buffer.train_batch_size=2", "stages.0.buffer.total_steps=1")
OFFLINE = ("buffer.train_batch_size=2", "buffer.total_steps=2")
OF_PAGE = (
    *("buffer.batch_size=2", "buffer.train_batch_size=4", "algorithm.repeat_times=2", *SIZES[:2]),
    *("trainer.total_steps=2", "explorer.auxiliary_models.0.model_path=model"),
)
STAGES_OF_PAGE = ("stages.0.buffer.train_batch_size=2", "stages.0.buffer.total_steps=1")
needs_juicer = pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few rows of every dataset, and a model with a tokenizer for them; to be read only."""
    made = tmp_path_factory.mktemp("trinity")
    tasks = {name: rows(f"{name}/train.jsonl", 12) for name in ("gsm8k", "countdown")}
    for name, found in tasks.items():
        (made / name).mkdir()
        write_rows(made / name / "train.jsonl", found[:4])
        write_rows(made / name / "test.jsonl", found[4:6])
    pairs = [{key: text[:40] for key, text in row.items()} for row in rows("human_like/train.jsonl", 4)]
    write_rows(made / "pairs.jsonl", pairs)
    (made / "twelve").mkdir()
    write_rows(made / "twelve" / "train.jsonl", tasks["gsm8k"])
    given = [
        {"prompt": row["question"], "response": "<answer> 1 + 1 </answer>"} for row in tasks["countdown"]
    ]
    write_rows(made / "given.jsonl", given[:6])
    texts = [row["question"] for found in tasks.values() for row in found]
    make_model(made / "model", texts, vocab_size=400, hidden_size=32, layers=2, heads=4, kv_heads=2)
    return made


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and environment variables that name the model and the data."""
    (tmp_path / "model").symlink_to(data / "model")
    monkeypatch.setenv("MODEL_PATH", str(data / "model"))
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(data / "countdown"))
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", str(data / "countdown" / "train.jsonl"))
    monkeypatch.setenv("TRINITY_DATASET_PATH", str(data / "given.jsonl"))
    monkeypatch.delenv("TRINITY_CHECKPOINT_ROOT_DIR", raising=False)
    return tmp_path


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "taskset", "overrides", "metric"),
    [
        ("grpo_gsm8k", "gsm8k", SAMPLED, "eval/gsm8k_eval/reward"),
        ("mix_gsm8k", "gsm8k", (*SAMPLED, "buffer.train_batch_size=8"), "sft_loss"),
        ("stages_gsm8k", "gsm8k", STAGED, "advantages/std"),
        ("sft_tools", None, (*OFFLINE, f"model.chat_template_path={TOOLS_TEMPLATE}"), "sft_loss"),
        ("dpo", None, OFFLINE, "pairs/margin"),
        pytest.param(
            *("ppo_countdown", "countdown", (*SAMPLED, "model.max_model_len=708"), "critic/loss"),
            marks=pytest.mark.slow,
        ),
        # explorer and trainer are processes, as in tests/run/test_distributed.py
        *nightly(("priority_countdown", "countdown", SAMPLED, "advantages/std")),
    ],
)
def test_an_example_runs(
    cli: Cli, folder: Path, data: Path, monkeypatch, name, taskset, overrides, metric
) -> None:
    with_tools = data_folder() / "sft_with_tools" / "sft_with_tools.jsonl"
    sft = data / "gsm8k" / "train.jsonl" if taskset else with_tools
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(data / (taskset or "")))
    monkeypatch.setenv("TRINITY_SFT_DATASET_PATH", str(sft))
    monkeypatch.setenv("TRINITY_DATASET_PATH", str(data / "pairs.jsonl"))
    result = cli("trinity", EXAMPLES / f"{name}.yaml", "--here", *overrides)
    assert result.exit_code == 0, result.output
    assert taskset is None or "overridden: explorer.rollout_model.engine_type=vllm" in result.output
    last = {"stages_gsm8k": "stages_gsm8k-grpo"}.get(name, name)
    run = folder / "checkpoints" / "Trinity-RFT" / last
    found = metrics_of(run)
    assert found[-1]["step"] == 2 and metric in found[-1]
    AutoModelForCausalLM.from_pretrained(run / "model")


def test_the_page_is_checked_and_needs_here(cli: Cli, folder: Path) -> None:
    refused = cli("trinity", PAGE, *OF_PAGE, *STAGES_OF_PAGE)
    assert refused.exit_code == 2 and "--here" in refused.output
    checked = cli("check", PAGE, "--here", *OF_PAGE, *STAGES_OF_PAGE, "model.critic_model_path=model")
    assert checked.exit_code == 0, checked.output
    assert checked.output.count("The run can start") == 2


@pytest.mark.nightly
def test_the_page_runs(cli: Cli, folder: Path) -> None:
    """The page has ppo's advantage function under grpo, so there is a critic; it synchronizes every 10 steps,
    so explorer and trainer are separate processes with a database as their queue; the first stage is a
    supervised warm-up."""
    pytest.importorskip("sqlalchemy")
    result = cli("trinity", PAGE, "--here", *OF_PAGE, *STAGES_OF_PAGE)
    assert result.exit_code == 0, result.output
    runs = folder / "checkpoints" / "Trinity-RFT"
    warm, rft = runs / "example-sft_warmup", runs / "example-rft"
    assert "sft_loss" in metrics_of(warm)[-1]
    trained, explored = metrics_of(rft), metrics_of(rft / "explorer")
    assert trained[-1]["step"] == 2 and "critic/loss" in trained[-1]
    assert {row["step"] for row in explored} == {0, 1, 2} and "eval/countdown_eval/reward" in explored[0]
    assert (rft / "countdown_buffer.db").is_file()
    assert any((rft / "monitor" / "tensorboard").iterdir())
    AutoModelForCausalLM.from_pretrained(rft / "model")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The language model that the task pipeline and Data-Juicer's recipe ask, behind Strop's endpoint."""
    with stand_in_endpoint("qwen2.5-7b-instruct", "qwen2.5-32b-instruct") as (access, model):
        monkeypatch.setenv("OPENAI_BASE_URL", access.url)
        monkeypatch.setenv("OPENAI_API_KEY", access.api_key)
        yield model


@pytest.mark.juicer
@needs_juicer
def test_the_page_runs_with_its_data_pipelines(cli: Cli, folder: Path, served: StandIn) -> None:
    """Without its stages: the supervised one would have the task pipeline too, whose columns its dataset lacks."""
    page = folder / "page.yaml"
    page.write_text(PAGE.read_text().partition("\nstages:")[0] + "\n" + PIPELINES.read_text())
    recipe = folder / "examples" / "grpo_gsm8k_experience_pipeline" / "dj_scoring_exp.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text((EXAMPLES / "dj_scoring.yaml").read_text())
    result = cli("trinity", page, "--here", *OF_PAGE)
    assert result.exit_code == 0, result.output
    (manifest,) = folder.glob("**/task_pipelines/*/manifest.json")
    found = json.loads(manifest.read_text())["operators"]
    assert [(each["type"], each["rows_in"]) for each in found] == [("llm_score", 4)]
    explored = metrics_of(folder / "checkpoints" / "Trinity-RFT" / "example" / "explorer")
    changes = [row["pipeline/1_reward_shaping/changed_fraction"] for row in explored if row["step"]]
    assert len(changes) == 2 and max(changes) > 0
    assert len(served.asked) == 4 + 8


@pytest.mark.parametrize(
    "kind", ["task", pytest.param("experience", marks=[pytest.mark.juicer, needs_juicer])]
)
def test_an_example_with_a_pipeline_runs(
    cli: Cli, folder: Path, data: Path, served: StandIn, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("RECIPE", str(EXAMPLES / "dj_scoring.yaml"))
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(data / "twelve"))
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(folder / "runs"))
    name = f"{kind}_pipeline_gsm8k"
    result = cli("trinity", EXAMPLES / f"{name}.yaml", "--here", *SAMPLED)
    assert result.exit_code == 0, result.output
    run = folder / "runs" / "Trinity-RFT" / name
    if kind == "experience":
        assert len(served.asked) == 8 and metrics_of(run)[-1]["step"] == 2
        assert sum(pq.read_table(file).num_rows for file in run.glob("rollouts/*.parquet")) == 8
        return
    assert len(served.asked) == 12
    (manifest,) = (folder / "runs" / "task_pipelines").glob("*/manifest.json")
    found = json.loads(manifest.read_text())["operators"]
    kept = sum(0.2 <= len(text) % 5 / 4 <= 0.9 for text in served.asked)
    assert [(each["type"], each["rows_out"]) for each in found] == [("llm_score", kept), ("order", kept)]
