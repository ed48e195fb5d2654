"""Ledger rows of Trinity's `model` section: paths, length limits, chat template, sampling and adapters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    UNSET,
    ForeignValues,
    KeyMapping,
    ReadFunction,
    always,
    mapped,
    never,
    no_effect,
    not_on_page,
    only,
    placement,
    refused,
    unless,
    unstated_defaults,
    versions,
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
from strop.compat.trinity.embedded_verl import embedded_converter, newer_row
from strop.compat.trinity.formats import EVAL, EXPERIENCE
from strop.compat.trinity.inference_model import serving_engine
from strop.compat.trinity.presets import is_offline, only_sampled, without_critic
from strop.compat.trinity.tasksets import tasks
from strop.compat.verl.critic import critic
from strop.config.schema import Run
from strop.config.schema.inference_engine import OpenAiEngineConfig
from strop.errors import ConfigError


def write_template(run: Run) -> Mapping[str, Any]:
    """Write the chat template; the template in a file is written as its path."""
    chat_template = run.data.chat_template
    return {} if chat_template == "tokenizer" else {"model.custom_chat_template": chat_template}


@written_by(write_template)
def template(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the chat template; the data's template takes precedence over the model's."""
    data_template = foreign[f"{EXPERIENCE}.format.chat_template"] if is_offline(foreign) else None
    chat_template = (
        data_template or foreign["model.custom_chat_template"] or foreign["model.chat_template_path"]
    )
    return {"data.chat_template": chat_template} if chat_template else {}


TEMPLATE_PATH = mapped(
    "model.chat_template_path",
    None,
    "data.chat_template",
    read=template,
    value_type=nullable(STRING),
    note="a Jinja file; custom_chat_template takes precedence",
)
TEMPLATE = mapped(
    "model.custom_chat_template",
    None,
    "data.chat_template",
    read=template,
    value_type=nullable(STRING),
    note="the Jinja template, not a path",
)
_CRITIC_MODEL = mapped(
    "model.critic_model_path",
    "${model.model_path}",
    "algorithm.critic.model",
    "algorithm.critic.model.path",
    read=embedded_converter(critic),
    value_type=nullable(STRING),
    inactive=without_critic,
    note="empty means the policy's model",
)
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
        return _tinker_adapter(foreign)
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


_EXTERNAL = "model.external_model"
_OPENAI = "https://api.openai.com/v1"
"""Address that OpenAI's client uses where the environment variable is not set."""
_no_external = unless(f"{_EXTERNAL}.enable", True)


def write_server(run: Run) -> Mapping[str, Any]:
    """Write that no server is used. Raises ConfigError for a run that uses one."""
    if isinstance(run.rollout.engine, OpenAiEngineConfig):
        raise ConfigError(
            "rollout.engine.type openai: Trinity takes the address of a server from an environment variable, so a "
            "configuration does not have it."
        )
    return {}


@written_by(write_server)
def server(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the server, whose address is in an environment variable."""
    if _no_external(foreign):
        return {}
    if foreign["mode"] != "bench":
        raise foreign.error_for(
            f"{_EXTERNAL}.enable",
            f"{_EXTERNAL}.enable is true, which only mode: bench supports; mode is {foreign['mode']}.",
        )
    engine = {
        "type": "openai",
        "base_url": os.environ.get(foreign[f"{_EXTERNAL}.base_url_env"]) or _OPENAI,
        "model": foreign[f"{_EXTERNAL}.model_name"] or foreign["model.model_path"],
        "api_key_env": foreign[f"{_EXTERNAL}.api_key_env"],
        "api": "chat",
    }
    return {f"rollout.engine.{name}": value for name, value in engine.items()}


def _external_row(name: str, default: Any, field: str, note: str) -> KeyMapping:
    return mapped(
        f"{_EXTERNAL}.{name}",
        default,
        f"rollout.engine.{field}",
        read=server,
        value_type=nullable(STRING),
        inactive=_no_external,
        note=note,
    )


_EXTERNAL_MODEL = versions(
    mapped(
        f"{_EXTERNAL}.enable",
        False,
        "rollout.engine.type",
        "rollout.engine.api",
        read=server,
        note="evaluates the model of an OpenAI-compatible server; model.model_path then names the tokenizer that "
        "counts tokens, a folder or a name on the Hub",
    ),
    _external_row("model_name", None, "model", "null means model.model_path"),
    _external_row(
        "base_url_env", "OPENAI_BASE_URL", "base_url", f"environment variable; {_OPENAI} where it is not set"
    ),
    _external_row("api_key_env", "OPENAI_API_KEY", "api_key_env", "environment variable"),
    since="0.6",
)
_TINKER = "model.tinker"
_TINKER_ALPHA = 32
"""Alpha of the service's adapters, whatever their rank."""
_TINKER_MODULES = {
    "train_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "train_mlp": ("gate_proj", "up_proj", "down_proj"),
}
_no_tinker = unless(f"{_TINKER}.enable", True)


def _tinker_adapter(foreign: ForeignValues) -> dict[str, Any]:
    """The adapter that the service would train."""
    targets = [
        name for key, names in _TINKER_MODULES.items() if foreign[f"{_TINKER}.{key}"] for name in names
    ]
    everything = all(foreign[f"{_TINKER}.{key}"] for key in _TINKER_MODULES)
    return {
        "model.lora.rank": foreign[f"{_TINKER}.rank"],
        "model.lora.alpha": _TINKER_ALPHA,
        "model.lora.targets": "all-linear" if everything else targets,
    }


def _tinker_rows(read: ReadFunction) -> tuple[KeyMapping, ...]:
    """The section's rows; `read` is the converter of the adapter."""
    return not_on_page(
        placement(
            f"{_TINKER}.enable",
            False,
            "Tinker is a service that trains and samples on its own machines; --here trains the same adapter on this "
            "machine, without one of the output layer",
            supported=only(False),
        ),
        *(
            mapped(f"{_TINKER}.{name}", default, field, read=read, inactive=_no_tinker)
            for name, default, field in (
                ("rank", 16, "model.lora.rank"),
                ("train_mlp", True, "model.lora.targets"),
                ("train_attn", True, "model.lora.targets"),
            )
        ),
        no_effect(f"{_TINKER}.train_unembed", True, "Strop's adapter leaves the output layer as it is"),
        no_effect(f"{_TINKER}.seed", None, "the run has one seed", value_type=nullable(INTEGER)),
        no_effect(
            f"{_TINKER}.forward_backward_chunk_bytes", UNSET, "the service is not used", value_type=ANY
        ),
        no_effect(f"{_TINKER}.base_url", None, "the service is not used", value_type=nullable(STRING)),
    )


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
    *_EXTERNAL_MODEL,
    *_tinker_rows(lora),
    placement("model.fully_sharded_loras", False, NO_SHARDS, supported=always),
    placement(
        "model.max_cpu_loras", None, "a run has one adapter", supported=always, value_type=nullable(INTEGER)
    ),
)
ROWS = (
    mapped("model.model_path", UNSET, "model.path", value_type=STRING),
    _CRITIC_MODEL,
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
        refused("model.lora_configs.0.*", UNSET, "an adapter has no such key; remove it", supported=never),
    ),
)
