"""Machines, from a description such as `2x8xH100-80GB` or from this machine's driver; placement keys, and their
replacement by `--here`.

Placement keys change results only by rounding: devices, nodes, parallel sizes, engines, offload, the
sampler's precision, fused kernels. A run with a placement that this machine does not have is refused; with
`--here` (or STROP_HERE=1) the key is overridden, with a notice.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from strop.config.schema.run import Run, configured_rewards
from strop.errors import ConfigError, PlacementError

GIB = 2**30
_NOTATION = re.compile(r"(?:(\d{1,4})x)?(\d{1,3})x([A-Za-z]\w*)(?:-(\d{1,4})GB)?")


@dataclass(frozen=True, slots=True)
class Node:
    """One computer of a machine."""

    name: str
    gpus: int
    """Number of GPUs, numbered from 0."""
    gpu_bytes: int | None = None
    """Memory of each GPU; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes on which a run's processes are placed."""

    nodes: tuple[Node, ...]
    gpu_name: str = ""
    """Name of the GPUs; empty where it is not known."""
    remark: str = ""
    """Reason why nodes that `--machine` describes are not used; empty if all are."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    def __str__(self) -> str:
        if not self.gpus:
            return "a machine without a GPU"
        counts = {node.gpus for node in self.nodes}
        each = f"{counts.pop()}" if len(counts) == 1 else "up to " + str(max(counts))
        nodes = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        text = f"{nodes} with {each} {self.gpu_name or 'GPUs'}" + (" each" if len(self.nodes) > 1 else "")
        return f"{text} ({self.remark})" if self.remark else text


def uniform_machine(nodes: int, gpus: int, gpu_bytes: int | None = None, gpu_name: str = "") -> Machine:
    """A machine of equal nodes, `node-0`, `node-1` and so on."""
    return Machine(tuple(Node(f"node-{number}", gpus, gpu_bytes) for number in range(nodes)), gpu_name)


def parse_machine(text: str) -> Machine:
    """The machine of a description: `8xH100-80GB`, `2x8xH100-80GB` for two nodes, or `cpu`.

    Without `-80GB` the memory is unknown. Raises ConfigError for any other text.
    """
    if text.strip().lower() == "cpu":
        return Machine((Node("node-0", 0),))
    match = _NOTATION.fullmatch(text.strip())
    if match is None or int(match[2]) == 0 or int(match[1] or 1) == 0:
        raise ConfigError(
            f"--machine {text!r} is not a description of a machine. Write GPUSxNAME-MEMORY, such as 8xH100-80GB; with "
            "several nodes NODESxGPUSxNAME-MEMORY, such as 2x8xH100-80GB; or cpu."
        )
    memory = int(match[4]) * GIB if match[4] else None
    return uniform_machine(int(match[1] or 1), int(match[2]), memory, match[3])


_described: ContextVar[Machine | None] = ContextVar("described machine", default=None)


@contextmanager
def on_machine(machine: Machine | None) -> Iterator[None]:
    """Inside the block `this_machine` is the described machine; with None nothing changes."""
    token = _described.set(machine or _described.get())
    try:
        yield
    finally:
        _described.reset(token)


def described_machine() -> Machine | None:
    """The machine that `--machine` describes; None without the option."""
    return _described.get()


def this_machine() -> Machine:
    """The machine that `--machine` describes, or else this one, from the driver of its GPUs without importing torch.

    Like every program on CUDA, the driver follows CUDA_VISIBLE_DEVICES.
    """
    return _described.get() or _local_machine()


def _local_machine() -> Machine:
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Machine((Node("this machine", 0),))
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return Machine((Node("this machine", 0),))
    sizes = [_memory(driver, number) for number in range(count.value)]
    known = [size for size in sizes if size is not None]
    memory = min(known) if known and len(known) == len(sizes) else None
    return Machine((Node("this machine", count.value, memory),))


def _memory(driver: ctypes.CDLL, number: int) -> int | None:
    device, size = ctypes.c_int(0), ctypes.c_size_t(0)
    if driver.cuDeviceGet(ctypes.byref(device), number) != 0:
        return None
    return size.value if driver.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0 else None


@dataclass(frozen=True, slots=True)
class OverriddenKey:
    """Placement key that `--here` overrides."""

    key: str
    value: Any
    replacement: str
    """Replacement on this machine."""

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.replacement}"


def here_requested(flag: bool) -> bool:
    """Return whether `--here` or STROP_HERE is set. Raises ConfigError for an unknown value of STROP_HERE."""
    value = os.environ.get("STROP_HERE", "").strip().lower()
    if value not in ("", "0", "1", "true", "false"):
        raise ConfigError(
            f"The environment variable STROP_HERE is {value!r}; write STROP_HERE=1, or unset it."
        )
    return flag or value in ("1", "true")


def count_cuda_devices() -> int:
    """Return the number of GPUs of this machine, or of the one that `--machine` describes, on one node."""
    return max(node.gpus for node in this_machine().nodes)


def placement_error(lacking: Sequence[OverriddenKey]) -> PlacementError:
    """Return the error for a placement that this machine does not have; it names every such key and
    `--here`."""
    listed = "; ".join(str(item) for item in lacking)
    return PlacementError(
        "This run asks for a placement that this machine, or this version of Strop, does not have. With "
        "--here (or STROP_HERE=1) the run uses this machine, and all other keys keep their meaning. Keys "
        f"that --here would override, with the replacement: {listed}."
    )


def configured_devices(run: Run) -> Mapping[str, str]:
    """Return the device of each of the run's models, by its key."""
    scoring = {
        f"{where}.models.{index}.device": model.device
        for where, reward in configured_rewards(run).items()
        for index, model in enumerate(reward.models)
    }
    return {"trainer.engine.device": run.trainer.engine.device, **scoring}
