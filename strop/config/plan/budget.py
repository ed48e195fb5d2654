"""Memory, tokens and disk that a run needs on a machine, and the cheapest changes that make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations
from typing import Any, get_args

from strop.config.plan import memory
from strop.config.plan.machine import GIB, Machine
from strop.config.plan.memory import PartName
from strop.config.plan.model_size import read_model_size
from strop.config.plan.request import request_of, shares_host_memory
from strop.config.plan.table import plan_on
from strop.config.schema.algorithm import OfflineAlgorithmConfig, trains_on_pairs
from strop.config.schema.model import LoraConfig
from strop.config.schema.run import Run
from strop.config.schema.training_engine import Fsdp2EngineConfig
from strop.config.units import Amount
from strop.errors import PlacementError

_PARTS: tuple[PartName, ...] = get_args(PartName)
_MIN_TOKENS = 1024
"""Smallest micro-batch that a proposal writes, in tokens."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """One change of the run file that needs less memory."""

    override: str
    cost: str
    """Cost of the change, in words."""
    apply: Callable[[Run], Run]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Changes that are made together."""

    changes: tuple[RunChange, ...]
    needed: int
    """Memory that the run needs with them, in bytes; see `needed_memory`."""
    fits: bool

    def __str__(self) -> str:
        result = "fits" if self.fits else "still does not fit"
        return f"With these changes it needs {self.needed / GIB:.1f} GiB, and {result}:"


def memory_rows(run: Run, machine: Machine) -> list[tuple[str, ...]]:
    """Header and one row per process: memory by part on each of its GPUs, or in the CPU's memory."""
    request = request_of(run, machine)
    processes = (*request.ranks, *request.samplers)
    on_cpu = any(part.name == "libraries" for each in processes if each.memory for part in each.memory.parts)
    names = [name for name in _PARTS if name != "libraries" or on_cpu]
    rows: list[tuple[str, ...]] = [("process", *names, "total at its peak")]
    for process in processes:
        need = process.memory
        if need is None:
            rows.append((process.name, *("?" for _ in names), "unknown: the size of a model is not known"))
        else:
            sizes = (sum(part.bytes for part in need.parts if part.name == name) for name in names)
            rows.append((process.name, *map(_gib, sizes), f"{_gib(need.needed)} GiB"))
    return rows


def step_lines(run: Run) -> Iterator[str]:
    """Tokens of a step at most, and the disk that checkpoints and the model take."""
    trainer, data = run.trainer, run.data
    longest = run.max_sequence_tokens
    if isinstance(run.algorithm, OfflineAlgorithmConfig):
        sequences = trainer.tasks_per_step * (2 if trains_on_pairs(run.algorithm) else 1)
        yield f"Tokens per step: at most {sequences * longest:,} ({sequences} sequences of {longest:,})."
    else:
        rollouts = trainer.tasks_per_step * run.algorithm.rollouts_per_task
        yield (
            f"Tokens per step: at most {rollouts * data.max_response_tokens:,} sampled ({rollouts} responses of "
            f"{data.max_response_tokens:,}), {rollouts * longest:,} with their prompts."
        )
    yield f"Micro-batch: at most {trainer.microbatch}."
    size = read_model_size(run.model.path)
    if size is not None:
        each = memory.checkpoint_bytes(size, run.model, trainer.optimizer.type)
        model = size.parameters * memory.BYTES[run.model.dtype]
        kept = "" if run.checkpoint.keep is None else f", {run.checkpoint.keep} kept"
        most = (run.checkpoint.keep or 1) * each + model
        yield (
            f"Disk: {_gib(each)} GiB per checkpoint{kept}, {_gib(model)} GiB for the model; together "
            f"{_gib(most)} GiB{'' if run.checkpoint.keep else ' with one checkpoint'}."
        )


def needed_memory(run: Run, machine: Machine) -> int | None:
    """Memory that a run needs: of the process with the largest need, or of all that the run starts where they share the
    memory of one node. None where a model's size is not known.
    """
    request = request_of(run, machine)
    shares = shares_host_memory(run, machine) and len(machine.nodes) == 1
    ranks = () if shares and run.mode == "explore" else request.ranks
    samplers = () if shares and run.mode == "train" else request.samplers
    needs = [process.memory for process in (*ranks, *samplers)]
    known = [need.needed for need in needs if need is not None]
    if not known or len(known) < len(needs):
        return None
    return sum(known) if shares else max(known)


def fits(run: Run, machine: Machine, capacity: int) -> bool:
    """Whether the run's processes fit into `capacity` bytes, and can be placed; a model of unknown size fits."""
    needed = needed_memory(run, machine)
    if needed is not None and needed > capacity:
        return False
    try:
        plan_on(run, machine)
    except PlacementError:
        return False
    return True


def propose(run: Run, machine: Machine, capacity: int, most: int = 3) -> Proposal | None:
    """The fewest and cheapest changes, at most `most`, with which the run fits; if none do, those that need the least.

    Changes that change no result are the cheapest. None where no change needs less memory.
    """
    candidates = list(_candidates(run, machine))
    proposals = []
    for number in range(1, most + 1):
        for changes in combinations(candidates, number):
            changed = reduce(lambda each, change: change.apply(each), changes, run)
            needed = needed_memory(changed, machine)
            if needed is not None:
                proposals.append(Proposal(changes, needed, fits(changed, machine, capacity)))
                if proposals[-1].fits:
                    return proposals[-1]
    return min(proposals, key=lambda proposal: proposal.needed, default=None)


def _candidates(run: Run, machine: Machine) -> Iterator[RunChange]:
    """Changes by increasing cost."""
    trainer, model = run.trainer, run.model
    tokens = int(trainer.microbatch.count)
    if trainer.microbatch.unit == "sequences":
        tokens *= run.max_sequence_tokens
    smaller = max(tokens // 4, _MIN_TOKENS)
    if smaller < tokens:
        update = {"microbatch": Amount(smaller, "tokens")}
        yield RunChange(
            f"trainer.microbatch='{smaller} tokens'",
            "smaller matrix products",
            partial(_with_trainer, update),
        )
    if not model.gradient_checkpointing:
        yield RunChange(
            "model.gradient_checkpointing=true",
            "about a third more computation",
            partial(_with_model, {"gradient_checkpointing": True}),
        )
    if machine.gpus > trainer.engine.ranks:
        yield RunChange(
            f"trainer.engine='{{type: fsdp2, ranks: {machine.gpus}}}'",
            f"{machine.gpus} GPUs for the trainer",
            partial(_with_trainer, {"engine": Fsdp2EngineConfig(ranks=machine.gpus)}),
        )
    if model.dtype == "float32":
        yield RunChange(
            "model.dtype=bfloat16",
            "small updates are lost to rounding",
            partial(_with_model, {"dtype": "bfloat16", "compute_dtype": None}),
        )
    if model.lora is None:
        yield RunChange(
            "model.lora='{rank: 16}'",
            "an adapter is trained instead of all weights",
            partial(_with_model, {"lora": LoraConfig(rank=16)}),
        )


def _with_trainer(update: dict[str, Any], run: Run) -> Run:
    return run.model_copy(update={"trainer": run.trainer.model_copy(update=update)})


def _with_model(update: dict[str, Any], run: Run) -> Run:
    return run.model_copy(update={"model": run.model.model_copy(update=update)})


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"
