"""Runs on images, from the data to the exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

import strop
from strop.models.vision.tiny import make_vision_model
from tests.datasets import SHARED
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM
from tests.models.vision.images import FAMILIES, image, vision_model

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


def run_values(tasks: Path, output: Path, **sections: Any) -> dict[str, Any]:
    held_out = {"name": "held-out", "path": str(tasks / "test.parquet"), "images": "images"}
    return {
        "name": "run",
        "output": str(output),
        "model": {"path": str(vision_model("qwen2_5_vl"))},
        "data": {
            "train": {"path": str(tasks / "train.parquet"), "images": "images"},
            "eval": [held_out],
            "max_prompt_tokens": 40,
            "max_response_tokens": 4,
        },
        "reward": f"{Path(__file__).parent / 'rewards.py'}:digit_share",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4, "kl_loss": {"coef": 0.1}},
        "trainer": {"tasks_per_step": 4, "optimizer": {"type": "adamw", "lr": 1e-3}, "duration": "4 steps"},
        "checkpoint": {"every": "2 steps"},
        "record": {"monitors": [], "report": False},
        **sections,
    }


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_5_vl",
        *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES if each != "qwen2_5_vl"),
    ],
)
def test_a_run_resumes_bit_for_bit_and_exports_a_model_for_images(
    tasks: Path, tmp_path: Path, family: str
) -> None:
    def values(name: str, **sections: Any) -> dict[str, Any]:
        found = run_values(tasks, tmp_path / name, model={"path": str(vision_model(family))}, **sections)
        found["data"]["max_prompt_tokens"] = 80
        return found

    whole = strop.train(strop.load(values("whole")))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    resumed = strop.train(strop.load(values("resumed", resume=str(checkpoint))))
    assert whole.model is not None and resumed.model is not None
    first, second = (load_file(model / "model.safetensors") for model in (whole.model, resumed.model))
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = metrics(whole.folder)
    gaps = [row["logprob_diff/mean_abs"] for row in rows if "logprob_diff/mean_abs" in row]
    assert len(gaps) == 4 and max(gaps) < 1e-5
    model = AutoModelForImageTextToText.from_pretrained(whole.model)
    processor = AutoImageProcessor.from_pretrained(whole.model, backend="pil")
    assert AutoTokenizer.from_pretrained(whole.model).chat_template
    pixels = processor(images=[np.zeros((16, 32, 3), np.uint8)], return_tensors="pt")
    for count in ("num_crops", "num_patches"):
        pixels.pop(count, None)
    assert len(model.model.get_image_features(**pixels).pooler_output) > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_responses_of_a_dataset_are_learned_beside_images(
    tasks: Path, tmp_path: Path, family: str, algorithm: str
) -> None:
    rows = pq.read_table(tasks / "train.parquet").to_pylist()
    rows = [{**row, "good": "The number is 34.", "bad": "What is shown"} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    responses = {"response": "good"} if algorithm == "sft" else {"chosen": "good", "rejected": "bad"}
    train = {"path": str(tmp_path / "rows.parquet"), "images": "images", **responses}
    values = run_values(
        tasks,
        tmp_path,
        model={"path": str(vision_model(family))},
        algorithm={"type": algorithm},
        data={"train": train, "max_prompt_tokens": 80, "max_response_tokens": 16},
        trainer={"tasks_per_step": 6, "optimizer": {"type": "adamw", "lr": 1e-3}, "duration": "6 steps"},
    )
    values.pop("reward")
    losses = [row["loss"] for row in metrics(strop.train(strop.load(values)).folder) if "loss" in row]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.01


@pytest.mark.skipif(not GEOMETRY.is_file(), reason="the geometry problems are not here")
def test_geometry_problems_train_for_two_steps(tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path / "model", ["Find x in the triangle."] * 9, family="qwen3_vl")
    data = {
        "train": {"path": str(GEOMETRY), "prompt": "problem", "images": "images", "limit_tasks": 8},
        "images": {"max_pixels": 48 * 48},
        "max_prompt_tokens": 400,
        "max_response_tokens": 6,
        "overlong": "filter",
    }
    trainer = {"tasks_per_step": 2, "duration": "2 steps", "engine": {"device": "cpu"}}
    values = run_values(
        tmp_path,
        tmp_path / "runs",
        model={"path": str(folder)},
        data=data,
        reward="verl_geometry3k",
        trainer=trainer,
    )
    rows = metrics(strop.train(strop.load(values)).folder)
    assert sum("grad_norm" in row for row in rows) == 2


@pytest.mark.parametrize(
    "workflow",
    [
        {"name": "agent", "args": {"function": f"{WORKFLOWS}:agent_with_images"}},
        f"{WORKFLOWS}:tool_with_images",
    ],
    ids=["agent", "tool"],
)
def test_images_of_agents_and_tools_are_trained_on(tasks: Path, tmp_path: Path, workflow: Any) -> None:
    values = run_values(
        tasks,
        tmp_path,
        rollout={"workflow": workflow, "endpoint": {}, "max_sequence_tokens": 100},
        algorithm={"type": "grpo", "rollouts_per_task": 2},
        trainer={"tasks_per_step": 2, "duration": "1 steps"},
        record={"monitors": [], "report": False, "rollouts_every": "1 steps"},
    )
    del values["reward"], values["checkpoint"], values["data"]["eval"]
    folder = strop.train(strop.load(values)).folder
    last = metrics(folder)[-1]
    assert last["rollouts/turns"] == 2 and last["logprob_diff/mean_abs"] < 1e-5
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert [len(row["images"]) for row in rows] == [2] * 4


@pytest.mark.engines
@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
@pytest.mark.parametrize(
    "engine", [pytest.param("vllm", marks=NEEDS_VLLM), pytest.param("sglang", marks=NEEDS_SGLANG)]
)
def test_serving_engines_sample_from_images(
    tasks: Path, tmp_path: Path, engine: str, lora: dict[str, int] | None
) -> None:
    patch_size = 14 if engine == "sglang" else 8  # SGLang's Qwen2.5-VL has no others
    hidden_size = 128  # vLLM needs heads of 32 values
    folder = make_vision_model(
        tmp_path / "model", ["Read."] * 9, hidden_size=hidden_size, patch_size=patch_size
    )
    values = run_values(
        tasks,
        tmp_path / "runs",
        model={"path": str(folder), "lora": lora},
        rollout={"engine": ENGINES[engine]},
    )
    rows = metrics(strop.train(strop.load(values)).folder)
    gaps = [row["logprob_diff/mean_abs"] for row in rows if "logprob_diff/mean_abs" in row]
    assert len(gaps) == 4 and max(gaps) < 1e-5
