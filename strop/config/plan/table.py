"""The placement plan of a run as a table: node, GPU, process, contents, memory."""

from __future__ import annotations

from dataclasses import replace

from strop.config.plan.machine import GIB, Machine, described_machine, this_machine, uniform_machine
from strop.config.plan.planner import PlacedProcess, PlacementPlan, plan_placement
from strop.config.plan.request import request_of
from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.run import SINGLE_ROLE_MODES, Run
from strop.errors import PlacementError

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
