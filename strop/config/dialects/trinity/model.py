"""Trinity's `model`: what is trained, how long its prompts and answers may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    ANY,
    LISTED,
    TEXT,
    UNSET,
    WHOLE,
    always,
    beyond_the_page,
    mapped,
    never,
    or_null,
    placement,
    refused,
    unstated,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import critic
from strop.config.dialects.trinity.experience import TEMPLATE
from strop.config.dialects.trinity.presets import is_offline, only_sampled
from strop.config.dialects.trinity.tasksets import tasks
from strop.config.dialects.trinity.write_buffer import EVAL
from strop.config.schema import Run

_NO_ACTORS = "one process, which has no actors to name"


def write_lengths(run: Run) -> Mapping[str, Any]:
    """The two limits."""
    return {
        "model.max_prompt_tokens": run.data.max_prompt_tokens,
        "model.max_response_tokens": run.data.max_response_tokens,
        "model.max_model_len": run.rollout.max_sequence_tokens,
    }


@written_by(write_lengths)
def lengths(theirs: Theirs) -> Mapping[str, Any]:
    """The two limits, and that of a whole conversation where it is another than both together."""
    prompt, response, whole = _limits(theirs)
    settings: dict[str, Any] = {"data.max_prompt_tokens": prompt, "data.max_response_tokens": response}
    longest = prompt + response
    if whole is not None and whole != longest and not is_offline(theirs):
        settings["rollout.max_sequence_tokens"] = longest = whole
    if longest > 131072:
        settings["rollout.engine.kv_cache_tokens"] = longest
    return settings


def _nothing_sampled(theirs: Theirs) -> str | None:
    return None if theirs[EVAL] else only_sampled(theirs)


def _limits(theirs: Theirs) -> tuple[int, int, int | None]:
    """Of prompt, answer and both; one that is left out is what the others leave."""
    prompt, response = theirs["model.max_prompt_tokens"], theirs["model.max_response_tokens"]
    whole = theirs["model.max_model_len"]
    lacking = [
        key
        for key, limit in (("model.max_prompt_tokens", prompt), ("model.max_response_tokens", response))
        if limit is None
    ]
    if len(lacking) == 2 or (lacking and whole is None):
        raise theirs.fault(lacking[0], f"write {' and '.join(lacking)}: the limits of prompt and answer.")
    if prompt is None:
        prompt = max(1, whole - response)
    if response is None:
        response = max(1, whole - prompt)
    return prompt, response, whole


def write_lora(run: Run) -> Mapping[str, Any]:
    """One adapter, or none."""
    said, at = run.model.lora, "model.lora_configs.0"
    if said is None:
        return {}
    return {
        f"{at}.lora_rank": said.rank,
        f"{at}.lora_alpha": said.alpha,
        f"{at}.target_modules": said.targets,
    }


@written_by(write_lora)
def lora(theirs: Theirs) -> Mapping[str, Any]:
    """One adapter."""
    configs = theirs["model.lora_configs"]
    if not configs:
        return {}
    if len(configs) > 1:
        raise theirs.fault(
            "model.lora_configs", "model.lora_configs has several; one adapter can be trained."
        )
    said = configs["0"]
    return {
        "model.lora.rank": said.get("lora_rank", 32),
        "model.lora.alpha": said.get("lora_alpha", 32),
        "model.lora.targets": said.get("target_modules", "all-linear"),
    }


MODEL = (
    mapped("model.model_path", UNSET, "model.path", kind=TEXT),
    critic.MODEL,
    *unstated(
        mapped(
            "model.max_model_len",
            None,
            "data.max_prompt_tokens",
            "data.max_response_tokens",
            "rollout.max_sequence_tokens",
            read=lengths,
            kind=or_null(WHOLE),
        ),
        mapped("model.max_prompt_tokens", None, "data.max_prompt_tokens", read=lengths, kind=or_null(WHOLE)),
        mapped(
            "model.max_response_tokens", None, "data.max_response_tokens", read=lengths, kind=or_null(WHOLE)
        ),
    ),
    mapped(
        "model.min_response_tokens",
        1,
        "rollout.sampling.min_response_tokens",
        read=tasks,
        off=_nothing_sampled,
    ),
    *beyond_the_page(
        TEMPLATE,
        mapped("model.lora_configs", None, "model.lora", read=lora, kind=LISTED),
        mapped("model.lora_configs.0.lora_rank", 32, "model.lora.rank", read=lora),
        mapped("model.lora_configs.0.lora_alpha", 32, "model.lora.alpha", read=lora),
        mapped("model.lora_configs.0.target_modules", "all-linear", "model.lora.targets", read=lora),
        placement("model.lora_configs.0.name", None, _NO_ACTORS, can=always, kind=ANY),
        refused("model.lora_configs.0.*", UNSET, "only rank, alpha and target_modules are read", can=never),
    ),
)
