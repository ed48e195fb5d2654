"""Checks of the inference engine against the rest of the run."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.inference_engine import (
    AutoEngineConfig,
    NativeEngineConfig,
    OpenAiEngineConfig,
    ServerConnectionConfig,
    ServingEngineConfig,
    SglangEngineConfig,
    VllmEngineConfig,
)
from strop.config.schema.rollout import SamplingConfig
from strop.config.schema.run import Run
from strop.config.schema.synchronizer import MemorySyncConfig


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
