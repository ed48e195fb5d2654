"""Opening of the engine or pool of engines that a run samples from, in the trainer's process or another one, and of the
explorer of a server's model."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from strop.config.local_workers import worker_cache_tokens
from strop.config.machine import uniform_machine
from strop.config.schema.buffer import CollectiveSyncConfig
from strop.config.schema.rollout import (
    EnginePoolConfig,
    NativeEngineConfig,
    OpenAiEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
    SglangEngineConfig,
    SglangServerConfig,
    VllmEngineConfig,
)
from strop.config.schema.run import LocalClusterConfig, RayClusterConfig, Run
from strop.errors import PlacementError
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import (
    EngineChoice,
    EngineConfig,
    MappedEngineFactory,
    attach_engine,
    choose_engine,
    load_engine,
    running_engine,
    runs_in_own_process,
)
from strop.models.shared_weights import MappedWeights
from strop.plan.placement import plan_on
from strop.protocols import InferenceEngine, TrainingEngine
from strop.run.distributed.placement import engine_placement
from strop.run.rollout.explorer import Explorer
from strop.run.rollout.load_check import LoadCheck
from strop.run.rollout.rollout_metrics import engine_metrics
from strop.run.rollout.rollout_services import (
    RewardSource,
    RolloutServices,
    open_rollout_services,
)
from strop.run.state.run_state import RunState
from strop.run.tokenizer import load_run_tokenizer
from strop.sync.publish import AdapterLoad, ColocatedPublisher
from strop.training.backend import TrainingBackend
from strop.training.device import find_device
from strop.workers.ray_runtime import is_on_ray
from strop.workers.signals import StopSignal
from strop.workers.start import RayPlacement
from strop.workers.threads import EventLoopThread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_UNREPEATED_DRAWS = (
    "sampling: SGLang's draws depend on the requests before them, so the same run samples other responses the next "
    "time (rollout.engine.deterministic on a GPU)"
)
_WHOLE_PROMPTS = (
    "rollout.engine.enable_chunked_prefill: vLLM's CPU build cannot split the prompt of a seeded request, so each "
    "prompt is computed in one pass"
)


@contextmanager
def open_colocated_engine(
    run: Run, engine: TrainingEngine, tokenizer: PreTrainedTokenizerBase
) -> Iterator[InferenceEngine]:
    """Open an engine in the trainer's process, or one for each of its workers, which shares the trainer's weights if
    possible.

    The engines of a pool load copies of the model.
    """
    section = run_engine(run).section
    if (pool := _pool_section(run, section)) is not None:
        sampler: InferenceEngine = _pool(run, pool)
    else:
        weights = engine.shared_weights()
        if weights.mapped is not None and isinstance(section, NativeEngineConfig):
            sampler = _workers_pool(run, section, weights.mapped, tokenizer)
        else:
            sampler = attach_engine(section, weights, tokenizer)
    with running_engine(sampler):
        yield sampler


@contextmanager
def open_separate_engine(run: Run, tokenizer: PreTrainedTokenizerBase) -> Iterator[InferenceEngine]:
    """Open an engine that loads the initial model itself: version 0 of the weights."""
    section = run_engine(run).section
    if (pool := _pool_section(run, section)) is not None:
        sampler: InferenceEngine = _pool(run, pool)
    else:
        sampler = load_engine(section, run.model, tokenizer, explorer_device(run), run.data.images)
    with running_engine(sampler):
        yield sampler


def run_engine(run: Run) -> EngineChoice:
    """The run's engine on this machine, with the maximum length of its sequences and vLLM's level of sleep, or its name
    at a server."""
    choice = choose_engine(run.rollout.engine, run.model)
    section = choice.section
    if isinstance(section, OpenAiEngineConfig):
        holder = section.holder or f"{run.project}/{run.name}"
        return replace(choice, section=section.model_copy(update={"holder": holder}))
    if not isinstance(section, ServingEngineConfig):
        return choice
    derived: dict[str, int | bool | None] = {}
    if section.sequence_limit is None:
        derived[section.length_field] = run.max_sequence_tokens
    if isinstance(section, VllmEngineConfig):
        loads_adapter = run.model.lora is not None and not section.merge_lora
        level = section.sleep_level or (1 if loads_adapter else 2)
        derived["sleep_level"] = level if run.releases_engine_memory else None
    if isinstance(section, SglangEngineConfig):
        if run.releases_engine_memory:
            derived["enable_memory_saver"] = True
        derived["merge_lora"] = section.merge_lora or _loads_merged_weights(run)
    return replace(choice, section=section.model_copy(update=derived))


def _loads_merged_weights(run: Run) -> bool:
    """Whether the engine gets the weights of a LoRA run as tensors, from another process or through Ray."""
    return run.is_distributed or isinstance(run.cluster, RayClusterConfig)


_MAX_GAP = 0.05
"""Nats, where rounding gives about 1e-6."""
_MAX_GAP_IN_HALF_PRECISION = 0.2
"""Nats: twice what rounding gave for SmolLM2-135M at most; improbable tokens of a probe differ most."""


def max_logprob_gap(run: Run) -> float | None:
    """Maximum mean difference, in nats, of the engine's log-probs from the trainer's after a load; None for the native
    engine, which does not convert the weights."""
    section = run_engine(run).section
    if isinstance(section, NativeEngineConfig):
        return None
    if section.max_logprob_gap is not None:
        return section.max_logprob_gap
    dtypes: set[str] = {run.model.compute_dtype or run.model.dtype}
    if isinstance(section, ServingEngineConfig):
        dtypes.add(section.dtype)
    return _MAX_GAP if dtypes <= {"float32", "model"} else _MAX_GAP_IN_HALF_PRECISION


def engine_notes(run: Run) -> tuple[str, ...]:
    """Notes for the console: the choice of `rollout.engine: auto`, and what the engine does not do itself."""
    choice = choose_engine(run.rollout.engine, run.model)
    notes = [choice.reason] if choice.reason else []
    match choice.section:
        case VllmEngineConfig() as section:
            notes += _logprob_notes(run, section.library, changed=_is_filtered(run) or _is_penalized(run))
            if section.enable_chunked_prefill and not torch.cuda.is_available():
                notes.append(_WHOLE_PROMPTS)
        case SglangEngineConfig() | SglangServerConfig() as section:
            notes += _logprob_notes(run, "SGLang", changed=_is_penalized(run))
            if not getattr(section, "deterministic", False):
                notes.append(_UNREPEATED_DRAWS)
            notes += _sglang_notes(run)
            if run.model.lora is not None and getattr(run_engine(run).section, "merge_lora", True):
                notes.append("model.lora: SGLang gets the weights with the adapter merged after every step")
        case OpenAiEngineConfig():
            notes += _logprob_notes(run, "vLLM", changed=_is_filtered(run) or _is_penalized(run))
    return tuple(notes)


def _logprob_notes(run: Run, engine: str, *, changed: bool) -> list[str]:
    """A note if the run needs log-probs of the policy that the engine does not give."""
    if run.algorithm.is_offline or run.rollout_algorithm.old_policy != "sampler" or not changed:
        return []
    return [
        f"algorithm.old_policy: sampler: {engine} gives only the log-probs of the distribution sampled from, so the "
        "trainer computes the policy's at the start of each step"
    ]


def _sglang_notes(run: Run) -> list[str]:
    sampling = run.rollout.sampling
    notes = []
    if sampling.stop and sampling.min_response_tokens > 0:
        notes.append(
            "rollout.sampling.stop: SGLang would stop before min_response_tokens, so Strop samples full responses "
            "and cuts them at the stop string"
        )
    if sampling.stop_token_ids and sampling.ignore_eos:
        notes.append(
            "rollout.sampling.stop_token_ids: SGLang has none under ignore_eos, so Strop samples full responses and "
            "cuts them at the stop token"
        )
    return notes


def _is_filtered(run: Run) -> bool:
    """Whether rollouts are sampled from a part of the policy's distribution."""
    sampling = run.rollout.sampling
    return sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0


