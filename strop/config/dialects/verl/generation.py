"""verl's `generation.yaml`: a file of prompts that a model answers. The page does not have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strop.config.dialects.lines import draft_of
from strop.config.dialects.read import check_written, convert, notes_of
from strop.config.dialects.row import (
    NUMBER,
    TEXT,
    TEXTS,
    UNSET,
    WHOLE,
    always,
    beyond_the_page,
    mapped,
    never,
    one_of,
    only,
    or_null,
    placement,
    refused,
)
from strop.config.dialects.theirs import Ledger, Theirs
from strop.config.dialects.verl.data import all_tokens
from strop.config.dialects.verl.engine import NO_SHARDS
from strop.config.dialects.verl.trainer import one_gpu
from strop.config.placement import SetAside, wants_here
from strop.config.schema.generation import Generation
from strop.errors import ConfigError

_NATIVE = "the native sampler needs none of it"
_NO_RAY = "one process runs, without Ray"
_DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}


def prompts(theirs: Theirs) -> Mapping[str, Any]:
    """Only the prompt is read; the other columns go into the output as they are."""
    return {
        "data.train": {"path": theirs["data.path"], "prompt": theirs["data.prompt_key"], "answer": None},
        "data.overlong": "right",
    }


def sampling(theirs: Theirs) -> Mapping[str, Any]:
    """`do_sample: False` is greedy, whatever the temperature says."""
    greedy = not theirs["rollout.do_sample"] or theirs["rollout.temperature"] == 0
    settings = {"temperature": 0.0, "ignore_eos": theirs["rollout.ignore_eos"]}
    if not greedy:
        settings["temperature"] = theirs["rollout.temperature"]
        settings["top_p"] = theirs["rollout.top_p"]
        settings["top_k"] = all_tokens(theirs["rollout.top_k"])
    elif theirs["data.n_samples"] > 1:
        raise theirs.fault(
            "data.n_samples",
            f"data.n_samples is {theirs['data.n_samples']}, but greedy answers to one prompt are all alike; "
            "write data.n_samples=1, or a rollout.temperature above 0.",
        )
    return {f"sampling.{name}": value for name, value in settings.items()}


def libraries(theirs: Theirs) -> Mapping[str, Any]:
    """One or several."""
    said = theirs["model.external_lib"]
    return {"model.imports": [said] if isinstance(said, str) else said or []}


def precision(theirs: Theirs) -> Mapping[str, Any]:
    """Of the weights and of what is computed with them."""
    return {"model.dtype": _DTYPES.get(theirs["rollout.dtype"], "bfloat16")}


LEDGER = Ledger(
    "verl-generate",
    beyond_the_page(
        placement("trainer.nnodes", 1, "one process, on this machine", can=only(1)),
        placement(
            "trainer.n_gpus_per_node", 8, "one process, on this machine's GPU or else its CPU", can=one_gpu
        ),
        mapped("data.path", "~/data/rlhf/math/test.parquet", "data.train.path", read=prompts, kind=TEXTS),
        mapped("data.prompt_key", "prompt", "data.train.prompt", read=prompts),
        mapped("data.n_samples", 5, "rollouts_per_task", note="answers to each prompt"),
        mapped("data.output_path", "/opt/tiger/math_Qwen2-7B-Instruct.parquet", "output"),
        mapped("data.batch_size", 128, "tasks_at_once", note="counts prompts"),
        mapped("data.trust_remote_code", False, "model.trust_remote_code"),
        mapped("model.path", "~/models/Qwen2-7B-Instruct", "model.path"),
        mapped("model.external_lib", None, "model.imports", read=libraries, kind=or_null(TEXTS)),
        placement(
            "rollout.name",
            "vllm",
            "the native sampler, in this process",
            kind=one_of("vllm", "sglang", "hf"),
            can=never,
        ),
        placement(
            "rollout.mode",
            "sync",
            "the native sampler, in this process",
            kind=one_of("sync", "async"),
            can=only("sync"),
        ),
        mapped("rollout.temperature", 1.0, "sampling.temperature", read=sampling),
        mapped("rollout.top_k", 50, "sampling.top_k", read=sampling, note="-1 and 0 keep all"),
        mapped("rollout.top_p", 0.7, "sampling.top_p", read=sampling, kind=NUMBER),
        mapped(
            "rollout.prompt_length",
            1536,
            "data.max_prompt_tokens",
            note="what is longer loses its end",
        ),
        mapped("rollout.response_length", 512, "data.max_response_tokens"),
        placement(
            "rollout.dtype",
            "bfloat16",
            "bfloat16",
            can=only(*_DTYPES),
            kind=one_of(*_DTYPES, "float16", "fp16", "half", "auto"),
            ours=("model.dtype",),
            read=precision,
        ),
        placement("rollout.gpu_memory_utilization", 0.5, _NATIVE, can=never, kind=NUMBER),
        mapped("rollout.ignore_eos", False, "sampling.ignore_eos", read=sampling),
        placement("rollout.enforce_eager", True, _NATIVE, can=always),
        placement("rollout.free_cache_engine", True, _NATIVE, can=always),
        placement("rollout.load_format", "dummy_dtensor", "the model's weights are read", can=never),
        placement("rollout.tensor_model_parallel_size", 1, NO_SHARDS, can=only(1)),
        placement("rollout.max_num_batched_tokens", 8192, _NATIVE, kind=or_null(WHOLE), can=never),
        placement(
            "rollout.max_model_len",
            None,
            "prompt and answer have the room that their lengths give them",
            kind=or_null(WHOLE),
            can=only(None),
        ),
        mapped("rollout.max_num_seqs", 1024, "engine.max_sequences"),
        *(
            placement(
                f"rollout.{name}", default, "no log-probs are computed", kind=or_null(WHOLE), can=always
            )
            for name, default in (
                ("log_prob_micro_batch_size", None),
                ("log_prob_micro_batch_size_per_gpu", 8),
            )
        ),
        refused("rollout.use_fire_sampling", False, "its first token is drawn like all others; leave it out"),
        mapped(
            "rollout.do_sample",
            True,
            "sampling.temperature",
            read=sampling,
            note="False is greedy, whatever the temperature",
        ),
        placement("rollout.disable_log_stats", True, _NATIVE, can=always),
        placement("rollout.enable_chunked_prefill", True, _NATIVE, can=always),
        refused("rollout.n", 1, "write data.n_samples, which is how many answers a prompt gets", kind=WHOLE),
        placement(
            "actor.strategy",
            "fsdp",
            "one process answers",
            kind=one_of("fsdp", "fsdp2", "megatron"),
            can=only("fsdp", "fsdp2"),
        ),
        placement("actor.ulysses_sequence_parallel_size", 1, NO_SHARDS, can=only(1)),
        placement("actor.fsdp_config.fsdp_size", -1, NO_SHARDS, can=only(-1, 1)),
        placement("ray_init.num_cpus", None, _NO_RAY, kind=or_null(WHOLE), can=only(None)),
        placement("ray_init.timeline_json_file", None, _NO_RAY, kind=or_null(TEXT), can=only(None)),
        refused("actor.*", UNSET, "nothing is trained, so the actor has no other keys", can=never),
    ),
)


@dataclass(frozen=True, slots=True)
class Read:
    """What is to be done, and what a reader should know of how it was said."""

    generation: Generation
    set_aside: tuple[SetAside, ...]
    notes: tuple[str, ...]


def read_verl_generate(overrides: Sequence[str], *, config: Path | None = None, here: bool = False) -> Read:
    """Read what `python -m verl.trainer.main_generation` is given.

    Raises ConfigError for a key or value that cannot be taken, PlacementError for hardware and
    engines that are not here, unless `here` or STROP_HERE sets them aside.
    """
    theirs = Theirs(LEDGER, draft_of(LEDGER, overrides, config), here=wants_here(here))
    set_aside = check_written(theirs)
    ours = convert(theirs)
    try:
        generation = Generation.model_validate(ours.values)
    except ValidationError as error:
        first = error.errors()[0]
        keys = tuple(str(part) for part in first["loc"])
        raise ConfigError(f"{ours.locator(LEDGER.dialect)(keys)}: {first['msg']}.") from None
    return Read(generation, set_aside, tuple(notes_of(theirs)))
