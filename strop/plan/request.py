"""Request of a run to a machine: its processes, the GPUs of each, their memory and bundles, and bfloat16.

Ranks that divide tokens or layers (`sequence_parallel` x `tensor_parallel`) exchange data in every layer, so that
one bundle holds a whole group of them. Ray places the bundles, on as few nodes as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from strop.config.deepspeed import read_config, zero_settings
from strop.config.local_workers import local_workers, worker_cache_tokens
from strop.config.machine import Machine, described_machine
from strop.config.model_files import folder_takes_images, is_quantized
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import (
    AutoEngineConfig,
    AuxiliaryModelConfig,
    NativeEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
)
from strop.config.schema.run import RayClusterConfig, Run, configured_rewards
from strop.config.schema.trainer import (
    DeepSpeedEngineConfig,
    Fsdp2EngineConfig,
    LocalEngineConfig,
    TrainingEngineConfig,
)
from strop.config.units import Amount
from strop.errors import PlacementError, see_troubleshooting
from strop.plan import memory
from strop.plan.memory import MemoryNeed, ModelSize, read_model_size


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Resources of one node of a cluster, all or those that are free."""

    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources on one node for some processes of equal size."""

    processes: int
    """Number of processes, each with one CPU."""
    gpus: float
    """GPUs of all of them."""

    @property
    def cpus(self) -> int:
        """CPUs of all of them."""
        return self.processes


def ranks_per_group(engine: TrainingEngineConfig) -> int:
    """Number of adjacent ranks that divide the tokens or the layers of one micro-batch."""
    if isinstance(engine, LocalEngineConfig):
        return 1
    tensor_parallel = engine.tensor_parallel if isinstance(engine, Fsdp2EngineConfig) else 1
    return engine.sequence_parallel * tensor_parallel


def fitting_group(group: int, largest: int) -> int:
    """The part of a group that is kept on one node: all of it, or if no node has places for that many (`largest`), the
    largest equal part that fits."""
    return max(size for size in range(1, group + 1) if group % size == 0 and size <= max(largest, 1))


def rank_bundles(ranks: int, group: int, gpus: float, nodes: Sequence[NodeResources]) -> tuple[Bundle, ...]:
    """The bundles of a trainer's ranks, each of which has a CPU and `gpus` GPUs, on a cluster of these nodes."""
    places = [int(min(node.cpus, node.gpus / gpus if gpus else node.cpus)) for node in nodes]
    size = fitting_group(group, max(places, default=1))
    return (Bundle(size, size * gpus),) * (ranks // size)


def order_ranks(own: int, size: int, nodes: Mapping[int, str]) -> tuple[int, ...]:
    """The bundle of each rank, by rank: first those of the bundle `own`, which has the first rank, then those of other
    bundles on its node, then node by node.

    `nodes` has the node of each bundle that can be used; `size` is the number of ranks in a bundle.
    """
    home = nodes[own]
    ordered = sorted(nodes, key=lambda index: (index != own, nodes[index] != home, nodes[index], index))
    return tuple(index for index in ordered for _ in range(size))


def describe_bundles(bundles: Sequence[Bundle]) -> str:
    """The bundles as a part of a sentence, such as `2 times 2 CPUs and 4 GPUs of one node, and 1 CPU`."""
    counts = {bundle: sum(each == bundle for each in bundles) for bundle in dict.fromkeys(bundles)}
    return ", and ".join(f"{count} times {_resources(bundle)}" for bundle, count in counts.items())


def describe_nodes(free: Sequence[NodeResources], total: Sequence[NodeResources]) -> str:
    """The free resources of each node, of all that it has."""
    return "; ".join(
        f"{node.name} has {have.cpus:g} of {node.cpus:g} CPUs and {have.gpus:g} of {node.gpus:g} GPUs free"
        for node, have in zip(total, free, strict=True)
    )


def _resources(bundle: Bundle) -> str:
    gpus = f" and {bundle.gpus:g} GPUs" if bundle.gpus else ""
    one = " of one node" if bundle.processes > 1 or bundle.gpus > 1 else ""
    return f"{bundle.cpus} CPUs{gpus}{one}"


Role = Literal["trainer", "engine", "explorer"]
_PlannedEngine = NativeEngineConfig | ServingEngineConfig | ServerConnectionConfig
_SERVING_FRACTION = 0.9
"""Fraction of a GPU that vLLM takes by default, and about what SGLang takes."""


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """One process that needs GPUs."""

    name: str
    role: Role
    gpus: int
    """Number of GPUs, all of one node."""
    contents: tuple[str, ...] = ()
    """Models that it has."""
    memory: MemoryNeed | None = None
    """Memory on each of its GPUs; None where the size of a model is not known."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """All processes of a run that need GPUs."""

    ranks: tuple[ProcessRequest, ...]
    """The trainer's ranks, each with one GPU."""
    samplers: tuple[ProcessRequest, ...]
    """The engines, or the explorer with its engine; all with the same number of GPUs. Empty if the trainer's first
    rank samples."""
    colocated: bool | None = None
    """Whether the samplers share the GPUs of the ranks; None if only too few GPUs make them share."""
    in_turns: bool = True
    """Whether training and sampling take turns, so that one needs its working memory while the other is idle."""
    shares_single_gpu_only: bool = False
    """Whether sharing is possible on one GPU only, as on Ray."""
    on_cpu: bool = False
    """Whether no process uses a GPU."""
    ranks_per_group: int = 1
    """Number of adjacent ranks that communicate in every layer (`sequence_parallel` x `tensor_parallel`)."""


def request_of(run: Run, machine: Machine) -> PlacementRequest:
    """The request of a run to a machine. Raises PlacementError for an engine that cannot be split as it says."""
    engine = _engine(run, machine)
    offline = run.algorithm.is_offline
    on_cpu = shares_host_memory(run, machine)
    is_local = isinstance(run.trainer.engine, LocalEngineConfig)
    workers = local_workers(run).count if is_local and on_cpu else 1
    samplers = () if offline else tuple(_samplers(run, engine, workers))
    ranks = tuple(_ranks(run, engine, workers, samples=not samplers and not offline))
    return PlacementRequest(
        ranks=tuple(map(_with_libraries, ranks)) if on_cpu else ranks,
        samplers=tuple(map(_with_libraries, samplers)) if on_cpu else samplers,
        colocated=run.rollout.colocated,
        in_turns=not run.is_distributed,
        shares_single_gpu_only=isinstance(run.cluster, RayClusterConfig),
        on_cpu=run.trainer.engine.device == "cpu",
        ranks_per_group=ranks_per_group(run.trainer.engine),
    )


def shares_host_memory(run: Run, machine: Machine) -> bool:
    """Whether the run's processes share the memory of a computer instead of taking that of GPUs."""
    return run.trainer.engine.device == "cpu" or not machine.gpus


def _with_libraries(process: ProcessRequest) -> ProcessRequest:
    return (
        process if process.memory is None else replace(process, memory=memory.with_libraries(process.memory))
    )


def _engine(run: Run, machine: Machine) -> _PlannedEngine:
    """The engine, after `auto` has been decided for the machine."""
    section = run.rollout.engine
    if not isinstance(section, AutoEngineConfig):
        return section
    has_vllm = described_machine() is not None or find_spec("vllm") is not None
    uses_vllm = machine.gpus and has_vllm and not folder_takes_images(run.model.path)
    uses_vllm = uses_vllm and not is_quantized(run.model)
    return section.vllm if uses_vllm else section.native


def _ranks(run: Run, engine: _PlannedEngine, workers: int, *, samples: bool) -> Iterator[ProcessRequest]:
    """The trainer's ranks; the first one has the services too where it also explores."""
    number = run.trainer.engine.ranks
    models = dict(_trained_models(run))
    shared = ProcessRequest("", "trainer", 1, tuple(models), _total(list(models.values())))
    for rank in range(number):
        request = replace(shared, name="trainer" if rank == 0 else f"trainer rank {rank}")
        if rank == 0 and not run.is_distributed:
            extra = dict(_services(run))
            if samples and isinstance(engine, NativeEngineConfig):
                extra["sampler"] = _native_memory(run, engine)
            request = replace(
                request,
                contents=(*models, *extra),
                memory=_total([*models.values(), *extra.values()]),
            )
        yield request
    working = [None if need is None else memory.further_worker(need) for need in models.values()]
    for worker in range(1, workers):
        yield replace(shared, name=f"trainer worker {worker}", memory=_total(working))


def _trained_models(run: Run) -> Iterator[tuple[str, MemoryNeed | None]]:
    trainer, algorithm = run.trainer, run.algorithm
    ranks, layout = trainer.engine.ranks, memory.RankLayout.of(trainer.engine)
    longest = run.max_sequence_tokens
    zero = None
    if isinstance(trainer.engine, DeepSpeedEngineConfig):
        zero = zero_settings(trainer.engine, read_config(trainer.engine))

    def trained(model: ModelConfig, optimizer: str, microbatch: Amount) -> MemoryNeed | None:
        size = read_model_size(model.path)
        if size is None:
            return None
        if zero is not None:
            return memory.zero_model(size, model, optimizer, ranks, zero, microbatch, longest)
        return memory.trained_model(size, model, optimizer, layout, microbatch, longest)

    yield "policy", trained(run.model, trainer.optimizer.type, trainer.microbatch)
    for key, section in algorithm.trained_models.items():
        model, name = section.model or run.model, key.replace("_", " ")
        yield name, trained(model, section.optimizer.type, section.microbatch or trainer.microbatch)
        if section.has_reference and model.lora is None:
            yield f"{name}'s reference", _frozen(model, layout)
    if algorithm.needs_reference_model and run.model.lora is None:
        yield "reference", _frozen(run.model, layout)
    for teacher in algorithm.teachers:
        files = run.model.model_copy(update={"path": teacher.path, "lora": None})
        yield f"teacher {teacher.path}", _frozen(files, layout)


def _frozen(model: ModelConfig, layout: memory.RankLayout) -> MemoryNeed | None:
    size = read_model_size(model.path)
    return None if size is None else memory.frozen_model(size, model, layout)


def _samplers(run: Run, engine: _PlannedEngine, workers: int) -> Iterator[ProcessRequest]:
    """The engines in processes of their own, or the explorer with its engine."""
    if isinstance(engine, ServingEngineConfig):
        need = _serving_memory(run, engine)
        number = run.rollout.pool.engines if run.rollout.pool else 1
        for each in range(number):
            yield ProcessRequest(f"engine {each}", "engine", engine.devices, _split(engine), need)
        return
    if isinstance(engine, ServerConnectionConfig):  # the server has GPUs of its own
        return
    need = _native_memory(run, engine)
    if run.rollout.pool is None and not run.is_distributed and workers > 1:
        tokens = worker_cache_tokens(engine.kv_cache_tokens, workers, run.max_sequence_tokens)
        need = _native_memory(run, engine.model_copy(update={"kv_cache_tokens": tokens}))
        for each in range(workers):
            yield ProcessRequest(f"engine {each}", "engine", 1, ("sampler",), need)
    elif run.rollout.pool is not None:
        for each in range(run.rollout.pool.engines):
            yield ProcessRequest(f"engine {each}", "engine", 1, ("sampler",), need)
    elif run.is_distributed:
        services = dict(_services(run))
        yield ProcessRequest(
            "explorer", "explorer", 1, ("sampler", *services), _total([need, *services.values()])
        )


def _split(engine: ServingEngineConfig) -> tuple[str, ...]:
    sizes = {"tensor": engine.tensor_parallel, "pipeline": engine.pipeline_parallel}
    return (engine.library, *(f"{kind} parallel {size}" for kind, size in sizes.items() if size > 1))


def _native_memory(run: Run, engine: NativeEngineConfig) -> MemoryNeed | None:
    """In the trainer's process the weights are shared where the data type is the same and no adapter is merged."""
    size = read_model_size(run.model.path)
    if size is None:
        return None
    dtype = engine.dtype if engine.dtype != "model" else run.model.compute_dtype or run.model.dtype
    need = memory.engine(size, dtype, 1, engine.kv_cache_tokens)
    is_separate = run.is_distributed or run.rollout.pool is not None
    is_merged = run.model.lora is not None and engine.merge_lora
    has_weights = dtype in (run.model.dtype, run.model.compute_dtype) and not is_merged
    return need if is_separate or not has_weights else memory.sharing_weights(need)


def _serving_memory(run: Run, engine: ServingEngineConfig) -> MemoryNeed | None:
    size = read_model_size(run.model.path)
    if size is None:
        return None
    if size.heads % engine.tensor_parallel:
        fitting = [number for number in range(1, size.heads + 1) if size.heads % number == 0]
        raise PlacementError(
            f"rollout.engine.tensor_parallel is {engine.tensor_parallel}, which does not divide the {size.heads} "
            f"attention heads of {run.model.path}. Write one of {', '.join(map(str, fitting))}."
        )
    if size.layers < engine.pipeline_parallel:
        raise PlacementError(
            f"rollout.engine.pipeline_parallel is {engine.pipeline_parallel}, and {run.model.path} has {size.layers} "
            "layers. Write no more stages than layers."
        )
    dtype = engine.dtype if engine.dtype != "model" else run.model.compute_dtype or run.model.dtype
    need = memory.engine(size, dtype, engine.devices, engine.sequence_limit or run.max_sequence_tokens)
    fraction = engine.memory_fraction or _SERVING_FRACTION
    return replace(
        need,
        fraction=fraction,
        fraction_key=f"rollout.engine.{engine.memory_field}",
        is_released=run.releases_engine_memory,
    )


def _services(run: Run) -> Iterator[tuple[str, MemoryNeed | None]]:
    """Auxiliary models and reward models, which the exploring process has."""
    for auxiliary in run.rollout.auxiliary_models:
        size = read_model_size(auxiliary.path) if auxiliary.device != "cpu" else None
        if auxiliary.device != "cpu":
            need = None if size is None else _auxiliary_need(auxiliary, size)
            yield f"auxiliary model {auxiliary.name}", need
    for reward in configured_rewards(run).values():
        for model in reward.models:
            if model.device != "cpu":
                size = read_model_size(model.path)
                need = None if size is None else memory.engine(size, model.dtype, 1, 0)
                yield f"reward model {model.name}", need


def _auxiliary_need(auxiliary: AuxiliaryModelConfig, size: ModelSize) -> MemoryNeed:
    """Memory that an auxiliary model's engine needs; of a serving engine, that of one sequence."""
    engine = auxiliary.engine
    if isinstance(engine, NativeEngineConfig):
        return memory.engine(size, auxiliary.dtype, 1, engine.kv_cache_tokens)
    dtype = engine.dtype if engine.dtype != "model" else auxiliary.dtype
    return memory.engine(size, dtype, engine.devices, engine.sequence_limit or 0)


def _total(needs: list[MemoryNeed | None]) -> MemoryNeed | None:
    known = [need for need in needs if need is not None]
    return memory.total(known) if known and len(known) == len(needs) else None


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
