"""Placement of every process: a pure function from a machine and a run's request, and the plan as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from strop.config.machine import GIB, Machine, Node, described_machine, this_machine, uniform_machine
from strop.config.schema.run import SINGLE_ROLE_MODES, RayClusterConfig, Run
from strop.errors import PlacementError
from strop.plan.request import PlacementRequest, ProcessRequest, fitting_group, request_of


@dataclass(frozen=True, slots=True)
class PlacedProcess:
    """One process on its GPUs."""

    process: ProcessRequest
    node: Node
    gpus: tuple[int, ...]
    """Numbers of its GPUs on the node; empty on the CPU."""


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The place of every process of a run."""

    machine: Machine
    processes: tuple[PlacedProcess, ...]
    """The trainer's ranks, then the engines or the explorer."""
    is_shared: bool
    """Whether engines share GPUs with the trainer's ranks."""
    in_turns: bool
    """Whether training and sampling take turns."""

    @property
    def samplers(self) -> tuple[PlacedProcess, ...]:
        """The engines, or the explorer with its engine."""
        return tuple(placed for placed in self.processes if placed.process.role != "trainer")


def plan_placement(request: PlacementRequest, machine: Machine) -> PlacementPlan:
    """Place every process once; the GPUs of one engine are on one node, and so are those of a group of ranks that
    divide tokens or layers, unless no node has enough.

    Ranks and engines get GPUs of their own if the machine has enough. Otherwise, or with `colocated`, the engines share
    the GPUs of the ranks; a rank never shares its GPU with another rank. Raises PlacementError that says what is
    missing: GPUs, a node with enough of them for one engine, or memory.
    """
    if request.on_cpu or not machine.gpus:
        placed = [
            PlacedProcess(process, machine.nodes[0], ()) for process in (*request.ranks, *request.samplers)
        ]
        return PlacementPlan(machine, tuple(placed), is_shared=False, in_turns=request.in_turns)
    _check_counts(request, machine)
    apart = None if request.colocated and request.samplers else _place_apart(request, machine)
    if apart is not None:
        processes, is_shared = apart, False
    elif request.colocated is False or (request.shares_single_gpu_only and machine.gpus > 1):
        raise _too_few(request, machine)
    else:
        processes, is_shared = _place_shared(request, machine), bool(request.samplers)
    plan = PlacementPlan(machine, tuple(processes), is_shared, request.in_turns)
    _check_memory(plan)
    return plan


