"""Names of the files that hold a training engine's state in a checkpoint."""

from __future__ import annotations

from pathlib import Path

WEIGHTS_FILE = "weights.safetensors"
"""Trained weights: all of them, or with LoRA the adapter's."""
OPTIMIZER_TENSORS_FILE = "optimizer.safetensors"
"""Tensors of the optimizer's state."""
OPTIMIZER_SCALARS_FILE = "optimizer.json"
"""Numbers of the optimizer's state."""
REFERENCE_FILE = "reference.safetensors"
"""Weights of a reference model that changes (`algorithm.reference_sync`)."""
RNG_FILE = "rng.safetensors"
"""States of torch's random generators."""


def shard_file_name(file: str, rank: int, ranks: int) -> str:
    """File of one rank's shards, numbered like Hugging Face's: `weights-00001-of-00002.safetensors`."""
    if ranks == 1:
        return file
    path = Path(file)
    return f"{path.stem}-{rank + 1:05d}-of-{ranks:05d}{path.suffix}"


def rng_file_name(rank: int) -> str:
    """File of a rank's random state."""
    return f"rank-{rank}-{RNG_FILE}" if rank else RNG_FILE
