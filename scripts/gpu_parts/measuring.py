"""Tables, times and the GPU of the parts."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

DENSE_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12}
"""Peak of dense bfloat16 products, by a part of the GPU's name, from NVIDIA's data sheets."""


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table under a title."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def milliseconds(device: torch.device, call: Callable[[], object], repeat: int = 10) -> float:
    """Median duration of a call, after two calls to warm up."""
    found = []
    for number in range(repeat + 2):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        if number >= 2:
            found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Raise an error at every operation that waits for the GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def gpu_name(device: torch.device) -> str:
    """The key of `DENSE_FLOPS` for a GPU; empty for a CPU or an unknown one."""
    if device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(device)
    return next((key for key in DENSE_FLOPS if key in name), "")


def installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None
