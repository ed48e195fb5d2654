"""Whether a run fits into its machine's memory, what to change where it does not, the default micro-batch, and the
times that its steps took in a measurement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations
from statistics import fmean
from typing import Any, get_args

from strop.config.local_workers import local_workers, with_workers
from strop.config.machine import GIB, Machine, described_machine
from strop.config.schema.model import DTYPE_BYTES, LoraConfig
from strop.config.schema.run import Run, to_steps
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig
from strop.config.units import Amount
from strop.errors import ConfigError, PlacementError
from strop.plan import memory
from strop.plan.memory import PartName, read_model_size
from strop.plan.placement import machine_of, plan_on
from strop.plan.request import request_of, shares_host_memory
from strop.workers.memory import total_memory_bytes

_PARTS: tuple[PartName, ...] = get_args(PartName)
_NOTABLY_FASTER = 0.95
"""Part of the seconds of a step; a smaller difference may be chance, between means of two steps."""
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
    if run.algorithm.is_offline:
        sequences = trainer.tasks_per_step * (2 if run.algorithm.rows == "pairs" else 1)
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
        model = size.parameters * DTYPE_BYTES[run.model.dtype]
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


def with_machine_defaults(run: Run) -> Run:
    """The run with the local workers and the micro-batch that it uses on its machine, see `with_fitting_microbatch`;
    on a CPU `trainer.engine.workers: auto` becomes the largest number for which there is memory.

    Raises PlacementError as `memory_fit` does.
    """
    machine = machine_of(run)
    capacity, engine = _capacity(run, machine), run.trainer.engine
    if (
        isinstance(engine, LocalEngineConfig)
        and engine.workers == "auto"
        and shares_host_memory(run, machine)
    ):
        most = local_workers(run).count
        for workers in range(most, 1, -1):
            sized = with_fitting_microbatch(with_workers(run, workers), machine, capacity)
            if capacity is None or (needed_memory(sized, machine) or 0) <= capacity:
                return sized
        if most > 1:
            run = with_workers(run, 1)
    return with_fitting_microbatch(run, machine, capacity)


def other_worker_counts(run: Run) -> tuple[int, ...]:
    """The numbers of local workers to compare with that of `trainer.engine.workers: auto`: its halves, down to one
    process with a thread for each core. Empty where the run sets a number, or has one process anyway."""
    engine = run.trainer.engine
    if not isinstance(engine, LocalEngineConfig) or engine.workers != "auto":
        return ()
    chosen = with_machine_defaults(run).trainer.engine
    assert isinstance(chosen, LocalEngineConfig)
    counts = [1 if chosen.workers == "auto" else chosen.workers]
    while counts[-1] > 1:
        counts.append(counts[-1] // 2)
    return tuple(counts[1:])


def _capacity(run: Run, machine: Machine) -> int | None:
    if not shares_host_memory(run, machine):
        return machine.nodes[0].gpu_bytes
    return total_memory_bytes() if described_machine() is None else None


_SAMPLING = ("time/sample_seconds", "time/explore_seconds", "time/reward_seconds")
_TRAINING = (
    "time/logprobs_seconds",
    "time/critic_seconds",
    "time/process_reward_seconds",
    "time/update_seconds",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Means over measured steps of a run on one machine."""

    date: str
    """Day of the measurement, as YYYY-MM-DD."""
    steps: int
    """Number of measured steps."""
    step_seconds: float
    sampling_seconds: float
    """Part of it that samples and scores; 0 for SFT and DPO."""
    training_seconds: float
    """Part of it that computes log-probs, values and updates."""
    response_tokens: float | None
    """Mean length of the responses; None for SFT and DPO."""
    steps_per_epoch: float | None
    """None where the rows do not say."""
    peak_bytes: int
    """Peak resident memory of the trainer's first process."""


def calibration_of(rows: Sequence[Mapping[str, float]], date: str) -> Calibration:
    """Means of the metrics of some steps, without the first of them, which also allocates memory.

    Raises ConfigError if there are fewer than two.
    """
    measured = rows[1:]
    if not measured:
        raise ConfigError(
            f"The run ended after {len(rows)} steps, and a calibration leaves out the first of them. "
            "It needs tasks for two steps."
        )

    def mean(*names: str) -> float:
        return fmean(sum(row.get(name, 0.0) for name in names) for row in measured)

    last = measured[-1]
    return Calibration(
        date,
        len(measured),
        mean("time/step_seconds"),
        mean(*_SAMPLING),
        mean(*_TRAINING),
        mean("response_tokens/mean") if "response_tokens/mean" in last else None,
        last["step"] / last["epoch"] if last.get("epoch") else None,
        int(last["memory/peak_mb"] * 1e6),
    )


def calibration_lines(run: Run, found: Calibration, others: Mapping[int, Calibration]) -> Iterator[str]:
    """Seconds of a step by phase, with other numbers of local workers too, the duration of the run, and the measured
    memory."""
    responses = ""
    if found.response_tokens is not None:
        responses = (
            f", with responses of {found.response_tokens:.0f} tokens on average (at most "
            f"{run.data.max_response_tokens})"
        )
    yield (
        f"Step: {_phases(found)}; measured on this machine on {found.date}, mean of {found.steps} steps{responses}."
    )
    for workers, other in others.items():
        yield f"Step with trainer.engine.workers={workers}: {_phases(other)}."
    best = min(others, key=lambda workers: others[workers].step_seconds, default=None)
    if best is not None and others[best].step_seconds < _NOTABLY_FASTER * found.step_seconds:
        yield f"trainer.engine.workers={best} is faster here than auto: write it."
    steps = _total_steps(run, found)
    if steps is not None:
        yield (
            f"Run: {_duration(steps * found.step_seconds)} for {steps:,.0f} steps of this length, without evaluations "
            "and checkpoints."
        )
    yield f"Measured peak of the trainer's process: {found.peak_bytes / GIB:.2f} GiB of memory of the CPU."


def _phases(found: Calibration) -> str:
    """Seconds of a step, and of its phases."""
    training = f"{found.training_seconds:.1f} s"
    if not found.sampling_seconds:
        return f"{found.step_seconds:.1f} s, {training} of it training"
    return f"{found.step_seconds:.1f} s, {found.sampling_seconds:.1f} s of it sampling and scoring, {training} training"


def _total_steps(run: Run, found: Calibration) -> float | None:
    """Steps of the whole run; None where its duration does not determine them."""
    duration = to_steps(run, run.trainer.duration) or run.trainer.duration
    if duration.unit == "steps":
        return float(duration.count)
    if duration.unit == "epochs" and found.steps_per_epoch is not None:
        return float(duration.count) * found.steps_per_epoch
    return None


def _duration(seconds: float) -> str:
    """A duration with a unit that suits it."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"