def _check_counts(request: PlacementRequest, machine: Machine) -> None:
    if len(request.ranks) > machine.gpus:
        raise PlacementError(
            f"The trainer needs {_gpus(len(request.ranks))}, one for each rank (trainer.engine.ranks); there is "
            f"{machine}. Write fewer ranks, or use a larger machine."
        )
    largest = max(node.gpus for node in machine.nodes)
    group = fitting_group(request.ranks_per_group, largest)
    if sum(node.gpus // group for node in machine.nodes) * group < len(request.ranks):
        raise PlacementError(
            f"The trainer needs {_gpus(len(request.ranks))} in groups of {group}, each on one node "
            f"(trainer.engine.sequence_parallel x tensor_parallel is {request.ranks_per_group}); there is {machine}. "
            "Write fewer ranks or smaller groups, or use a larger machine."
        )
    each = _gpus_per_sampler(request)
    if each > largest:
        raise PlacementError(
            f"Each engine needs {each} GPUs of one node (rollout.engine.tensor_parallel x pipeline_parallel); there is "
            f"{machine}. Write smaller sizes."
        )


def _place_apart(request: PlacementRequest, machine: Machine) -> list[PlacedProcess] | None:
    """Every process on GPUs of its own; None if there are too few.

    The engines fill the last nodes, the ranks the first ones; on a node the ranks come first.
    """
    each, left = _gpus_per_sampler(request), len(request.samplers)
    engines_of = [0] * len(machine.nodes)
    for index in reversed(range(len(machine.nodes))):
        engines_of[index] = min(left, machine.nodes[index].gpus // each) if each else 0
        left -= engines_of[index]
    group = fitting_group(request.ranks_per_group, max(node.gpus for node in machine.nodes))
    free = [
        (node.gpus - count * each) // group * group
        for node, count in zip(machine.nodes, engines_of, strict=True)
    ]
    if left or sum(free) < len(request.ranks):
        return None
    ranks, samplers = iter(request.ranks), iter(request.samplers)
    placed: list[PlacedProcess] = []
    engines: list[PlacedProcess] = []
    for node, available, count in zip(machine.nodes, free, engines_of, strict=True):
        on_node = list(islice(ranks, available))
        placed += [PlacedProcess(rank, node, (number,)) for number, rank in enumerate(on_node)]
        for first in range(len(on_node), len(on_node) + count * each, each or 1):
            engines.append(PlacedProcess(next(samplers), node, tuple(range(first, first + each))))
    return placed + engines


def _place_shared(request: PlacementRequest, machine: Machine) -> list[PlacedProcess]:
    """Ranks and engines from the first GPU on; where engines outnumber the GPUs, several share them."""
    gpus = [(node, number) for node in machine.nodes for number in range(node.gpus)]
    placed = [
        PlacedProcess(rank, node, (number,))
        for rank, (node, number) in zip(request.ranks, gpus, strict=False)
    ]
    each = _gpus_per_sampler(request)
    slots = list(_slots(machine, each)) if each else []
    for number, sampler in enumerate(request.samplers):
        node, numbers = slots[number % len(slots)]
        placed.append(PlacedProcess(sampler, node, numbers))
    return placed


def _slots(machine: Machine, each: int) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """Consecutive GPUs of one node, for one engine each."""
    for node in machine.nodes:
        for first in range(0, node.gpus - each + 1, each):
            yield node, tuple(range(first, first + each))


def _gpus_per_sampler(request: PlacementRequest) -> int:
    return request.samplers[0].gpus if request.samplers else 0


def _too_few(request: PlacementRequest, machine: Machine) -> PlacementError:
    ranks, engines, each = len(request.ranks), len(request.samplers), _gpus_per_sampler(request)
    sampling = (
        f"{engines} engines (rollout.pool.engines) {engines * each}, {each} of one node for each"
        if request.samplers[0].role == "engine"
        else "the explorer one"
    )
    instead = (
        "Write fewer of them, or more nodes."
        if request.shares_single_gpu_only
        else "Write fewer of them, or `rollout.colocated: true`, with which they share GPUs."
    )
    return PlacementError(
        f"The trainer needs {_gpus(ranks)} (trainer.engine.ranks){_groups(request)}, and {sampling}; there is "
        f"{machine}. {instead}"
    )


def _groups(request: PlacementRequest) -> str:
    """The GPUs of a group of ranks, as a part of a sentence."""
    size = request.ranks_per_group
    return f", {size} of one node for each group of sequence and tensor parallelism" if size > 1 else ""


def _check_memory(plan: PlacementPlan) -> None:
    """Raise PlacementError for an engine that its own share cannot hold, and for a GPU without enough memory."""
    for placed in plan.processes:
        need, available = placed.process.memory, placed.node.gpu_bytes
        if need is None or available is None or need.fraction is None:
            continue
        given = need.active(available)
        if given < need.needed:
            raise PlacementError(
                f"{need.fraction_key} {need.fraction:g} of {_gib(available)} gives "
                f"{placed.process.name} {_gib(given)} on each GPU; its weights need {_gib(need.resident)}, and the KV "
                f"cache of one sequence of maximum length {_gib(need.working)}. Write a larger fraction or "
                "a larger tensor_parallel."
            )
    for node, gpu, on_gpu in used_gpus(plan):
        used = least_memory(plan, on_gpu)
        if used is not None and node.gpu_bytes is not None and used > node.gpu_bytes:
            verb = "needs" if len(on_gpu) == 1 else "need"
            raise PlacementError(
                f"GPU {gpu} of {node.name} has {_gib(node.gpu_bytes)}, and {_names(on_gpu)} {verb} {_gib(used)} at the "
                "same time, activations not counted. Write more ranks, a smaller fraction of memory for the engines "
                "(gpu_memory_utilization, mem_fraction_static) or `rollout.release_memory: true`, or use more GPUs."
            )


def used_gpus(plan: PlacementPlan) -> Iterator[tuple[Node, int, list[PlacedProcess]]]:
    """Each GPU that has a process, with its processes."""
    for node in plan.machine.nodes:
        for gpu in range(node.gpus):
            on_gpu = [placed for placed in plan.processes if placed.node == node and gpu in placed.gpus]
            if on_gpu:
                yield node, gpu, on_gpu


def least_memory(plan: PlacementPlan, on_gpu: Sequence[PlacedProcess]) -> int | None:
    """Memory that a GPU's processes certainly take at the same time; None if one of them is unknown."""
    available = on_gpu[0].node.gpu_bytes
    needs = [(placed.process.role == "trainer", placed.process.memory) for placed in on_gpu]
    if available is None or any(need is None for _, need in needs):
        return None
    known = [(trains, need) for trains, need in needs if need is not None]
    if not plan.in_turns:
        return sum(need.least(available) for _, need in known)
    return max(
        sum(need.least(available) if trains == training else need.idle(available) for trains, need in known)
        for training in (True, False)
    )


def _names(placed: Sequence[PlacedProcess]) -> str:
    return " and ".join(each.process.name for each in placed)


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / GIB * 1024:.1f} MiB"


HEADER = ("node", "GPU", "process", "has", "memory per GPU")


def plan_run(run: Run) -> PlacementPlan:
    """The plan of a run on its machine. Raises PlacementError."""
    return plan_on(run, machine_of(run))


def plan_on(run: Run, machine: Machine) -> PlacementPlan:
    """The plan of a run on a machine; of one role alone if the other role, which a command of its own starts, is not on
    a machine with enough GPUs for both. Raises PlacementError.
    """
    request = request_of(run, machine)
    if run.mode in SINGLE_ROLE_MODES:
        try:
            return plan_placement(replace(request, colocated=False), machine)
        except PlacementError:
            trains = run.mode == "train"
            request = replace(request, samplers=()) if trains else replace(request, ranks=())
    return plan_placement(request, machine)


def machine_of(run: Run) -> Machine:
    """The machine of a run: the one that `--machine` describes, the nodes that `cluster` requires, or this one.

    Raises PlacementError if the described machine is smaller than `cluster` requires.
    """
    section, described = run.cluster, described_machine()
    if not isinstance(section, RayClusterConfig):
        machine = this_machine()
        return Machine(machine.nodes[:1], machine.gpu_name, _one_node_of(machine))
    if described is None:
        return uniform_machine(section.nodes, section.gpus_per_node)
    fitting = [node for node in described.nodes if node.gpus >= section.gpus_per_node]
    if len(fitting) < section.nodes:
        raise PlacementError(
            f"cluster requires {section.nodes} nodes with {section.gpus_per_node} GPUs each (cluster.nodes, "
            f"cluster.gpus_per_node), and --machine describes {described}."
        )
    nodes = tuple(replace(node, gpus=section.gpus_per_node) for node in fitting[: section.nodes])
    unused = len(described.nodes) - len(nodes)
    remark = f"of {len(described.nodes)} described; cluster.nodes is {section.nodes}" if unused else ""
    return Machine(nodes, described.gpu_name, remark)


def _one_node_of(machine: Machine) -> str:
    """Remark on a machine of which a run without Ray uses one node; empty for a machine of one node."""
    number, gpus = len(machine.nodes), machine.nodes[0].gpus
    if number == 1:
        return ""
    return f"of {number}; `cluster: {{type: ray, nodes: {number}, gpus_per_node: {gpus}}}` uses all"


def plan_rows(plan: PlacementPlan) -> list[tuple[str, ...]]:
    """Header and one row per process."""
    return [HEADER, *(_row(plan, placed) for placed in plan.processes)]


def describe_plan(plan: PlacementPlan) -> str:
    """One sentence: the machine, and whether engines and trainer share GPUs."""
    text = f"Placement on {plan.machine}"
    if not plan.samplers or not any(placed.gpus for placed in plan.processes):
        return f"{text}:"
    if not plan.is_shared:
        return f"{text}, with GPUs of their own for training and sampling:"
    turns = "in turns" if plan.in_turns else "at the same time"
    return f"{text}, with GPUs that training and sampling use {turns}:"


def _row(plan: PlacementPlan, placed: PlacedProcess) -> tuple[str, ...]:
    gpus = ", ".join(map(str, placed.gpus)) or "CPU"
    return placed.node.name, gpus, placed.process.name, ", ".join(placed.process.contents), _memory(placed)


def _memory(placed: PlacedProcess) -> str:
    need, available = placed.process.memory, placed.node.gpu_bytes
    if need is None:
        return "unknown: the size of the model cannot be read here"
    if available is None or not placed.gpus:
        return f"{need.needed / GIB:.1f} GiB"
    active = need.active(available)
    idle = f"; between phases {need.idle(available) / GIB:.1f}" if need.is_released else ""
    return f"{active / GIB:.1f} of {available / GIB:.0f} GiB ({100 * active / available:.0f} %){idle}"
