"""Checks of the processes of a run: mode, cluster and its nodes, synchronizer, buffer, and the inference engine."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.local_workers import workers_obstacle
from strop.config.model_files import is_quantized
from strop.config.schema.buffer import (
    BoundedStyleConfig,
    CheckpointSyncConfig,
    CollectiveSyncConfig,
    DistributedSyncConfig,
    FixedStyleConfig,
    MemorySyncConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    StyleConfig,
)
from strop.config.schema.optimizer import ReduceOnPlateauScheduleConfig
from strop.config.schema.rollout import (
    AutoEngineConfig,
    NativeEngineConfig,
    OpenAiEngineConfig,
    SamplingConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from strop.config.schema.run import SINGLE_ROLE_MODES, BenchConfig, RayClusterConfig, Run
from strop.config.schema.trainer import (
    ElasticConfig,
    LocalEngineConfig,
    RankNetworkConfig,
    StalenessSelectionConfig,
)


def topology_faults(run: Run) -> Iterator[str]:
    """Faults in `mode`, `cluster`, `synchronizer`, `buffer` and workers: what would deadlock or has no effect."""
    yield from _worker_faults(run)
    if run.mode == "bench" and not run.data.eval:
        yield (
            "mode: bench evaluates the eval tasksets, and there is none; add one under `data.eval`, such as "
            "`eval: [{name: test, path: test.jsonl}]`"
        )
    if run.mode != "bench" and run.bench != BenchConfig():
        yield f"bench has no effect in mode {run.mode}; write `mode: bench`, or remove it"
    if run.algorithm.is_offline:
        yield from _offline_faults(run)
    elif isinstance(run.synchronizer, DistributedSyncConfig):
        yield from _distributed_faults(run, run.synchronizer)
    elif isinstance(run.cluster, RayClusterConfig):
        yield (
            f"synchronizer.type: {run.synchronizer.type} requires explorer and trainer in one process, and "
            "on "
            "Ray they are two actors; write checkpoint, or remove the section"
        )
    elif run.mode in SINGLE_ROLE_MODES:
        yield (
            f"synchronizer.type: memory requires explorer and trainer in one process, and mode {run.mode} "
            "runs "
            "one of them; write checkpoint, or mode: both"
        )
    elif isinstance(run.buffer, PriorityBufferConfig) and run.buffer.reuse_cooldown_seconds is not None:
        yield (
            "buffer.reuse_cooldown_seconds makes groups available again until newer ones arrive, and with "
            "synchronizer.type memory each step trains on the groups that it has just sampled; remove it, or "
            "write `synchronizer: {style: bounded}`, which runs explorer and trainer concurrently"
        )


def _worker_faults(run: Run) -> Iterator[str]:
    engine = run.trainer.engine
    if isinstance(engine, LocalEngineConfig) and engine.workers not in ("auto", 1):
        obstacle = workers_obstacle(run)
        if obstacle is not None:
            yield f"trainer.engine.workers is {engine.workers}, and {obstacle}; write workers: 1"
    if not is_quantized(run.model):
        return
    if not isinstance(engine, LocalEngineConfig):
        yield (
            f"trainer.engine is {engine.type}, which divides weights over ranks, and quantized ones "
            "(model.quantization, or of the folder in model.path) stay whole; write trainer.engine: local, or a model "
            "that is not quantized"
        )
    if not run.algorithm.is_offline and not isinstance(
        run.rollout.engine, NativeEngineConfig | AutoEngineConfig
    ):
        yield (
            f"rollout.engine is {run.rollout.engine.type}, and only the native engine samples from quantized weights "
            "(model.quantization, or of the folder in model.path); write rollout.engine: native"
        )


def _offline_faults(run: Run) -> Iterator[str]:
    kind = run.algorithm.type
    if run.mode == "explore":
        yield f"mode: explore samples rollouts, and algorithm {kind} has no explorer; write train"
    if isinstance(run.cluster, RayClusterConfig):
        yield (
            f"cluster.type: ray runs an explorer and a trainer, and algorithm {kind} has no explorer; remove "
            "the section"
        )
    if run.is_distributed:
        yield (
            f"synchronizer.type: {run.synchronizer.type} transfers weights to an explorer, and algorithm "
            f"{kind} has no explorer; remove the section"
        )


def _collective_faults(run: Run, section: CollectiveSyncConfig) -> Iterator[str]:
    if run.mode in SINGLE_ROLE_MODES:
        yield (
            "synchronizer.type: collective requires one command that starts explorer and trainer, and mode "
            f"{run.mode} runs one of them; write checkpoint, or mode: both"
        )
    if section.backend not in ("nccl", "cuda_ipc"):
        return
    if run.trainer.engine.device == "cpu":
        yield (
            f"synchronizer.backend: {section.backend} transfers between GPUs, and trainer.engine.device is cpu; write "
            "gloo, or auto"
        )
    if run.rollout.pool is not None:
        yield (
            f"synchronizer.backend: {section.backend} transfers weights to one GPU, and the engines of rollout.pool "
            "load them from host memory; write gloo, or auto"
        )
    if section.backend != "nccl":
        return
    cluster, ranks = run.cluster, run.trainer.engine.ranks
    if isinstance(cluster, RayClusterConfig) and cluster.nodes * cluster.gpus_per_node < ranks + 1:
        yield (
            f"synchronizer.backend: nccl requires {ranks + 1} GPUs, one of them for the explorer, and "
            "cluster "
            f"has {cluster.nodes} nodes with {cluster.gpus_per_node} GPUs each; write larger values, gloo, "
            "or "
            "auto"
        )


def _queue_faults(run: Run, style: StyleConfig) -> Iterator[str]:
    buffer, cluster = run.buffer, run.cluster
    if not isinstance(buffer, QueueBufferConfig | PriorityBufferConfig):
        return
    if run.mode in SINGLE_ROLE_MODES:
        yield (
            f"buffer.type: {buffer.type} requires one command that starts explorer, trainer and the buffer's "
            f"process, and mode {run.mode} runs one role; write `buffer: sql`, or mode: both"
        )
    if isinstance(cluster, RayClusterConfig) and buffer.name in (cluster.explorer_name, cluster.trainer_name):
        yield f"buffer.name: two actors of the run have the name {buffer.name!r}; write another name"
    if not isinstance(buffer, PriorityBufferConfig) or not isinstance(style, FixedStyleConfig):
        return
    if style.max_buffered_steps != 1 or buffer.reuse_cooldown_seconds is not None:
        yield (
            "buffer.type: priority returns the newest groups first, or groups that were used before, and "
            "with "
            "synchronizer.style fixed the trainer reads the steps in order; write another style, such as "
            "`style: bounded`, or `buffer: queue`"
        )


def _distributed_faults(run: Run, section: CheckpointSyncConfig | CollectiveSyncConfig) -> Iterator[str]:
    if isinstance(section, CollectiveSyncConfig):
        yield from _collective_faults(run, section)
    if run.mode in SINGLE_ROLE_MODES and isinstance(run.cluster, RayClusterConfig):
        yield (
            f"cluster.type: ray runs explorer and trainer, and mode {run.mode} is one of them; write mode: "
            "both"
        )
    elastic = run.trainer.elastic
    if (
        run.mode == "both"
        and elastic
        and elastic.max_restarts != ElasticConfig.model_fields["max_restarts"].default
    ):
        yield (
            "trainer.elastic.max_restarts counts the continuations of a run in one process, and here the trainer is a "
            "process of its own; write synchronizer.max_restarts instead"
        )
    yield from _queue_faults(run, section.style)
    yield from _resume_faults(run, section)
    yield from _evaluation_consumer_faults(run)
    yield from _lead_faults(run, section.style)


def _resume_faults(run: Run, section: CheckpointSyncConfig | CollectiveSyncConfig) -> Iterator[str]:
    """Faults of a resume from the state of one role only: explorer and trainer resume together."""
    if run.mode in SINGLE_ROLE_MODES and run.resume != "auto":
        yield (
            f"resume: {run.resume} applies to one role, and the other role of the run would resume from its "
            "own "
            f"state; in mode {run.mode} write resume: auto, and for a new run another `name`"
        )
    elif run.resume not in ("auto", "never"):
        yield (
            f"resume: {run.resume} is a checkpoint of the trainer, without the explorer's state; with "
            f"synchronizer.type {section.type} write auto or never, and to start from other weights write "
            "their model folder as model.path"
        )
    if run.checkpoint.mirror is not None:
        yield (
            f"checkpoint.mirror copies the trainer's state only; with synchronizer.type {section.type} a run "
            "also needs its explorer's state and its buffer to resume; remove it, and keep the run's folder"
        )


def _evaluation_consumer_faults(run: Run) -> Iterator[str]:
    """Faults of keys that need evaluations in the trainer's process."""
    if run.checkpoint.best is not None:
        yield (
            "checkpoint.best needs the evaluations in the trainer, and the explorer makes them in a separate "
            "process; write `best: null`, or `synchronizer: memory`"
        )
    if run.evaluate.stop_when is not None:
        yield (
            "evaluate.stop_when needs the evaluations in the trainer, and the explorer makes them in a separate "
            "process; remove it, or write `synchronizer: memory`"
        )
    if isinstance(run.trainer.schedule, ReduceOnPlateauScheduleConfig):
        yield (
            "trainer.schedule: reduce_lr_on_plateau needs the evaluations in the trainer, and the explorer "
            "makes them in a separate process; write another schedule, or `synchronizer: memory`"
        )


