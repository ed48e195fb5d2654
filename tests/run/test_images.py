"""Runs on images, from the data to the exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from strop.models.vision.tiny import make_vision_model
from tests.cases import nightly
from tests.datasets import SHARED
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM
from tests.models.vision.images import FAMILIES, image, vision_model

from .conftest import Values
from .results import rows_of, train, trained_rows
from .test_serving_engines import ENGINES

WORKFLOWS = Path(__file__).parent / "workflows.py"
GEOMETRY = SHARED / "geometry" / "train.parquet"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures to train on, and four held out."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, count in (("train", 12), ("test", 4)):
        pictures = [image(folder, 32, 16, seed).path.read_bytes() for seed in range(count)]
        rows = [{"prompt": "<image>Read.", "images": [each], "answer": "1"} for each in pictures]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


@pytest.fixture
def pictures(values: Values, tasks: Path) -> Values:
    """The values of a run on images of at most four steps."""
    held_out = {"name": "held-out", "path": str(tasks / "test.parquet"), "images": "images"}
    defaults: dict[str, Any] = {
        "model": {"path": str(vision_model("qwen2_5_vl"))},
        "data": {
            "train": {"path": str(tasks / "train.parquet"), "images": "images"},
            "eval": [held_out],
            "max_prompt_tokens": 80,
            "max_response_tokens": 4,
        },
        "trainer__tasks_per_step": 4,
        "trainer__tasks_per_update": None,
        "algorithm__kl_loss": {"coef": 0.1},
        "evaluate": {},
    }
    return lambda **changes: values(**{**defaults, **changes})


def other_families() -> list[Any]:
    """All but one are nightly: `tests/models/vision` compares each with transformers."""
    return ["qwen2_5_vl", *nightly(*(each for each in FAMILIES if each != "qwen2_5_vl"))]


@pytest.mark.parametrize("family", other_families())
def test_a_run_exports_a_model_for_images(pictures: Values, family: str) -> None:
    result = train(pictures(model={"path": str(vision_model(family))}, trainer__duration="2 steps"))
    gaps = [row["logprob_diff/mean_abs"] for row in rows_of(result.folder)[1:]]
    assert len(gaps) == 2 and max(gaps) < 1e-5
    assert result.model is not None
    model = AutoModelForImageTextToText.from_pretrained(result.model)
    processor = AutoImageProcessor.from_pretrained(result.model, backend="pil")
    assert AutoTokenizer.from_pretrained(result.model).chat_template
    pixels = processor(images=[np.zeros((16, 32, 3), np.uint8)], return_tensors="pt")
    for count in ("num_crops", "num_patches"):
        pixels.pop(count, None)
    assert len(model.model.get_image_features(**pixels).pooler_output) > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", other_families())
@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_responses_of_a_dataset_are_learned_beside_images(
    offline: Values, tasks: Path, tmp_path: Path, family: str, algorithm: str
) -> None:
    rows = pq.read_table(tasks / "train.parquet").to_pylist()
    rows = [{**row, "good": "The number is 34.", "bad": "What is shown"} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    responses = {"response": "good"} if algorithm == "sft" else {"chosen": "good", "rejected": "bad"}
    run = offline(
        algorithm,
        model={"path": str(vision_model(family))},
        data__train={"path": str(tmp_path / "rows.parquet"), "images": "images", **responses},
        data__eval=[],
        data__max_prompt_tokens=80,
        data__max_response_tokens=16,
        evaluate={},
        trainer__tasks_per_step=6,
        trainer__tasks_per_update=None,
    )
    losses = [row["loss"] for row in trained_rows(run, "trainer.duration=6 steps") if "loss" in row]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.01


@pytest.mark.skipif(not GEOMETRY.is_file(), reason="the geometry problems are not here")
def test_geometry_problems_train_for_two_steps(pictures: Values, tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path / "model", ["Find x in the triangle."] * 9, family="qwen3_vl")
    data = {
        "train": {"path": str(GEOMETRY), "prompt": "problem", "images": "images", "limit_tasks": 8},
        "images": {"max_pixels": 48 * 48},
        "max_prompt_tokens": 400,
        "max_response_tokens": 6,
        "overlong": "filter",
    }
    run = pictures(
        model={"path": str(folder)}, data=data, reward="verl_geometry3k", trainer__tasks_per_step=2
    )
    assert sum("grad_norm" in row for row in trained_rows(run, "trainer.duration=2 steps")) == 2


@pytest.mark.parametrize(
    "workflow",
    [
        {"name": "agent", "args": {"function": f"{WORKFLOWS}:agent_with_images"}},
        f"{WORKFLOWS}:tool_with_images",
    ],
    ids=["agent", "tool"],
)
def test_images_of_agents_and_tools_are_trained_on(pictures: Values, workflow: Any) -> None:
    run = pictures(
        rollout={"workflow": workflow, "endpoint": {}, "max_sequence_tokens": 100},
        reward={},
        algorithm={"type": "grpo", "rollouts_per_task": 2},
        trainer__tasks_per_step=2,
        trainer__duration="1 steps",
        record__rollouts_every="1 steps",
    )
    run["data"] |= {"eval": [], "max_prompt_tokens": 40}
    folder = train(run).folder
    last = rows_of(folder)[-1]
    assert last["rollouts/turns"] == 2 and last["logprob_diff/mean_abs"] < 1e-5
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert [len(row["images"]) for row in rows] == [2] * 4


@pytest.mark.engines
@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
@pytest.mark.parametrize(
    "engine", [pytest.param("vllm", marks=NEEDS_VLLM), pytest.param("sglang", marks=NEEDS_SGLANG)]
)
def test_serving_engines_sample_from_images(pictures: Values, tmp_path: Path, engine: str, lora: Any) -> None:
    # SGLang's Qwen2.5-VL has patches of 14 pixels only, and vLLM needs heads of 32 values.
    size = {"hidden_size": 128, "patch_size": 14 if engine == "sglang" else 8}
    folder = make_vision_model(tmp_path / "model", ["Read."] * 9, **size)
    run = pictures(model={"path": str(folder), "lora": lora}, rollout={"engine": ENGINES[engine]})
    gaps = [row["logprob_diff/mean_abs"] for row in trained_rows(run) if "logprob_diff/mean_abs" in row]
    assert len(gaps) == 4 and max(gaps) < 1e-5
