"""Size of a micro-batch where the run file has none: the largest that fits, up to the default of the schema."""

from __future__ import annotations

from collections import defaultdict

from strop.config.plan.budget import needed_memory
from strop.config.plan.machine import Machine
from strop.config.plan.request import request_of, shares_host_memory
from strop.config.schema.run import Run
from strop.config.units import Amount

MIN_TOKENS = 1024
"""Smallest micro-batch that is chosen; matrix products with fewer rows are slower."""
_HELD = ("parameters", "gradients", "optimizer")


def with_fitting_microbatch(run: Run, machine: Machine, capacity: int | None) -> Run:
    """The run with the micro-batch that it uses, which is `trainer.microbatch` if the run file has one.

    Otherwise the schema's default is halved, down to `MIN_TOKENS`, until the run's predicted memory is at most
    `capacity` bytes (None for an unknown one), and, on a CPU, until activations take no more memory than weights,
    gradients and optimizer state, or than the libraries if that is more: larger micro-batches are no faster there.
    The default stays for models of unknown size and for optimizers that need an update in one micro-batch.
    """
    trainer = run.trainer
    if "microbatch" in trainer.model_fields_set or trainer.optimizer.fused_backward:
        return run
    tokens = int(trainer.microbatch.count)
    while True:
        update = {"microbatch": Amount(tokens, "tokens")}
        sized = run.model_copy(update={"trainer": trainer.model_copy(update=update)})
        if tokens <= MIN_TOKENS or _is_small_enough(sized, machine, capacity):
            return sized
        tokens //= 2


def _is_small_enough(run: Run, machine: Machine, capacity: int | None) -> bool:
    needed = needed_memory(run, machine)
    if needed is None:
        return True
    if capacity is not None and needed > capacity:
        return False
    if not shares_host_memory(run, machine):
        return True
    memory = request_of(run, machine).ranks[0].memory
    sizes: dict[str, int] = defaultdict(int)
    for part in memory.parts if memory else ():
        sizes[part.name] += part.bytes
    return sizes["activations"] <= max(sum(sizes[name] for name in _HELD), sizes["libraries"])