def _lead_faults(run: Run, style: StyleConfig) -> Iterator[str]:
    """Faults in how far the explorer may be ahead, and in the staleness that follows from it."""
    if isinstance(style, BoundedStyleConfig) and style.max_staleness.count < style.every.count - 1:
        oldest = int(style.every.count) - 1
        yield (
            f"synchronizer.style.max_staleness ({style.max_staleness}) cannot be met: weights that are "
            f"published every {style.every} become {oldest} steps old before newer ones exist, so explorer "
            "and "
            f"trainer would wait for each other; write a smaller `every`, or max_staleness: {oldest} steps "
            "or "
            "more"
        )
    selection = run.trainer.batch_selection
    if isinstance(style, FixedStyleConfig) and isinstance(selection, StalenessSelectionConfig):
        oldest = int(style.max_lead.count + style.every.count) - 1
        if selection.max_staleness.count < oldest:
            yield (
                f"trainer.batch_selection.max_staleness ({selection.max_staleness}) would drop whole steps: "
                f"with synchronizer.style fixed, steps are sampled with weights up to {oldest} steps old; "
                "write "
                f"{oldest} steps or more, a smaller `max_lead` and `every`, or another style"
            )
    steps, capacity = style.max_buffered_steps, getattr(run.buffer, "capacity_groups", None)
    if steps is not None and capacity is not None and capacity < steps * run.trainer.tasks_per_step:
        smaller = "max_staleness" if isinstance(style, BoundedStyleConfig) else "`max_lead` and `every`"
        yield (
            f"buffer.capacity_groups ({capacity}) is less than the {steps} steps of "
            f"{run.trainer.tasks_per_step} tasks that synchronizer.style lets the explorer be ahead; write "
            f"{steps * run.trainer.tasks_per_step} or more, or a smaller {smaller}"
        )


