"""TRL's `use_vllm`: vLLM in a process of its own, a server of vLLM, and the correction of its probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from strop.compat.ledger.key_mapping import (
    INTEGER,
    NUMBER,
    STRING,
    ForeignValues,
    any_inactive,
    mapped,
    no_effect,
    nullable,
    one_of,
    placement,
    unless,
    written_by,
)
from strop.config.schema import Run
from strop.config.schema.rollout import OpenAiEngineConfig, VllmEngineConfig

_ENGINE = "rollout.engine"
_CORRECTION = "algorithm.importance_correction"
_NO_FLOOR = 1e-30
"""Minimum weight under a mask without `clip_min`: it masks only weights that are 0 in effect, and, unlike a null floor,
masks those above the maximum."""
_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_EVERY_ADDRESS = "0.0.0.0"
"""Address at which a server listens on all interfaces; a client reaches it on its own machine."""


def _samples(foreign: ForeignValues) -> bool:
    """Whether vLLM samples: the configuration asks for it, and `--here` does not replace it."""
    return bool(foreign["use_vllm"]) and not foreign.here


def _without_vllm(foreign: ForeignValues) -> str | None:
    if not foreign["use_vllm"]:
        return "use_vllm is False"
    return None if _samples(foreign) else "with --here the native sampler samples"


def context_length(foreign: ForeignValues) -> int | None:
    """Length limit of a prompt with its completion in vLLM; None where none is set or vLLM does not read it."""
    colocated = _samples(foreign) and foreign["vllm_mode"] == "colocate"
    return foreign["vllm_max_model_length"] if colocated else None


def write_engine(run: Run) -> Mapping[str, Any]:
    """Write vLLM, or the server of vLLM, that samples; nothing for another engine, which TRL does not have."""
    section = run.rollout.engine
    if isinstance(section, OpenAiEngineConfig) and section.weight_updates == "vllm":
        url = section.base_url.removesuffix("/").removesuffix("/v1")
        timeout = section.backoff_seconds * (2**section.retries - 1)
        server = {"vllm_server_base_url": url, "vllm_server_timeout": timeout}
        return {"use_vllm": True, "vllm_mode": "server", **server}
    if not isinstance(section, VllmEngineConfig):
        return {}
    written = {
        "vllm_gpu_memory_utilization": section.gpu_memory_utilization,
        "vllm_max_model_length": section.max_model_len,
        "vllm_model_impl": section.engine_kwargs.get("model_impl"),
        "vllm_enable_sleep_mode": run.rollout.release_memory,
    }
    given = {key: value for key, value in written.items() if value is not None}
    tensor_parallel = {"vllm_tensor_parallel_size": section.tensor_parallel}
    return {"use_vllm": True, "vllm_mode": "colocate", **tensor_parallel, **given}


@written_by(write_engine)
def engine(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read vLLM or a server of vLLM; nothing where the native sampler samples."""
    if not _samples(foreign):
        return {}
    if foreign["vllm_mode"] == "server":
        host = "127.0.0.1" if foreign["vllm_server_host"] == _EVERY_ADDRESS else foreign["vllm_server_host"]
        base = foreign["vllm_server_base_url"] or f"http://{host}:{foreign['vllm_server_port']}"
        return {
            f"{_ENGINE}.type": "openai",
            f"{_ENGINE}.base_url": f"{base.rstrip('/')}/v1",
            f"{_ENGINE}.model": foreign["model_name_or_path"],
            f"{_ENGINE}.weight_updates": "vllm",
            f"{_ENGINE}.retries": _retries(foreign["vllm_server_timeout"]),
        }
    implementation = foreign["vllm_model_impl"]
    settings = {
        f"{_ENGINE}.type": "vllm",
        f"{_ENGINE}.gpu_memory_utilization": foreign["vllm_gpu_memory_utilization"],
        f"{_ENGINE}.max_model_len": foreign["vllm_max_model_length"],
        f"{_ENGINE}.tensor_parallel": foreign["vllm_tensor_parallel_size"],
    }
    if implementation != "vllm":
        settings[f"{_ENGINE}.engine_kwargs"] = {"model_impl": implementation}
    if foreign["vllm_enable_sleep_mode"]:
        settings["rollout.release_memory"] = True
    return settings


def _retries(seconds: float) -> int:
    """Retries whose waits of 1, 2, 4, ... seconds last at least `seconds` together."""
    return math.ceil(math.log2(seconds + 1))


