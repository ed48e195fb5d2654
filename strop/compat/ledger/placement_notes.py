"""Notes that several dialects' placement keys share: what Strop does instead of the requested placement."""

from __future__ import annotations

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
