"""Ledger rows of verl's GPUs: `trainer.nnodes`, `trainer.n_gpus_per_node` and `trainer.device`.

verl trains and samples on the same GPUs in turns (its hybrid engine). Where they are set and the machine has them, the
trainer has a rank on each of them and the serving engines share them. Several nodes are a Ray cluster, whose GPUs are
divided: half of them for the engines, the others for the ranks. All other placement keys then need no replacement: they
change memory and speed only, and a notice says what is done instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    NO_SHARDS,
    ONE_GPU,
    ONE_MACHINE,
    ONE_TRAINER,
    UNSET,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    mapped,
    one_of,
    only,
    placement,
    written_by,
)
from strop.compat.verl.switches import serving_engine
from strop.config.machine import count_cuda_devices, described_machine
from strop.config.schema import Run
from strop.config.schema.rollout import ServingEngineConfig
from strop.config.schema.run import RayClusterConfig


def devices_per_engine(foreign: ForeignValues) -> int:
    """Number of GPUs of one engine; 1 for the native sampler."""
    name = serving_engine(foreign)
    sizes = {
        "vllm": ("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        "sglang": ("tensor_model_parallel_size",),
    }
    return prod(int(foreign[f"actor_rollout_ref.rollout.{size}"]) for size in sizes.get(name or "", ()))


_NODES, _GPUS, _DEVICE = "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.device"
_RELEASE = "actor_rollout_ref.rollout.free_cache_engine"
_DATA_PARALLEL = "actor_rollout_ref.rollout.data_parallel_size"
_HARDWARE = (
    _NODES,
    _GPUS,
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    _DATA_PARALLEL,
)
"""Keys that ask for hardware or an engine; where it lacks, no notice replaces it."""
_RELEASING = ("vllm", "sglang")
"""Engines that free their memory between two phases."""
_WITH_RANKS = {
    NO_SHARDS: "the trainer's ranks hold shards of the model (FSDP2)",
    ONE_TRAINER: "FSDP2 trains on the trainer's ranks",
}
"""Notes on a single process, and what they are where the trainer has ranks."""


def uses_gpus(foreign: ForeignValues) -> bool:
    """Whether the run uses the GPUs that the configuration asks for: they are set and present, and `--here` does not
    replace them."""
    return foreign.is_set(_GPUS) and not foreign.here and _are_present(foreign)


def _are_present(foreign: ForeignValues) -> bool:
    """One node's GPUs are those of this machine; several nodes are a Ray cluster, which the start of the run checks."""
    nodes, gpus = foreign[_NODES], foreign[_GPUS]
    if _on_cpu(foreign):
        return bool(nodes == 1 and gpus > 0)
    if nodes == 1:
        return bool(0 < gpus <= count_cuda_devices())
    machine = described_machine()
    if machine is None:
        return bool(os.environ.get("RAY_ADDRESS"))
    return sum(node.gpus >= gpus for node in machine.nodes) >= nodes


def _on_cpu(foreign: ForeignValues) -> bool:
    """Whether the ranks are processes that share the CPU of this machine."""
    return bool(foreign[_DEVICE] == "cpu")


def write_gpus(run: Run) -> Mapping[str, Any]:
    """Write the number of GPUs of a cluster, or of the trainer's ranks that share them with the engines."""
    if isinstance(run.cluster, RayClusterConfig):
        return {_NODES: run.cluster.nodes, _GPUS: run.cluster.gpus_per_node}
    if run.trainer.engine.device == "cpu":
        return {_DEVICE: "cpu", _NODES: 1, _GPUS: run.trainer.engine.ranks} | _write_data_parallel(run)
    if not run.rollout.colocated:
        return _write_data_parallel(run)
    return {_GPUS: run.trainer.engine.ranks, _RELEASE: run.releases_engine_memory}


def _write_data_parallel(run: Run) -> dict[str, Any]:
    """Write several serving engines that do not share the trainer's GPUs as data-parallel ranks."""
    if run.rollout.pool is None or not isinstance(run.rollout.engine, ServingEngineConfig):
        return {}
    return {_DATA_PARALLEL: run.rollout.pool.engines}


