"""Predicted time of a trainer's update on H100 GPUs, from parameter counts and published hardware numbers.

    make evidence ARGS=step_time                # updates docs/scaling.md
    .venv/bin/python benchmarks/step_time.py    # prints the tables

Nothing is trained. The time of a micro-batch is the larger of its products and its transfers, as if FSDP2 overlapped
them fully; `EFFICIENCY` is an assumption. `flops_per_token` is compared with torch's FLOP counter in
`tests/training/test_step_time.py`.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scaling import (
    CAPACITY,
    CASES,
    GPUS,
    GPUS_PER_NODE,
    MODELS,
    RUN,
    rank_memory,
    write_model,
)

VOCABULARY = 151_936
SEQUENCE = RUN["data"]["max_prompt_tokens"] + RUN["data"]["max_response_tokens"]
"""Tokens of a sequence; all have the maximum length, which is an upper bound."""
TOKENS = RUN["trainer"]["tasks_per_step"] * RUN["algorithm"]["rollouts_per_task"] * SEQUENCE
MICROBATCH = int(RUN["trainer"]["microbatch"].split()[0])
EFFICIENCY = 0.4
"""Fraction of the peak FLOP/s that products reach; an assumption, not measured."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Published numbers of a GPU and its links; bytes and FLOP per second."""

    flops: float
    """Dense products in bfloat16."""
    memory: float
    """Bandwidth of the GPU's memory."""
    within_node: float
    """Bandwidth of a GPU's links to the others of its node, one direction."""
    between_nodes: float
    """Bandwidth of all network adapters of a node, one direction."""


H100 = Hardware(flops=989.4e12, memory=3.35e12, within_node=450e9, between_nodes=8 * 50e9)
"""H100 SXM of a DGX H100: NVIDIA's data sheets give 1,979 TFLOP/s with sparsity, which is twice the dense rate,
3.35 TB/s, 900 GB/s of NVLink in both directions together, and eight ConnectX-7 adapters of 400 Gb/s."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense transformer that its time depends on."""

    parameters: int
    hidden: int
    layers: int
    kv_fraction: float
    """Number of heads of keys over the number of attention heads."""
    vocabulary: int
    tied: bool
    """Whether the language-model head is the embedding."""


def flops_per_token(shape: Shape, sequence: int) -> float:
    """FLOP of the forward pass per token: products with the weights, and causal attention over `sequence` tokens."""
    embedding = 0 if shape.tied else shape.vocabulary * shape.hidden
    return 2 * (shape.parameters - embedding) + 2 * shape.layers * shape.hidden * sequence


def update_seconds(shape: Shape, ranks: int, sequence_parallel: int, hardware: Hardware) -> dict[str, float]:
    """Seconds of one update's products, transfers and optimizer, and of the whole update.

    Layers are recomputed in the backward pass, which costs four forward passes in all. Each micro-batch gathers the
    bfloat16 weights twice and sums float32 gradients once.
    """
    microbatches = math.ceil(TOKENS / MICROBATCH / (ranks // sequence_parallel))
    tokens = MICROBATCH / sequence_parallel
    products = 4 * flops_per_token(shape, SEQUENCE) * tokens / (hardware.flops * EFFICIENCY)
    others = (ranks - 1) / ranks
    link = (
        hardware.within_node if ranks <= GPUS_PER_NODE else min(hardware.within_node, hardware.between_nodes)
    )
    transfers = shape.parameters * (2 + 2 + 4) * others / link
    # Queries, keys, values and results of each layer, in bfloat16, in the forward, recomputed and backward pass.
    exchanged = 3 * shape.layers * tokens * shape.hidden * 2 * (2 + 2 * shape.kv_fraction)
    exchange = exchanged * (sequence_parallel - 1) / sequence_parallel / hardware.within_node
    # AdamW reads the weight, gradient and two moments in float32, and writes all but the gradient.
    optimizer = shape.parameters / ranks * 4 * (4 + 3) / hardware.memory
    return {
        "products": microbatches * products,
        "transfers": microbatches * (transfers + exchange),
        "optimizer": optimizer,
        # Ulysses' exchanges wait for the products, and are not overlapped.
        "update": microbatches * (max(products, transfers) + exchange) + optimizer,
    }


def shape_of(name: str) -> Shape:
    """Shape of one of the models of `scaling.MODELS`."""
    parameters, (hidden, _, layers, heads, kv_heads), tied = MODELS[name]
    return Shape(parameters, hidden, layers, kv_heads / heads, VOCABULARY, tied)


def table(folder: Path, title: str) -> str:
    """Format a row for each model: seconds of an update where its memory fits; `*` where transfers bound it."""
    of_model, of_engine = CASES[title]
    lines = [f"| model | {' | '.join(map(str, GPUS))} |", f"| --- |{' ---: |' * len(GPUS)}"]
    for name in MODELS:
        cells = []
        for gpus in GPUS:
            need = rank_memory(folder / name, gpus, of_model, of_engine)
            fits = need is not None and need.needed <= CAPACITY
            cells.append(_cell(shape_of(name), gpus, of_engine.get("sequence_parallel", 1)) if fits else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(shape: Shape, gpus: int, sequence_parallel: int) -> str:
    seconds = update_seconds(shape, gpus, sequence_parallel, H100)
    mark = "*" if seconds["transfers"] > seconds["products"] else ""
    return f"{seconds['update']:,.{1 if seconds['update'] < 10 else 0}f}{mark}"


def main() -> None:
    """Print a table for each layout of full fine-tuning."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, entries in MODELS.items():
            write_model(folder / model, *entries)
        for title in list(CASES)[:2]:
            print(f"{title}:\n\n{table(folder, title)}\n")


if __name__ == "__main__":
    main()
