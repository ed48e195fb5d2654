"""End-to-end tests of Trinity's pipelines: the files in examples/trinity, with a language model that Strop serves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from strop.models.tiny import make_model
from strop.pipelines.juicer.process import PYTHON
from tests.pipelines.stand_in import StandIn, stand_in_endpoint

from .conftest import Cli
from .foreign import rows, write_rows

EXAMPLES = Path(__file__).parents[2] / "examples" / "trinity"
SMALL = (
    "model.max_prompt_tokens=700",
    "model.max_response_tokens=8",
    "buffer.batch_size=2",
    "buffer.total_steps=2",
    "algorithm.repeat_times=2",
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A few tasks, a tiny model, and a language model behind an endpoint; the environment names all three."""
    tasks = rows("gsm8k/train.jsonl", 12)
    write_rows(tmp_path / "train.jsonl", tasks)
    texts = [task["question"] for task in tasks]
    make_model(tmp_path / "model", texts, vocab_size=400, hidden_size=32, layers=1, heads=2, kv_heads=2)
    monkeypatch.setenv("MODEL_PATH", str(tmp_path / "model"))
    monkeypatch.setenv("TRINITY_TASKSET_PATH", str(tmp_path))
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path / "runs"))
    with stand_in_endpoint("qwen2.5-7b-instruct", "qwen2.5-32b-instruct") as (access, served):
        monkeypatch.setenv("OPENAI_BASE_URL", access.url)
        monkeypatch.setenv("OPENAI_API_KEY", access.api_key)
        yield served


@pytest.mark.slow
def test_task_pipeline(cli: Cli, tmp_path: Path, model: StandIn) -> None:
    result = cli("trinity", EXAMPLES / "task_pipeline_gsm8k.yaml", "--here", *SMALL)
    assert result.exit_code == 0, result.output
    assert len(model.asked) == 12
    scores = [len(text) % 5 / 4 for text in model.asked]
    (manifest,) = (tmp_path / "runs" / "task_pipelines").glob("*/manifest.json")
    found = json.loads(manifest.read_text())["operators"]
    kept = sum(0.2 <= score <= 0.9 for score in scores)
    assert [(each["type"], each["rows_out"]) for each in found] == [("llm_score", kept), ("order", kept)]


@pytest.mark.juicer
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} is not set")
def test_experience_pipeline(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: StandIn
) -> None:
    monkeypatch.setenv("RECIPE", str(EXAMPLES / "dj_scoring.yaml"))
    result = cli("trinity", EXAMPLES / "experience_pipeline_gsm8k.yaml", "--here", *SMALL)
    assert result.exit_code == 0, result.output
    assert len(model.asked) == 8
    folder = tmp_path / "runs" / "Trinity-RFT" / "experience_pipeline_gsm8k"
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()][-1] == 2
    assert sum(pq.read_table(file).num_rows for file in folder.glob("rollouts/*.parquet")) == 8