@written_by(write_gpus, off={_GPUS: UNSET, _DATA_PARALLEL: 1})
def gpus(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the GPUs: ranks of the trainer, and the number of engines."""
    if not uses_gpus(foreign):
        return _data_parallel(foreign)
    nodes, per_node = foreign[_NODES], foreign[_GPUS]
    if _on_cpu(foreign):
        return _ranks(per_node) | {"trainer.engine.device": "cpu"} | _data_parallel(foreign)
    each = devices_per_engine(foreign)
    if each > per_node:
        raise foreign.error_for(
            "actor_rollout_ref.rollout.tensor_model_parallel_size",
            f"each engine needs {each} GPUs of one node (tensor_model_parallel_size x "
            f"pipeline_model_parallel_size), and {_GPUS} is {per_node}; write smaller sizes.",
        )
    if nodes == 1:
        return _on_one_node(per_node, each, serving_engine(foreign), bool(foreign[_RELEASE]))
    total = nodes * per_node
    engines = max(1, min(total // 2 // each, nodes * (per_node // each)))
    settings: dict[str, Any] = {
        "cluster.type": "ray",
        "cluster.address": "auto",
        "cluster.nodes": nodes,
        "cluster.gpus_per_node": per_node,
        "rollout.pool.engines": engines,
    }
    return settings | _ranks(total - engines * each)


def _data_parallel(foreign: ForeignValues) -> dict[str, Any]:
    size = foreign[_DATA_PARALLEL] if serving_engine(foreign) is not None else 1
    return {} if size == 1 else {"rollout.pool.engines": size}


def _on_one_node(gpus: int, each: int, engine: str | None, releases: bool) -> dict[str, Any]:
    if engine is None:
        return _ranks(gpus)
    sharing = {
        "rollout.pool.engines": gpus // each,
        "rollout.colocated": True,
        "rollout.release_memory": releases and engine in _RELEASING,
    }
    return _ranks(gpus) | sharing


def _ranks(number: int) -> dict[str, Any]:
    return {} if number == 1 else {"trainer.engine.type": "fsdp2", "trainer.engine.ranks": number}


def one_gpu(foreign: ForeignValues, value: Any) -> bool:
    """Check that supports one GPU on a machine that has a GPU, because a single process trains."""
    return bool(value == 1) and count_cuda_devices() > 0


def _or_present(native: SupportCheck) -> SupportCheck:
    return lambda foreign, value: uses_gpus(foreign) or native(foreign, value)


def with_gpus(row: KeyMapping) -> KeyMapping:
    """The row of a key that needs no replacement where the run uses its GPUs; a notice says what is done instead."""
    native = row.supported
    if not row.is_placement or row.key in _HARDWARE or native is None:
        return row

    if row.fields and row.fields[0].startswith("trainer.engine."):
        return replace(row, supported=_or_present(native))

    def notice(foreign: ForeignValues) -> str | None:
        value = foreign[row.key]
        if not uses_gpus(foreign) or (native(foreign, value) and (row.fields or value == row.default)):
            return None
        return f"without effect: {_WITH_RANKS.get(row.note, row.note)}"

    return replace(row, supported=_or_present(native), warn=notice)


def _not_shared(foreign: ForeignValues) -> str | None:
    if uses_gpus(foreign) and serving_engine(foreign) in _RELEASING and foreign[_NODES] == 1:
        return None
    return "no engine of vLLM or SGLang shares GPUs with the trainer"


RELEASE = mapped(
    _RELEASE, True, "rollout.release_memory", read=gpus, value_type=BOOLEAN, inactive=_not_shared
)
DATA_PARALLEL = placement(
    _DATA_PARALLEL,
    1,
    "each rank is an engine of its own, and engines fill all of n_gpus_per_node where it is set; with --here, there is "
    "one engine",
    supported=lambda foreign, value: value == 1 or serving_engine(foreign) is not None,
    fields=("rollout.pool.engines",),
    read=gpus,
)
NODES = placement(
    _NODES,
    1,
    f"{ONE_MACHINE}; several nodes need a running Ray cluster (RAY_ADDRESS)",
    supported=_or_present(only(1)),
    fields=("cluster.type", "cluster.nodes"),
    read=gpus,
)
GPUS = placement(
    _GPUS,
    8,
    f"{ONE_GPU}; a rank of the trainer on each of them needs a machine that has this number of GPUs",
    supported=_or_present(one_gpu),
    fields=("trainer.engine", "rollout.pool.engines", "rollout.colocated", "cluster.gpus_per_node"),
    read=gpus,
)
DEVICE = placement(
    _DEVICE,
    "cuda",
    "this machine's GPU, or its CPU if there is no GPU",
    value_type=one_of("cuda", "cpu", "npu"),
    supported=only("cuda"),
    fields=("trainer.engine.device",),
    read=gpus,
)
