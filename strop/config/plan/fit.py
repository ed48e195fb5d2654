"""Whether a run fits into its machine's memory, and what to change where it does not."""

from __future__ import annotations

from dataclasses import dataclass

from strop.config.plan.budget import Proposal, fits, needed_memory, propose
from strop.config.plan.machine import GIB, Machine, described_machine
from strop.config.plan.microbatch import with_fitting_microbatch
from strop.config.plan.request import shares_host_memory
from strop.config.plan.table import machine_of
from strop.config.schema.run import Run
from strop.workers.host_memory import total_memory_bytes


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """A run's predicted memory next to the machine's."""

    needed: int | None
    """Bytes on the fullest GPU, or of all processes without one; None where a model's size is not known."""
    capacity: int
    """Bytes of a GPU, or of this machine."""
    fits: bool
    """False also where the processes cannot be placed."""
    proposal: Proposal | None = None
    """Changes where the run does not fit; None where no change needs less memory."""

    def __str__(self) -> str:
        available = f"{self.capacity / GIB:.0f} GiB"
        if self.needed is None:
            return f"Memory: not known; {available} are available."
        needed = f"about {self.needed / GIB:.1f} GiB"
        if self.fits:
            return f"Memory at the peak, with sequences of maximum length: {needed} of {available}."
        return f"The run does not fit into {available}: with sequences of maximum length it needs {needed}."


def memory_fit(run: Run) -> MemoryFit | None:
    """The fit of a run on its machine; None where the memory of that machine is not known, and for `bench`.

    Raises PlacementError if the machine that `--machine` describes is smaller than `cluster` requires.
    """
    if run.mode == "bench":
        return None
    machine = machine_of(run)
    capacity = _capacity(run, machine)
    if capacity is None:
        return None
    run = with_fitting_microbatch(run, machine, capacity)
    needed = needed_memory(run, machine)
    if fits(run, machine, capacity):
        return MemoryFit(needed, capacity, fits=True)
    return MemoryFit(needed, capacity, fits=False, proposal=propose(run, machine, capacity))


def with_default_microbatch(run: Run) -> Run:
    """The run with the micro-batch that it uses on its machine, see `with_fitting_microbatch`.

    Raises PlacementError as `memory_fit` does.
    """
    machine = machine_of(run)
    return with_fitting_microbatch(run, machine, _capacity(run, machine))


def _capacity(run: Run, machine: Machine) -> int | None:
    if not shares_host_memory(run, machine):
        return machine.nodes[0].gpu_bytes
    return total_memory_bytes() if described_machine() is None else None