def _is_penalized(run: Run) -> bool:
    """Whether the logits of rollouts depend on the tokens before."""
    sampling = run.rollout.sampling
    return sampling.repetition_penalty != 1 or sampling.min_response_tokens > 0


def _pool_section(run: Run, section: EngineConfig) -> EnginePoolConfig | None:
    """The pool of the run, of one engine for an engine that runs in a process of its own; None without a pool."""
    if run.rollout.pool is None and runs_in_own_process(section):
        return EnginePoolConfig(engines=1)
    return run.rollout.pool


def explorer_device(run: Run) -> torch.device:
    """Device of an explorer in its own process: the first GPU after those of the trainer's ranks, if there is one.

    A Ray actor sees only its own GPU. Raises `PlacementError` if NCCL needs one GPU more than there are.
    """
    device, section = find_device(run.trainer.engine.device), run.synchronizer
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    ranks = run.trainer.engine.ranks
    nccl = isinstance(section, CollectiveSyncConfig) and section.backend == "nccl"
    if nccl and gpus <= ranks and isinstance(run.cluster, LocalClusterConfig):
        raise PlacementError(
            f"synchronizer.backend: nccl needs {ranks + 1} GPUs, one of them for the explorer, and torch "
            f"finds {gpus}; set it to gloo or auto."
        )
    if gpus == 0:
        return device
    own = isinstance(run.cluster, RayClusterConfig) and is_on_ray()  # an actor sees its own GPU only
    device = torch.device("cuda", 0 if own else _sampler_gpus(run, gpus)[0][0])
    torch.cuda.set_device(device)
    return device


