"""Ledger and reader of verl's `generation.yaml`, which generates responses to a file of prompts. The
documentation of verl 0.3.1 does not list it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strop.compat.hydra import ConfigSelection, read_command_line, select
from strop.compat.ledger.key_mapping import (
    INTEGER,
    NAMES,
    NATIVE_SAMPLER,
    NO_RAY,
    NO_SHARDS,
    ONE_GPU,
    ONE_MACHINE,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    KeyOwnerHint,
    Ledger,
    aliases,
    mapped,
    never,
    no_effect,
    no_key_owner,
    not_on_page,
    nullable,
    one_of,
    only,
    placement,
    placement_section,
    refused,
)
from strop.compat.ledger.reader import (
    ForeignConfig,
    apply_converters,
    check_values,
    notices_on_error,
    usage_notes,
)
from strop.compat.verl.data import all_tokens, image_columns
from strop.compat.verl.engine import one_gpu
from strop.compat.verl.hydra import GENERATION
from strop.config.load.schema_faults import value_reason
from strop.config.machine import OverriddenKey, here_requested
from strop.config.schema.generation import GenerationConfig
from strop.errors import ConfigError

_DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}


def prompts(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the columns of prompts and images; the other columns are copied to the output."""
    columns = {"path": foreign["data.path"], "prompt": foreign["data.prompt_key"], "answer": None}
    return {"data.train": columns | image_columns(foreign, "data.path"), "data.overlong": "right"}


