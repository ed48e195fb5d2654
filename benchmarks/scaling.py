"""Memory of a training rank for models of 0.5B to 72B parameters on 1 to 512 GPUs, by the formulas of `strop plan`.

    make evidence ARGS=scaling                # updates docs/scaling.md
    .venv/bin/python benchmarks/scaling.py    # prints the tables

Nothing is trained: a model is a config.json, and the header of a safetensors file, with the published sizes of Qwen2.5.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import strop
from strop.config.machine import Machine, uniform_machine
from strop.plan.memory import MemoryNeed
from strop.plan.request import request_of

GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GPUS_PER_NODE = 8
GIB = 2**30
CAPACITY = 72 * GIB
"""Memory of an 80 GB GPU without CUDA's context, communication buffers and fragments."""

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
MODELS = {
    # parameters, the sizes, and whether the output matrix is the embedding
    "0.5B": (494_032_768, (896, 4864, 24, 14, 2), True),
    "1.5B": (1_543_714_304, (1536, 8960, 28, 12, 2), True),
    "7B": (7_615_616_512, (3584, 18944, 28, 28, 4), False),
    "14B": (14_770_033_664, (5120, 13824, 48, 40, 8), False),
    "32B": (32_763_876_352, (5120, 27648, 64, 40, 8), False),
    "72B": (72_706_203_648, (8192, 29568, 80, 64, 8), False),
}
RUN: dict[str, Any] = {
    "name": "scaling",
    "data": {"train": {"path": "prompts.parquet"}, "max_prompt_tokens": 1024, "max_response_tokens": 7168},
    "reward": "math",
    "rollout": {"engine": {"type": "vllm"}},
    "algorithm": {"type": "grpo", "rollouts_per_task": 8},
    "trainer": {"tasks_per_step": 64, "microbatch": "16384 tokens", "duration": "1 steps"},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "All weights, FSDP2": ({}, {}),
    "All weights, FSDP2, sequences divided over 8 ranks": ({}, {"sequence_parallel": 8}),
    "LoRA of rank 64, FSDP2": ({"lora": {"rank": 64}}, {}),
}
"""Settings of the model and of the training engine, by title."""


def write_model(folder: Path, parameters: int, sizes: tuple[int, ...], tied: bool) -> None:
    """Write the files that `strop plan` reads of a model."""
    config = dict(zip(SIZES, sizes, strict=True)) | {"vocab_size": 151_936, "tie_word_embeddings": tied}
    header = json.dumps(
        {"weights": {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 0]}}
    ).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def rank_memory(
    model: Path, gpus: int, of_model: Mapping[str, Any], of_engine: Mapping[str, Any]
) -> MemoryNeed | None:
    """Memory of one rank; None where the ranks cannot be divided as the engine's settings ask."""
    if gpus % of_engine.get("sequence_parallel", 1):
        return None
    settings = {"path": str(model), "compute_dtype": "bfloat16", "gradient_checkpointing": True, **of_model}
    engine = {"type": "fsdp2", "ranks": gpus, **of_engine} if gpus > 1 else {"type": "local"}
    run = strop.load({**RUN, "model": settings, "trainer": {**RUN["trainer"], "engine": engine}}).runs[0].run
    return request_of(run, _machine(gpus)).ranks[0].memory


def _machine(gpus: int) -> Machine:
    each = min(gpus, GPUS_PER_NODE)
    return uniform_machine(gpus // each, each, 80 * GIB, "80GB")


def table(folder: Path, of_model: Mapping[str, Any], of_engine: Mapping[str, Any]) -> str:
    """Format a row for each model: GiB per GPU, bold where they fit."""
    lines = [f"| model | {' | '.join(map(str, GPUS))} |", f"| --- |{' ---: |' * len(GPUS)}"]
    for name in MODELS:
        needs = [rank_memory(folder / name, gpus, of_model, of_engine) for gpus in GPUS]
        cells = ["" if need is None else _cell(need.needed) for need in needs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(needed: int) -> str:
    text = f"{needed / GIB:.0f}"
    return f"**{text}**" if needed <= CAPACITY else text


def main() -> None:
    """Print a table for each case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, entries in MODELS.items():
            write_model(folder / model, *entries)
        for title, (of_model, of_engine) in CASES.items():
            print(f"{title}:\n\n{table(folder, of_model, of_engine)}\n")


if __name__ == "__main__":
    main()
