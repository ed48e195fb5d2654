"""Whether a machine multiplies matrices in bfloat16 faster than in float32, as fast, or far more slowly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strop.config.plan.machine import Machine
from strop.config.plan.request import shares_host_memory
from strop.config.schema.inference_engine import NativeEngineConfig
from strop.config.schema.run import Run
from strop.errors import see_troubleshooting

_CPU_INFO = Path("/proc/cpuinfo")
_FAST_INSTRUCTIONS = "amx_bf16"
"""CPU flag of products of tiles in bfloat16. The older `avx512_bf16` made no step faster (docs/lab-log.md)."""
_KERNEL_INSTRUCTIONS = frozenset({"avx512bw", "bf16"})
"""CPU flags, of x86 and of ARM, without which torch has no optimized products in bfloat16, only plain loops."""
_GPUS_WITHOUT = frozenset({"T4", "V100", "P100", "P40", "K80", "M60"})
"""GPUs before Ampere, which have no instructions for it."""


def has_fast_bfloat16(machine: Machine) -> bool:
    """Whether the machine's GPUs, or else this machine's CPU, have instructions for products in bfloat16."""
    if machine.gpus:
        return machine.gpu_name.upper() not in _GPUS_WITHOUT
    return _FAST_INSTRUCTIONS in _cpu_flags()


def slow_bfloat16(run: Run, machine: Machine) -> Iterator[str]:
    """Yield a warning if a run computes in bfloat16 on this machine's CPU, and torch has no optimized products for it.

    Yields nothing on systems other than Linux, which do not tell what their CPU has.
    """
    dtypes: dict[str, str] = {"model.compute_dtype": run.model.compute_dtype or run.model.dtype}
    if isinstance(run.rollout.engine, NativeEngineConfig):
        dtypes["rollout.engine.dtype"] = run.rollout.engine.dtype
    keys = [key for key, dtype in dtypes.items() if dtype == "bfloat16"]
    flags = _cpu_flags()
    if keys and shares_host_memory(run, machine) and flags and not flags & _KERNEL_INSTRUCTIONS:
        yield (
            f"warning: {' and '.join(keys)}: bfloat16, for which this machine's CPU has no instructions. Matrix "
            f"products take tens of times as long as in float32; use that here. {see_troubleshooting('it-is-slow')}"
        )


def _cpu_flags() -> frozenset[str]:
    """The instruction sets of this machine's CPU; empty on other systems than Linux."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
