"""Whether a machine multiplies matrices faster in bfloat16 than in float32."""

from __future__ import annotations

from pathlib import Path

from strop.config.plan.machine import Machine

_CPU_INFO = Path("/proc/cpuinfo")
_CPU_INSTRUCTIONS = "amx_bf16"
"""CPU flag of products of tiles in bfloat16. The older `avx512_bf16` made no step faster (docs/lab-log.md)."""
_GPUS_WITHOUT = frozenset({"T4", "V100", "P100", "P40", "K80", "M60"})
"""GPUs before Ampere, which have no instructions for it."""


def has_fast_bfloat16(machine: Machine) -> bool:
    """Whether the machine's GPUs, or else this machine's CPU, have instructions for products in bfloat16."""
    if machine.gpus:
        return machine.gpu_name.upper() not in _GPUS_WITHOUT
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:  # another system than Linux
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return _CPU_INSTRUCTIONS in flags.split()