def _sampler_gpus(run: Run, gpus: int) -> list[tuple[int, ...]]:
    """Planned GPUs of the explorer, or of each engine, of the `gpus` that torch finds on this machine."""
    return [placed.gpus for placed in plan_on(run, uniform_machine(1, gpus)).samplers]


@dataclass(frozen=True, slots=True)
class PoolEngineFactory:
    """Builds one of a pool's engines, in the engine's process."""

    run: Run
    gpus: tuple[int, ...]
    """Numbers of its GPUs of those that its process sees; empty on the CPU."""
    engines: int
    """Number of engines of the run."""

    def __call__(self) -> InferenceEngine:
        """Load the tokenizer and the model."""
        section = run_engine(self.run).section
        torch.set_num_threads(max(1, torch.get_num_threads() // self.engines))
        device = find_device(self.run.trainer.engine.device)
        if self.gpus and isinstance(section, ServingEngineConfig):
            os.environ["CUDA_VISIBLE_DEVICES"] = _visible(self.gpus)
        elif self.gpus and device.type == "cuda":  # a cluster's logical GPUs may be CPU processes
            device = torch.device("cuda", self.gpus[0])
            torch.cuda.set_device(device)
        tokenizer = load_run_tokenizer(self.run)
        return load_engine(section, self.run.model, tokenizer, device, self.run.data.images)


def _workers_pool(
    run: Run, section: NativeEngineConfig, weights: MappedWeights, tokenizer: PreTrainedTokenizerBase
) -> EnginePool:
    """An engine for each of the trainer's workers."""
    tokens = worker_cache_tokens(section.kv_cache_tokens, weights.readers, run.max_sequence_tokens)
    sequences = -(-section.max_sequences // weights.readers)
    own = section.model_copy(update={"kv_cache_tokens": tokens, "max_sequences": sequences})
    create = MappedEngineFactory(own, weights, tokenizer, run.model, run.data.images)
    return EnginePool(
        [EngineSpec(f"engine-{number}", create) for number in range(weights.readers)],
        engine_placement(run),
        max_restarts=3,
        hang_timeout_seconds=section.hang_timeout_seconds,
        start_timeout_seconds=section.start_timeout_seconds,
    )


def _visible(gpus: Sequence[int]) -> str:
    """The value of CUDA_VISIBLE_DEVICES for processes that see only some of this process's GPUs."""
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = inherited.split(",") if inherited else list(map(str, range(torch.cuda.device_count())))
    return ",".join(names[gpu] for gpu in gpus)


def _pool(run: Run, section: EnginePoolConfig) -> EnginePool:
    placement, engine = engine_placement(run), run_engine(run).section
    if isinstance(placement, RayPlacement):
        each = [tuple(range(math.ceil(placement.gpus)))] * section.engines
    elif find_device(run.trainer.engine.device).type == "cpu" or isinstance(engine, ServerConnectionConfig):
        each = [()] * section.engines
    else:
        each = _sampler_gpus(run, torch.cuda.device_count())
    specs = [
        EngineSpec(f"engine-{number}", PoolEngineFactory(run, gpus, section.engines))
        for number, gpus in enumerate(each)
    ]
    if isinstance(engine, ServerConnectionConfig):
        return EnginePool(specs, placement, section.max_restarts)
    return EnginePool(
        specs,
        placement,
        section.max_restarts,
        hang_timeout_seconds=engine.hang_timeout_seconds,
        start_timeout_seconds=engine.start_timeout_seconds,
    )


@dataclass(frozen=True, slots=True)
class ColocatedPolicy:
    """The policy in one process: `engine` trains it, `explorer` samples from it."""

    engine: TrainingEngine
    explorer: Explorer
    publisher: ColocatedPublisher
    """Loads the weights of `engine` into the explorer's engine."""
    state: RunState
    """State of the run whose weights the policy has."""
    stop: StopSignal
    """Stop requests, which end every wait."""
    notes: tuple[str, ...]
    """Notes for the console: how sampling and training compute."""


@contextmanager
def open_colocated_policy(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Mapping[str, RewardSource],
    checkpoint: Path | None = None,
    stop: StopSignal | None = None,
) -> Iterator[ColocatedPolicy]:
    """Open the rewards and the workflow, load the model and a checkpoint's weights, and publish them.

    Inside the context, SIGINT, SIGTERM and a request to `stop` raise `Interrupted` at the next safe point.
    """
    with stop or StopSignal() as stop, open_rollout_services(run, rewards) as services:
        engine = engines.policy()
        state = restore_engine(engine, checkpoint)
        with open_colocated_engine(run, engine, tokenizer) as sampler:
            yield make_colocated_policy(run, engine, state, sampler, tokenizer, services, stop)


def restore_engine(engine: TrainingEngine, checkpoint: Path | None) -> RunState:
    """Load a checkpoint into an engine; without a checkpoint, return the initial state."""
    if checkpoint is None:
        return RunState()
    engine.load(checkpoint)
    return RunState.load(checkpoint)


def make_colocated_policy(
    run: Run,
    engine: TrainingEngine,
    state: RunState,
    sampler: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    services: RolloutServices,
    stop: StopSignal,
) -> ColocatedPolicy:
    """An explorer on the sampler, with the engine's weights published to it."""
    policy = ColocatedPolicy(
        engine=engine,
        explorer=Explorer.of(run, sampler, tokenizer, services, stop),
        publisher=colocated_publisher(run, engine, sampler, tokenizer, services.event_loop),
        state=state,
        stop=stop,
        notes=_notes(run, engine, sampler),
    )
    policy.publisher.publish(state.step)
    return policy


def colocated_publisher(
    run: Run,
    engine: TrainingEngine,
    sampler: InferenceEngine,
    tokenizer: PreTrainedTokenizerBase,
    event_loop: EventLoopThread,
) -> ColocatedPublisher:
    """The publisher of the engine's weights to the sampler, with a check of each load if the sampler converts them."""
    features, max_gap = sampler.capabilities, max_logprob_gap(run)
    releases = sampler if run.releases_engine_memory else None
    in_place = features.weights_in_place if run.model.lora is None else features.adapter_in_place

    def load(version: int) -> None:
        sampler.load(() if in_place else engine.iter_weights(), version)

    if max_gap is None or not features.converts_weights:
        return ColocatedPublisher(load, lambda version: engine_metrics(sampler), releases=releases)
    check = LoadCheck(engine, sampler, event_loop, tokenizer, run.max_sequence_tokens, max_gap)

    def report(version: int) -> Mapping[str, float]:
        return engine_metrics(sampler) | check(version)

    with_adapter = run.model.lora is not None and features.adapters
    return ColocatedPublisher(
        AdapterLoad(engine, sampler) if with_adapter else load, report, releases=releases
    )


def _notes(run: Run, engine: TrainingEngine, sampler: InferenceEngine) -> tuple[str, ...]:
    shared = (
        "a group's shared prompt is encoded once"
        if engine.supports_shared_prompts
        else f"each response's prompt is encoded separately ({engine.shared_prompts_obstacle})"
    )
    training = f"training: {engine.description}; {shared}"
    return (*engine_notes(run), f"sampling: {sampler.describe()}", training)


def samples_from_server(run: Run) -> bool:
    """Whether the run samples from a server with weights of its own, which no update replaces."""
    engine = run.rollout.engine
    return isinstance(engine, OpenAiEngineConfig) and engine.weight_updates == "none"


@contextmanager
def open_server_explorer(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Mapping[str, RewardSource],
    stop: StopSignal | None = None,
) -> Iterator[Explorer]:
    """Open the rewards and the workflow, and connect to the server.

    Inside the context, SIGINT, SIGTERM and a request to `stop` raise `Interrupted` at the next safe point.
    """
    with (
        stop or StopSignal() as stop,
        open_rollout_services(run, rewards) as services,
        open_separate_engine(run, tokenizer) as sampler,
    ):
        yield Explorer.of(run, sampler, tokenizer, services, stop)