def sampling(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the sampling options; `do_sample: False` means greedy sampling at any temperature."""
    greedy = not foreign["rollout.do_sample"] or foreign["rollout.temperature"] == 0
    settings = {"temperature": 0.0, "ignore_eos": foreign["rollout.ignore_eos"]}
    if not greedy:
        settings["temperature"] = foreign["rollout.temperature"]
        settings["top_p"] = foreign["rollout.top_p"]
        settings["top_k"] = all_tokens(foreign["rollout.top_k"])
    elif foreign["data.n_samples"] > 1:
        raise foreign.error_for(
            "data.n_samples",
            f"data.n_samples is {foreign['data.n_samples']}, but greedy responses to one prompt are "
            "identical; write data.n_samples=1, or a rollout.temperature above 0.",
        )
    return {f"sampling.{name}": value for name, value in settings.items()}


def precision(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the dtype of the weights and of the computation."""
    return {"model.dtype": _DTYPES.get(foreign["rollout.dtype"], "bfloat16")}


_sampling_row = partial(mapped, read=sampling)
_row = partial(mapped, read=prompts)
_ROWS = not_on_page(
    placement("trainer.nnodes", 1, ONE_MACHINE, supported=only(1)),
    placement("trainer.n_gpus_per_node", 8, ONE_GPU, supported=one_gpu),
    _row("data.path", "~/data/rlhf/math/test.parquet", "data.train.path", value_type=STRING_OR_LIST),
    _row("data.prompt_key", "prompt", "data.train.prompt"),
    _row(
        "data.image_key",
        "images",
        "data.train.images",
        value_type=nullable(STRING),
        note="images of the rows that have this column; without it in the files, prompts are text",
    ),
    mapped("data.n_samples", 5, "rollouts_per_task", note="number of responses per prompt"),
    mapped("data.output_path", "/opt/tiger/math_Qwen2-7B-Instruct.parquet", "output"),
    mapped("data.batch_size", 128, "tasks_per_batch", note="counts prompts"),
    mapped("data.trust_remote_code", False, "model.trust_remote_code"),
    mapped("model.path", "~/models/Qwen2-7B-Instruct", "model.path"),
    mapped("model.external_lib", None, "model.imports", converts=NAMES, value_type=nullable(STRING_OR_LIST)),
    placement(
        "rollout.name",
        "vllm",
        "the native sampler in this process",
        value_type=one_of("vllm", "sglang", "hf"),
        supported=never,
    ),
    placement(
        "rollout.mode",
        "sync",
        "the native sampler in this process",
        value_type=one_of("sync", "async"),
        supported=only("sync"),
    ),
    _sampling_row("rollout.temperature", 1.0, "sampling.temperature"),
    _sampling_row("rollout.top_k", 50, "sampling.top_k", note="-1 and 0 keep all tokens"),
    _sampling_row("rollout.top_p", 0.7, "sampling.top_p"),
    mapped("rollout.prompt_length", 1536, "data.max_prompt_tokens", note="longer prompts lose their end"),
    mapped("rollout.response_length", 512, "data.max_response_tokens"),
    placement(
        "rollout.dtype",
        "bfloat16",
        "bfloat16",
        supported=only(*_DTYPES),
        value_type=one_of(*_DTYPES, "float16", "fp16", "half", "auto"),
        fields=("model.dtype",),
        read=precision,
    ),
    placement("rollout.gpu_memory_utilization", 0.5, NATIVE_SAMPLER, supported=never),
    _sampling_row("rollout.ignore_eos", False, "sampling.ignore_eos"),
    placement("rollout.enforce_eager", True, NATIVE_SAMPLER),
    placement("rollout.free_cache_engine", True, NATIVE_SAMPLER),
    placement(
        "rollout.load_format", "dummy_dtensor", "the sampler loads the model's weights", supported=never
    ),
    placement("rollout.tensor_model_parallel_size", 1, NO_SHARDS, supported=only(1)),
    placement(
        "rollout.max_num_batched_tokens", 8192, NATIVE_SAMPLER, value_type=nullable(INTEGER), supported=never
    ),
    placement(
        "rollout.max_model_len",
        None,
        "rollout.prompt_length and rollout.response_length bound a sequence",
        value_type=nullable(INTEGER),
        supported=only(None),
    ),
    mapped("rollout.max_num_seqs", 1024, "engine.max_sequences"),
    *(
        placement(f"rollout.{name}", default, "no log-probs are computed", value_type=nullable(INTEGER))
        for name, default in (("log_prob_micro_batch_size", None), ("log_prob_micro_batch_size_per_gpu", 8))
    ),
    refused(
        "rollout.use_fire_sampling", False, "Strop samples the first token like all others; remove the key"
    ),
    _sampling_row(
        "rollout.do_sample",
        True,
        "sampling.temperature",
        note="False means greedy sampling at any temperature",
    ),
    placement("rollout.disable_log_stats", True, NATIVE_SAMPLER),
    placement("rollout.enable_chunked_prefill", True, NATIVE_SAMPLER),
    refused("rollout.n", 1, "write data.n_samples, the number of responses per prompt", value_type=INTEGER),
    placement(
        "actor.strategy",
        "fsdp",
        "a single process generates",
        value_type=one_of("fsdp", "fsdp2", "megatron"),
        supported=only("fsdp", "fsdp2"),
    ),
    placement("actor.ulysses_sequence_parallel_size", 1, NO_SHARDS, supported=only(1)),
    placement("actor.fsdp_config.fsdp_size", -1, NO_SHARDS, supported=only(-1, 1)),
    placement("ray_init.num_cpus", None, NO_RAY, value_type=nullable(INTEGER), supported=only(None)),
    placement("ray_init.timeline_json_file", None, NO_RAY, value_type=nullable(STRING), supported=only(None)),
    placement(
        "trainer.device", "cuda", "this machine's GPU, or its CPU if there is no GPU", supported=only("cuda")
    ),
    placement("rollout.data_parallel_size", 1, NO_SHARDS, supported=only(1)),
    no_effect("rollout.calculate_log_probs", False, "the output has responses only"),
    *(
        no_effect(f"actor.{name}", UNSET, "generation does not train")
        for name in (
            "entropy_from_logits_with_chunking",
            "entropy_checkpointing",
            "fsdp_config.forward_prefetch",
        )
    ),
    refused("actor.*", UNSET, "generation does not train, so the actor has no other keys; remove it"),
)
_SERVER = "actor_rollout_ref"
_SERVER_NAMES = {
    "data.train_files": "data.path",
    f"{_SERVER}.model.path": "model.path",
    f"{_SERVER}.model.external_lib": "model.external_lib",
    f"{_SERVER}.model.trust_remote_code": "data.trust_remote_code",
    f"{_SERVER}.rollout.n": "data.n_samples",
    **{
        f"{_SERVER}.rollout.{name}": f"rollout.{name}"
        for name in ("temperature", "top_p", "prompt_length", "response_length", "dtype", "max_num_seqs")
    },
    "model.trust_remote_code": "data.trust_remote_code",
}
"""Keys of `verl.trainer.main_generation_server`, with the key of `main_generation` that means the same."""
_SERVER_ROWS = not_on_page(
    no_effect(
        f"{_SERVER}.rollout.top_k",
        UNSET,
        "verl.trainer.main_generation_server does not pass it to the server, so all tokens are kept",
    ),
    placement_section(f"{_SERVER}.rollout", NATIVE_SAMPLER),
    placement_section(f"{_SERVER}.actor", "a single process generates"),
    placement_section("ray_kwargs", NO_RAY),
    no_effect("hydra.*", UNSET, "the output is data.output_path"),
)
LEDGER = Ledger("verl-generate", (*_ROWS, *_SERVER_ROWS, *aliases(_ROWS, _SERVER_NAMES)))


def _default_config(overrides: Sequence[str]) -> str:
    """Name of the configuration of the program whose keys the overrides have."""
    keys = (text.lstrip("+") for text in overrides)
    return "generation_server" if any(key.startswith(f"{_SERVER}.") for key in keys) else "generation"


def describe_generation(generation: GenerationConfig) -> str:
    """A description in plain English of what is sampled, from which model, and where the responses go."""
    data, sampling = generation.data, generation.sampling
    files = data.train.path if isinstance(data.train.path, str) else ", ".join(data.train.path)
    how = (
        "greedily"
        if sampling.temperature == 0
        else (
            f"at temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, top-k {sampling.top_k or 'all'}"
        )
    )
    return (
        f"Samples {generation.rollouts_per_task} responses of up to {data.max_response_tokens} tokens, {how}, to "
        f"every prompt in the column {data.train.prompt} of {files}, from {generation.model.path}, and writes the "
        f"file's rows with a column of responses to {generation.output}. Trains nothing."
    )


@dataclass(frozen=True, slots=True)
class LoadedGeneration:
    """A generation with its overridden placement keys and its notices."""

    generation: GenerationConfig
    overridden: tuple[OverriddenKey, ...]
    notes: tuple[str, ...]


def read_verl_generate(
    overrides: Sequence[str],
    *,
    config: Path | None = None,
    selection: ConfigSelection | None = None,
    here: bool = False,
    key_owner: KeyOwnerHint = no_key_owner,
) -> LoadedGeneration:
    """Read the arguments of `python -m verl.trainer.main_generation`.

    Raises ConfigError for a key or value that is not accepted, and PlacementError for hardware and engines
    that this machine does not have, unless `here` or STROP_HERE overrides them.
    """
    selection = select(config, selection)
    tree = read_command_line(LEDGER, GENERATION, _default_config(overrides), overrides, selection, key_owner)
    foreign = ForeignConfig(LEDGER, tree, here=here_requested(here), key_owner=key_owner)
    with notices_on_error(foreign):
        overridden = check_values(foreign)
        fields = apply_converters(foreign)
        try:
            generation = GenerationConfig.model_validate(fields.values)
        except ValidationError as error:
            first = error.errors()[0]
            keys = tuple(str(part) for part in first["loc"])
            raise ConfigError(
                f"{fields.locator(LEDGER.dialect)(keys)}: {value_reason(first, keys)}."
            ) from None
    return LoadedGeneration(generation, overridden, tuple(usage_notes(foreign)))