def one_node_fault(run: Run, *, is_launched: bool) -> str | None:
    """Fault of keys for the loss of a node where all ranks are processes of this machine; None if none is set.

    A key at its default counts as not set, even if it is written: the file in a run folder has every key, and starts
    the run again. `is_launched` says that a launcher such as torchrun has started the ranks.
    """
    if is_launched or isinstance(run.cluster, RayClusterConfig) or run.mode not in ("both", "train"):
        return None
    found = list(_other_than_default(run))
    if not found:
        return None
    return (
        f"{' and '.join(found)}: all ranks are processes of this machine, so no node can be lost without the run. "
        "Start the ranks by torchrun or with cluster: ray, or omit the key; `trainer.elastic: {}` starts new "
        "processes for lost ranks here, too"
    )


def _other_than_default(run: Run) -> Iterator[str]:
    engine, elastic = run.trainer.engine, run.trainer.elastic
    if elastic is not None:
        for name in ("min_ranks", "wait_seconds"):
            if getattr(elastic, name) != ElasticConfig.model_fields[name].default:
                yield f"trainer.elastic.{name}"
    if not isinstance(engine, LocalEngineConfig):
        default = RankNetworkConfig.model_fields["node_timeout_seconds"].default
        if engine.network.node_timeout_seconds != default:
            yield "trainer.engine.network.node_timeout_seconds"


def engine_faults(run: Run) -> Iterator[str]:
    """Faults of every engine that the run may start; each names its key."""
    section = run.rollout.engine
    yield from _sharing_faults(run)
    if isinstance(section, AutoEngineConfig):
        yield from _native_faults(run, section.native, "rollout.engine.native")
        yield from _vllm_faults(run, section.vllm, "rollout.engine.vllm")
    elif isinstance(section, NativeEngineConfig):
        yield from _native_faults(run, section, "rollout.engine")
    elif isinstance(section, OpenAiEngineConfig):
        yield from _server_faults(run, section)
    elif isinstance(section, VllmEngineConfig):
        yield from _vllm_faults(run, section, "rollout.engine")
    elif isinstance(section, SglangEngineConfig):
        yield from _sglang_faults(run, section)
    else:
        yield from _sglang_server_faults(run)


def _sharing_faults(run: Run) -> Iterator[str]:
    """Faults in how engines share GPUs with the trainer."""
    cluster = run.cluster
    if (
        run.rollout.colocated
        and isinstance(cluster, RayClusterConfig)
        and cluster.nodes * cluster.gpus_per_node > 1
    ):
        yield (
            "rollout.colocated is true, and the actors of a Ray cluster with several GPUs do not share them; remove "
            "it, or write `cluster: local` for one machine"
        )
    if run.rollout.release_memory and isinstance(run.rollout.engine, ServerConnectionConfig):
        yield "rollout.release_memory is true, and a server does not release its memory; remove it"
    if run.rollout.release_memory and run.is_distributed:
        yield (
            "rollout.release_memory is true, but explorer and trainer are separate processes that do not wait for each "
            "other's memory; remove it, or write `synchronizer: memory`"
        )