_COLOCATED = any_inactive(_without_vllm, unless("vllm_mode", "colocate"))
_SERVER = any_inactive(_without_vllm, unless("vllm_mode", "server"))
_AT_HOST = any_inactive(
    _SERVER, lambda foreign: "vllm_server_base_url is set" if foreign["vllm_server_base_url"] else None
)
_row = partial(mapped, read=engine)
VLLM_ENGINE = (
    placement(
        "use_vllm",
        False,
        "the native sampler samples",
        supported=lambda foreign, value: not (value and foreign.here),
        fields=(f"{_ENGINE}.type",),
        read=engine,
    ),
    _row(
        "vllm_mode",
        "colocate",
        f"{_ENGINE}.type",
        value_type=one_of("colocate", "server"),
        inactive=_without_vllm,
        note="colocate is vLLM in a process of its own; server is `trl vllm-serve` of TRL 1.16 on this machine, "
        "with the options in `strop help engines`",
    ),
    _row(
        "vllm_model_impl",
        "vllm",
        f"{_ENGINE}.engine_kwargs",
        value_type=one_of("vllm", "transformers"),
        inactive=_COLOCATED,
    ),
    _row("vllm_enable_sleep_mode", False, "rollout.release_memory", inactive=_COLOCATED),
    _row(
        "vllm_server_base_url",
        None,
        f"{_ENGINE}.base_url",
        f"{_ENGINE}.model",
        f"{_ENGINE}.weight_updates",
        value_type=nullable(STRING),
        inactive=_SERVER,
        note="without /v1; the model's name at the server is model_name_or_path",
    ),
    _row(
        "vllm_server_host",
        _EVERY_ADDRESS,
        f"{_ENGINE}.base_url",
        inactive=_AT_HOST,
        note="0.0.0.0 is this machine",
    ),
    _row("vllm_server_port", 8000, f"{_ENGINE}.base_url", inactive=_AT_HOST),
    _row(
        "vllm_server_timeout",
        240.0,
        f"{_ENGINE}.retries",
        inactive=_SERVER,
        note="waits of 1, 2, 4, ... s that last at least this time together",
    ),
    no_effect(
        "vllm_group_port",
        51216,
        "weights reach the server through a file in shared memory, without a process group",
    ),
    _row("vllm_gpu_memory_utilization", 0.3, f"{_ENGINE}.gpu_memory_utilization", inactive=_COLOCATED),
    _row(
        "vllm_max_model_length",
        None,
        f"{_ENGINE}.max_model_len",
        value_type=nullable(INTEGER),
        inactive=_COLOCATED,
    ),
    _row("vllm_tensor_parallel_size", 1, f"{_ENGINE}.tensor_parallel", inactive=_COLOCATED),
)
"""Rows of the engine, which GRPOConfig and RLOOConfig share."""


def write_correction(run: Run) -> Mapping[str, Any]:
    """Write the correction of the sampler's probabilities where vLLM samples."""
    if not write_engine(run):
        return {}
    at = "vllm_importance_sampling"
    section = getattr(run.algorithm, "importance_correction", None)
    if section is None or section.level == "geometric" or section.normalize:
        return {f"{at}_correction": False}
    kind = "truncate" if section.floor is None else "mask"
    return {
        f"{at}_correction": True,
        f"{at}_mode": f"{section.level}_{kind}",
        f"{at}_clip_max": section.cap,
        f"{at}_clip_min": None if section.floor == _NO_FLOOR else section.floor,
    }


@written_by(write_correction)
def correction(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the importance weights, of the trainer's over vLLM's probabilities."""
    if not _samples(foreign) or not foreign["vllm_importance_sampling_correction"]:
        return {}
    level, _, kind = foreign["vllm_importance_sampling_mode"].partition("_")
    key, old = "vllm_importance_sampling_clip_max", foreign["vllm_importance_sampling_cap"]
    cap, floor = old or foreign[key], foreign["vllm_importance_sampling_clip_min"]
    if cap is None:
        raise foreign.error_for(
            key, f"{key} is null, and Strop's weights have a maximum; write 3.0, for example."
        )
    if kind == "truncate" and floor is not None:
        low = "vllm_importance_sampling_clip_min"
        raise foreign.error_for(
            low,
            f"{low} is {floor}, and Strop does not raise small weights to a minimum; leave it null, or write "
            f"vllm_importance_sampling_mode {level}_mask, which masks them.",
        )
    if kind == "mask":
        floor = _NO_FLOOR if floor is None else floor
    return {f"{_CORRECTION}.level": level, f"{_CORRECTION}.cap": cap, f"{_CORRECTION}.floor": floor}


_UNCORRECTED = any_inactive(_without_vllm, unless("vllm_importance_sampling_correction", True))
_correction_row = partial(mapped, read=correction)
VLLM_CORRECTION = (
    _correction_row(
        "vllm_importance_sampling_correction",
        True,
        _CORRECTION,
        inactive=_without_vllm,
        note="the native sampler has the trainer's weights, so its probabilities need none",
    ),
    _correction_row(
        "vllm_importance_sampling_mode",
        "sequence_mask",
        f"{_CORRECTION}.level",
        f"{_CORRECTION}.floor",
        value_type=one_of(*_MODES),
        inactive=_UNCORRECTED,
    ),
    _correction_row(
        "vllm_importance_sampling_clip_max",
        3.0,
        f"{_CORRECTION}.cap",
        value_type=nullable(NUMBER),
        inactive=_UNCORRECTED,
    ),
    _correction_row(
        "vllm_importance_sampling_clip_min",
        None,
        f"{_CORRECTION}.floor",
        value_type=nullable(NUMBER),
        inactive=_UNCORRECTED,
        note="with a *_mask mode; null masks only weights above the maximum",
    ),
    _correction_row(
        "vllm_importance_sampling_cap",
        None,
        f"{_CORRECTION}.cap",
        value_type=nullable(NUMBER),
        inactive=_UNCORRECTED,
        deprecated="write vllm_importance_sampling_clip_max",
    ),
)
"""Rows of the correction, which RLOOConfig does not have."""
