"""Ledger rows of Trinity's `model` section: model path, length limits and LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    always,
    mapped,
    never,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unstated_defaults,
    written_by,
)
from strop.compat.ledger.placement_notes import NO_SHARDS
from strop.compat.ledger.value_types import (
    ANY,
    BOOLEAN,
    INTEGER,
    MAPPING_LIST,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    nullable,
)
from strop.compat.trinity import critic, external_model, tinker
from strop.compat.trinity.buffer_writer import EVAL
from strop.compat.trinity.embedded_verl import newer_row
from strop.compat.trinity.experience_buffer import TEMPLATE, TEMPLATE_PATH
from strop.compat.trinity.presets import is_offline, only_sampled
from strop.compat.trinity.serving_engine import serving_engine
from strop.compat.trinity.tasksets import tasks
from strop.config.schema import Run

_NO_ACTORS = "a single process without actors"


def write_lengths(run: Run) -> Mapping[str, Any]:
    """Write the length limits of prompts, responses and whole sequences."""
    return {
        "model.max_prompt_tokens": run.data.max_prompt_tokens,
        "model.max_response_tokens": run.data.max_response_tokens,
        "model.max_model_len": run.rollout.max_sequence_tokens,
    }


@written_by(write_lengths)
def lengths(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the length limits; the limit of a whole conversation is set where it is not the sum of the other
    two."""
    prompt, response, total = _limits(foreign)
    settings: dict[str, Any] = {"data.max_prompt_tokens": prompt, "data.max_response_tokens": response}
    longest = prompt + response
    if total is not None and total != longest and not is_offline(foreign):
        settings["rollout.max_sequence_tokens"] = longest = total
    if longest > 131072 and serving_engine(foreign) is None:
        settings["rollout.engine.kv_cache_tokens"] = longest
    return settings


def _nothing_sampled(foreign: ForeignValues) -> str | None:
    return None if foreign[EVAL] else only_sampled(foreign)


def _limits(foreign: ForeignValues) -> tuple[int, int, int | None]:
    """The limits of prompt, response and both together; a missing one follows from the other two."""
    prompt, response = foreign["model.max_prompt_tokens"], foreign["model.max_response_tokens"]
    total = foreign["model.max_model_len"]
    lacking = [
        key
        for key, limit in (("model.max_prompt_tokens", prompt), ("model.max_response_tokens", response))
        if limit is None
    ]
    if len(lacking) == 2 and total is not None:
        prompt = total // 2
    elif len(lacking) == 2 or (lacking and total is None):
        raise foreign.error_for(
            lacking[0], f"write {' and '.join(lacking)}: the length limits of prompt and response, in tokens."
        )
    if prompt is None:
        prompt = max(1, total - response)
    if response is None:
        response = max(1, total - prompt)
    return prompt, response, total


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the LoRA adapter, if any."""
    adapter, at = run.model.lora, "model.lora_configs.0"
    if adapter is None:
        return {}
    return {
        f"{at}.lora_rank": adapter.rank,
        f"{at}.lora_alpha": adapter.alpha,
        f"{at}.target_modules": adapter.targets,
        f"{at}.exclude_modules": adapter.exclude,
        f"{at}.path": adapter.adapter,
    }


@written_by(write_lora)
def lora(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the LoRA adapter. Raises ConfigError for several."""
    configs = foreign["model.lora_configs"]
    if foreign["model.tinker.enable"]:
        return tinker.adapter(foreign)
    if not configs:
        return {}
    if len(configs) > 1:
        raise foreign.error_for(
            "model.lora_configs", "model.lora_configs has several adapters, but a run trains one; write one."
        )
    adapter = configs["0"]
    return {
        "model.lora.rank": adapter.get("lora_rank", 32),
        "model.lora.alpha": adapter.get("lora_alpha", 32),
        "model.lora.targets": adapter.get("target_modules", "all-linear"),
        "model.lora.exclude": adapter.get("exclude_modules"),
        "model.lora.adapter": adapter.get("path") or None,
    }


_SAMPLING = (
    *(
        mapped(
            f"model.{name}",
            default,
            f"rollout.sampling.{name}",
            read=tasks,
            value_type=nullable(NUMBER),
            note="of tasksets without the key in rollout_args",
        )
        for name, default in (
            ("temperature", 1.0),
            ("top_p", 1.0),
            ("top_k", -1),
            ("repetition_penalty", 1.0),
        )
    ),
    placement("model.logprobs", 0, "log-probs are always recorded", supported=always, value_type=ANY),
    mapped(
        "model.enable_prompt_truncation",
        True,
        "data.overlong",
        read=tasks,
        value_type=BOOLEAN,
        inactive=only_sampled,
        note="true keeps the end of a prompt above max_prompt_tokens",
    ),
    *(
        refused(f"model.{name}", default, why)
        for name, default, why in (
            ("rope_scaling", None, "write a model folder whose config.json has it"),
            ("rope_theta", None, "write a model folder whose config.json has it"),
        )
    ),
    *external_model.ROWS,
    *tinker.rows(lora),
    placement("model.fully_sharded_loras", False, NO_SHARDS, supported=always),
    placement(
        "model.max_cpu_loras", None, "a run has one adapter", supported=always, value_type=nullable(INTEGER)
    ),
)
MODEL = (
    mapped("model.model_path", UNSET, "model.path", value_type=STRING),
    critic.MODEL,
    *unstated_defaults(
        mapped(
            "model.max_model_len",
            None,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            "rollout.max_sequence_tokens",
            read=lengths,
            value_type=nullable(INTEGER),
        ),
        mapped(
            "model.max_prompt_tokens",
            None,
            "data.max_prompt_tokens",
            read=lengths,
            value_type=nullable(INTEGER),
        ),
        mapped(
            "model.max_response_tokens",
            None,
            "data.max_response_tokens",
            read=lengths,
            value_type=nullable(INTEGER),
        ),
    ),
    mapped(
        "model.min_response_tokens",
        1,
        "rollout.sampling.min_response_tokens",
        read=tasks,
        inactive=_nothing_sampled,
    ),
    *not_on_page(
        TEMPLATE,
        TEMPLATE_PATH,
        *_SAMPLING,
        mapped("model.lora_configs", None, "model.lora", read=lora, value_type=MAPPING_LIST),
        mapped("model.lora_configs.0.lora_rank", 32, "model.lora.rank", read=lora),
        mapped("model.lora_configs.0.lora_alpha", 32, "model.lora.alpha", read=lora),
        mapped("model.lora_configs.0.target_modules", "all-linear", "model.lora.targets", read=lora),
        mapped(
            "model.lora_configs.0.exclude_modules",
            None,
            "model.lora.exclude",
            read=lora,
            value_type=nullable(STRING_OR_LIST),
        ),
        mapped(
            "model.lora_configs.0.path",
            None,
            "model.lora.adapter",
            read=lora,
            value_type=nullable(STRING),
            note="folder of the adapter that the run starts from",
        ),
        no_effect("model.lora_configs.0.is_dummy", UNSET, "Trinity sets it itself", value_type=ANY),
        newer_row("model.trust_remote_code", False, "0.5"),
        placement("model.lora_configs.0.name", None, _NO_ACTORS, supported=always, value_type=ANY),
        placement("model.lora_configs.0.base_model_name", None, _NO_ACTORS, supported=always, value_type=ANY),
        placement(
            "model.lora_configs.0.lora_dtype",
            "auto",
            "the adapter has the model's dtype",
            supported=only("auto"),
        ),
        refused(
            "model.lora_configs.0.*",
            UNSET,
            "an adapter has no such key; remove it",
            supported=never,
        ),
    ),
)