def fixed_weights_fault(run: Run) -> str | None:
    """Why the run cannot train with its engine; None for an engine that loads the trained weights."""
    engine = run.rollout.engine
    if run.mode == "bench" or not isinstance(engine, OpenAiEngineConfig) or engine.weight_updates != "none":
        return None
    return (
        "rollout.engine.type is openai without weight_updates: the server samples with the weights that it has, so "
        "nothing that this run trains would reach it. It can evaluate (`strop evaluate`, `strop generate`, mode: "
        "bench). To train, write `weight_updates: vllm` for a server of vLLM, or `rollout.engine: native` or `vllm`"
    )


def _native_faults(run: Run, section: NativeEngineConfig, where: str) -> Iterator[str]:
    yield from _too_short(run, f"{where}.kv_cache_tokens", section.kv_cache_tokens)


def _vllm_faults(run: Run, section: VllmEngineConfig, where: str) -> Iterator[str]:
    if section.max_model_len is not None:
        yield from _too_short(run, f"{where}.max_model_len", section.max_model_len)
    yield from _load_format_faults(run, section, where)


def _sglang_faults(run: Run, section: SglangEngineConfig) -> Iterator[str]:
    where = "rollout.engine"
    for field in ("context_length", "max_total_tokens"):
        limit = getattr(section, field)
        if limit is not None:
            yield from _too_short(run, f"{where}.{field}", limit)
    yield from _load_format_faults(run, section, where)
    yield from _sglang_sampling_faults(run)


def _sglang_server_faults(run: Run) -> Iterator[str]:
    if run.rollout.pool is not None and run.rollout.pool.engines > 1:
        yield "rollout.pool.engines: every engine would load weights into the same server; write 1"
    yield from _sglang_sampling_faults(run)


def _sglang_sampling_faults(run: Run) -> Iterator[str]:
    samplings = {"rollout.sampling": run.rollout.sampling} | {
        f"data.eval.{index}.sampling": taskset.sampling for index, taskset in enumerate(run.data.eval)
    }
    for key, sampling in samplings.items():
        yield from _sampling_faults_of(key, sampling)


def _sampling_faults_of(key: str, sampling: SamplingConfig) -> Iterator[str]:
    if sampling.repetition_penalty != 1:
        yield (
            f"{key}.repetition_penalty is {sampling.repetition_penalty:g}, but SGLang's penalty leaves out the "
            "prompt's tokens, so its responses would follow another distribution; write 1, or another engine"
        )
    if sampling.ignore_eos and sampling.stop_token_ids and sampling.min_response_tokens > 0:
        yield (
            f"{key}: with ignore_eos, stop_token_ids and min_response_tokens SGLang also excludes the end token at "
            "first; remove one of the three"
        )


def _load_format_faults(run: Run, section: ServingEngineConfig, where: str) -> Iterator[str]:
    if section.load_format != "dummy":
        return
    if run.model.lora is not None and not section.merge_lora:
        yield f"{where}.load_format is dummy, but only the LoRA adapter is sent to the engine; write auto"
    elif not isinstance(run.synchronizer, MemorySyncConfig):
        yield (
            f"{where}.load_format is dummy, but a separate explorer starts with the initial model; write auto"
        )


def _server_faults(run: Run, section: OpenAiEngineConfig) -> Iterator[str]:
    if run.rollout.pool is not None:
        yield "rollout.pool starts engines, but rollout.engine is a server that runs already; remove rollout.pool"
    if section.weight_updates != "none":
        if not isinstance(run.synchronizer, MemorySyncConfig):
            yield (
                "rollout.engine.weight_updates is set, but a separate explorer does not update a server; write "
                "`synchronizer: memory`"
            )
        return
    if run.mode == "bench" and run.bench.checkpoints:
        yield (
            "bench.checkpoints: a server without weight_updates is evaluated with the weights that it has; remove the "
            "key, or write `rollout.engine: native`"
        )
    if run.mode == "bench" and not run.bench.initial_model:
        yield (
            "bench.initial_model is false, but a server without weight_updates is evaluated with the weights that it "
            "has; write true"
        )


def _too_short(run: Run, key: str, limit: int) -> Iterator[str]:
    longest, formula = run.max_sequence_tokens, "rollout.max_sequence_tokens"
    if run.rollout.max_sequence_tokens is None:
        formula = "data.max_prompt_tokens + data.max_response_tokens"
    if longest > limit:
        yield (
            f"{key} ({limit}) is less than one sequence of maximum length ({longest} = {formula}); write a "
            "larger value"
        )
