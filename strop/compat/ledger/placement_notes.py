"""Notes and rows of placement keys that several tools share: what Strop does instead of the requested placement."""

from __future__ import annotations

from dataclasses import replace

from strop.compat.ledger.key_mapping import ForeignValues, InactiveCheck, KeyMapping, always, placement
from strop.compat.ledger.value_types import ValueType

ONE_MACHINE = "a single process on this machine"
ONE_GPU = f"{ONE_MACHINE}'s GPU, or on its CPU if there is no GPU"
NO_SHARDS = "a single process holds the whole model"
ONE_TRAINER = "a single process trains"
NO_DEEPSPEED = "a single process trains without DeepSpeed"
NATIVE_SAMPLER = "the native sampler does not use it"
TRAINER_MICRO_BATCHES = "log-probs are computed in the trainer's micro-batches"
ALWAYS_PACKED = "sequences are always packed without padding, which does not change results"
OWN_KERNELS = "Strop's own kernels are used"
NO_QUANTIZED_TRAINING = (
    "quantization-aware training rounds the weights to few bits in each forward pass; Strop trains the weights as they "
    "are; leave it False"
)
NO_RAY = "a single process runs, without Ray"


_REPLACED = (
    "Strop's own functions take the place of these kernels, with the same results: RMS norm, gated MLP, and a head "
    "that stores no logits"
)


def fused_kernels(
    key: str, *, value_type: ValueType | None = None, inactive: InactiveCheck | None = None
) -> KeyMapping:
    """A switch for fused kernels of other libraries, such as Liger's, off by default; a notice says what computes
    instead."""

    def notice(foreign: ForeignValues) -> str | None:
        return _REPLACED if foreign[key] else None

    row = placement(key, False, _REPLACED, supported=always, value_type=value_type, inactive=inactive)
    return replace(row, warn=notice)
