"""Ledger rows of Trinity's `model` section: paths, length limits, chat template, sampling and adapters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    ANY,
    INTEGER,
    MAPPING_LIST,
    NO_SHARDS,
    NUMBER,
    STRING,
    STRING_OR_LIST,
    UNSET,
    ForeignValues,
    mapped,
    no_effect,
    not_on_page,
    nullable,
    only,
    placement,
    refused,
    unless,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.embedded_verl import embedded_converter, newer_row
from strop.compat.trinity.formats import EVAL, EXPERIENCE
from strop.compat.trinity.inference_model import serving_engine
from strop.compat.trinity.presets import is_offline, only_sampled, without_critic
from strop.compat.trinity.tasksets import tasks
from strop.compat.verl.critic import critic
from strop.config.schema import Run
from strop.config.schema.rollout import OpenAiEngineConfig
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


@written_by(
    lambda run: {
        "model.max_prompt_tokens": run.data.max_prompt_tokens,
        "model.max_response_tokens": run.data.max_response_tokens,
        "model.max_model_len": run.rollout.max_sequence_tokens,
    }
)
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


def _limits(foreign: ForeignValues) -> tuple[int, int, int | None]:
    """The limits of prompt, response and both together; a missing one follows from the other two."""
    prompt, response = foreign["model.max_prompt_tokens"], foreign["model.max_response_tokens"]
    total = foreign["model.max_model_len"]
    given = {"model.max_prompt_tokens": prompt, "model.max_response_tokens": response}
    lacking = [key for key, limit in given.items() if limit is None]
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


_LORA = "model.lora_configs.0"
_ADAPTER = {
    "lora_rank": ("rank", 32),
    "lora_alpha": ("alpha", 32),
    "target_modules": ("targets", "all-linear"),
    "exclude_modules": ("exclude", None),
    "path": ("adapter", None),
}
"""Field and default of each key of an adapter."""


def write_lora(run: Run) -> Mapping[str, Any]:
    """Write the LoRA adapter, if any."""
    adapter = run.model.lora
    if adapter is None:
        return {}
    return {f"{_LORA}.{key}": getattr(adapter, field) for key, (field, _) in _ADAPTER.items()}


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
    values = {field: adapter.get(key, default) for key, (field, default) in _ADAPTER.items()}
    values["adapter"] = values["adapter"] or None
    return {f"model.lora.{field}": value for field, value in values.items()}


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


def _nothing_sampled(foreign: ForeignValues) -> str | None:
    return None if foreign[EVAL] else only_sampled(foreign)


_TEXT, _INTEGER = nullable(STRING), nullable(INTEGER)
_OF_CONFIG = "write a model folder whose config.json has it"
_NO_ACTORS = "a single process without actors"
_row = partial(mapped, read=lora)
_LORA_CONFIGS = (
    _row("model.lora_configs", None, "model.lora", value_type=MAPPING_LIST),
    _row(f"{_LORA}.lora_rank", 32, "model.lora.rank"),
    _row(f"{_LORA}.lora_alpha", 32, "model.lora.alpha"),
    _row(f"{_LORA}.target_modules", "all-linear", "model.lora.targets"),
    _row(f"{_LORA}.exclude_modules", None, "model.lora.exclude", value_type=nullable(STRING_OR_LIST)),
    _row(
        f"{_LORA}.path",
        None,
        "model.lora.adapter",
        value_type=_TEXT,
        note="folder of the adapter that the run starts from",
    ),
    no_effect(f"{_LORA}.is_dummy", UNSET, "Trinity sets it itself"),
    placement(f"{_LORA}.name", None, _NO_ACTORS),
    placement(f"{_LORA}.base_model_name", None, _NO_ACTORS),
    placement(f"{_LORA}.lora_dtype", "auto", "the adapter has the model's dtype", supported=only("auto")),
    refused(f"{_LORA}.*", UNSET, "an adapter has no such key; remove it"),
    placement("model.fully_sharded_loras", False, NO_SHARDS),
    placement("model.max_cpu_loras", None, "a run has one adapter", value_type=_INTEGER),
)
_TINKER_ROWS = (
    placement(
        f"{_TINKER}.enable",
        False,
        "Tinker is a service that trains and samples on its own machines; --here trains the same adapter on this "
        "machine, without one of the output layer",
        supported=only(False),
    ),
    _row(f"{_TINKER}.rank", 16, "model.lora.rank", inactive=_no_tinker),
    _row(f"{_TINKER}.train_mlp", True, "model.lora.targets", inactive=_no_tinker),
    _row(f"{_TINKER}.train_attn", True, "model.lora.targets", inactive=_no_tinker),
    no_effect(f"{_TINKER}.train_unembed", True, "Strop's adapter leaves the output layer as it is"),
    no_effect(f"{_TINKER}.seed", None, "the run has one seed", value_type=_INTEGER),
    no_effect(f"{_TINKER}.forward_backward_chunk_bytes", UNSET, "the service is not used"),
    no_effect(f"{_TINKER}.base_url", None, "the service is not used", value_type=_TEXT),
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
    *(
        mapped(
            f"{_EXTERNAL}.{name}",
            default,
            f"rollout.engine.{field}",
            read=server,
            value_type=_TEXT,
            inactive=_no_external,
            note=note,
        )
        for name, default, field, note in (
            ("model_name", None, "model", "null means model.model_path"),
            (
                "base_url_env",
                "OPENAI_BASE_URL",
                "base_url",
                f"environment variable; {_OPENAI} where it is not set",
            ),
            ("api_key_env", "OPENAI_API_KEY", "api_key_env", "environment variable"),
        )
    ),
    since="0.6",
)
_lengths_row = partial(mapped, read=lengths)
_tasks_row = partial(mapped, read=tasks)
ROWS = (
    mapped("model.model_path", UNSET, "model.path", value_type=STRING),
    mapped(
        "model.critic_model_path",
        "${model.model_path}",
        "algorithm.critic.model",
        "algorithm.critic.model.path",
        read=embedded_converter(critic),
        value_type=_TEXT,
        inactive=without_critic,
        note="empty means the policy's model",
    ),
    *unstated_defaults(
        _lengths_row(
            "model.max_model_len",
            None,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            "rollout.max_sequence_tokens",
            value_type=_INTEGER,
        ),
        _lengths_row("model.max_prompt_tokens", None, "data.max_prompt_tokens", value_type=_INTEGER),
        _lengths_row("model.max_response_tokens", None, "data.max_response_tokens", value_type=_INTEGER),
    ),
    _tasks_row(
        "model.min_response_tokens", 1, "rollout.sampling.min_response_tokens", inactive=_nothing_sampled
    ),
    *not_on_page(
        mapped(
            "model.custom_chat_template",
            None,
            "data.chat_template",
            read=template,
            value_type=_TEXT,
            note="the Jinja template, not a path",
        ),
        mapped(
            "model.chat_template_path",
            None,
            "data.chat_template",
            read=template,
            value_type=_TEXT,
            note="a Jinja file; custom_chat_template takes precedence",
        ),
        *(
            _tasks_row(
                f"model.{name}",
                default,
                f"rollout.sampling.{name}",
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
        placement("model.logprobs", 0, "log-probs are always recorded", value_type=ANY),
        _tasks_row(
            "model.enable_prompt_truncation",
            True,
            "data.overlong",
            inactive=only_sampled,
            note="true keeps the end of a prompt above max_prompt_tokens",
        ),
        refused("model.rope_scaling", None, _OF_CONFIG),
        refused("model.rope_theta", None, _OF_CONFIG),
        newer_row("model.trust_remote_code", False, "0.5"),
        *_EXTERNAL_MODEL,
        *_TINKER_ROWS,
        *_LORA_CONFIGS,
    ),
)
