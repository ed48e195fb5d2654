"""Options of an adapter in PEFT's format, read from its `adapter_config.json` without PEFT."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strop.config.paths import is_local
from strop.config.schema.model import LoraConfig
from strop.errors import ModelError
from strop.workers.hub_requests import limit_hub_requests
from strop.workers.json_text import read_object

CONFIG_FILE = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MERGE = (
    "merge the adapter into the model once (merge_and_unload and save_pretrained of PEFT), write that folder as "
    "model.path, and remove model.lora.adapter"
)
_VARIANT = "is another product of the two factors than LoRA's alpha / rank B A"
_RESIDUAL = (
    "subtracts the first factors from the model's own weights, so that the adapter belongs to other weights than those "
    "of model.path; save it with path_initial_model_for_weight_conversion of PEFT's save_pretrained"
)
_FACTORS_ONLY = "Strop trains the two factors of linear layers, and the reference is the model without them"

HONORED = frozenset(
    (
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"),
        *("exclude_modules", "target_parameters", "layers_to_transform", "layers_pattern"),
    )
)
"""Keys that decide which weights the adapter changes, and how."""
WITHOUT_EFFECT: Mapping[str, str] = {
    "base_model_name_or_path": "model.path names the model",
    "revision": "model.path names the model",
    "auto_mapping": "it chooses a class of PEFT",
    "inference_mode": "the run trains the adapter",
    "peft_version": "it is a record",
    "lora_dropout": "model.lora.dropout is the dropout of the run",
    "fan_in_fan_out": "the type of a layer says how its weight is stored",
    "runtime_config": "it is an option of one process",
    "megatron_core": "it names a module for megatron_config",
    "qalora_group_size": "it is an option of use_qalora",
    "eva_config": "the first factors are those of the file",
    "corda_config": "it is an option of init_lora_weights: corda",
    "lora_ga_config": "it is an option of init_lora_weights: lora_ga",
    "loftq_config": "it is an option of init_lora_weights: loftq",
    "ensure_weight_tying": "tied embeddings cannot have an adapter here",
}
"""Keys that change nothing in the adapter's product, with the reason."""


@dataclass(frozen=True, slots=True)
class _Only:
    """Values of a key with which an adapter can be used, and the reason why others cannot."""

    values: tuple[Any, ...]
    reason: str
    remedy: str = _MERGE


_UNSET: tuple[Any, ...] = (None, False, [], {}, "")
REFUSED: Mapping[str, _Only] = {
    "peft_type": _Only(("LORA",), "is another method than LoRA"),
    "task_type": _Only(
        (None, "CAUSAL_LM", "FEATURE_EXTRACTION"),
        "is an adapter of another kind of model than a causal language model",
        "write an adapter that was trained with task_type CAUSAL_LM",
    ),
    "bias": _Only(("none", None), f"trains biases of the model in addition to the factors; {_FACTORS_ONLY}"),
    "modules_to_save": _Only(_UNSET, f"trains whole modules in addition to the factors; {_FACTORS_ONLY}"),
    "trainable_token_indices": _Only(
        _UNSET, f"trains embeddings of tokens in addition to the factors; {_FACTORS_ONLY}"
    ),
    "lora_bias": _Only(_UNSET, f"trains a bias of the second factor; {_FACTORS_ONLY}"),
    "use_dora": _Only(
        _UNSET, "trains a magnitude of each output in addition to the factors (DoRA, arXiv 2402.09353)"
    ),
    "use_qalora": _Only(_UNSET, f"{_VARIANT} (QA-LoRA, arXiv 2309.14717)"),
    "use_bdlora": _Only(_UNSET, f"{_VARIANT} (block-diagonal LoRA)"),
    "kasa_config": _Only(_UNSET, f"{_VARIANT} (KaSA)"),
    "monteclora_config": _Only(_UNSET, f"{_VARIANT} (MonteCLoRA)"),
    "velora_config": _Only(_UNSET, "changes the gradient of the factors (VeLoRA)"),
    "arrow_config": _Only(_UNSET, "chooses among several adapters for each token (Arrow)"),
    "alora_invocation_tokens": _Only(
        _UNSET,
        "takes effect only after these tokens (aLoRA, arXiv 2504.12397), so that no merged weights equal it",
        "write an adapter without them",
    ),
    "layer_replication": _Only(
        _UNSET,
        "is one of a model with repeated layers",
        "write that model as model.path, and an adapter of its layers",
    ),
    "megatron_config": _Only(
        _UNSET, "is one of Megatron's parallel layers", "convert it to Hugging Face's names"
    ),
}
"""Keys with which an adapter is another function of the model's weights than those here."""
_KEPT_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Values of `init_lora_weights` that leave the model's own weights as they are; the first factors are in the file."""


_BY_RUN_FILE = {
    "rank_pattern": "convert the script to a run file, and write model.lora.rank_pattern there",
    "alpha_pattern": "convert the script to a run file, and write model.lora.alpha_pattern there",
    "exclude_modules": "convert the script to a run file, and write model.lora.exclude there",
    "layers_to_transform": "write target_modules as a regular expression with the layers' numbers",
    "layers_pattern": "write target_modules as a regular expression with the layers' numbers",
}
"""Remedies for options of a new adapter in a script."""


def new_adapter_fault(name: str, value: Any) -> str | None:
    """Why an argument of PEFT's LoraConfig cannot be used for a new adapter; None if it can be, or has no effect."""
    if name in WITHOUT_EFFECT or value in _UNSET:
        return None
    if name == "init_lora_weights":
        return None if value is True else "a new adapter starts with PEFT's default factors; remove it"
    if name in _BY_RUN_FILE:
        return _BY_RUN_FILE[name]
    if (only := REFUSED.get(name)) is None:
        return "PEFT's LoraConfig has no such argument; remove it"
    return None if value in only.values else f"such an adapter {only.reason}; remove it"


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Modules of an adapter, with the rank and the scale of each."""

    rank: int
    alpha: float
    use_rslora: bool = False
    """Scale alpha / sqrt(rank) (arXiv 2312.03732) instead of alpha / rank."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    """Ranks and alphas of modules, by a regular expression for the end of their names; the first that fits counts."""
    targets: str | tuple[str, ...] | None = "all-linear"
    exclude: str | tuple[str, ...] | None = None
    target_parameters: tuple[str, ...] | None = None
    layers_to_transform: int | tuple[int, ...] | None = None
    layers_pattern: str | tuple[str, ...] | None = None
    dropout: float = 0.0

    @property
    def max_rank(self) -> int:
        """Largest rank of a module."""
        return max((self.rank, *self.rank_pattern.values()))

    def scale(self, module: str, rank: int) -> float:
        """Factor of B A of a module, with its rank."""
        alpha = next((value for key, value in self.alpha_pattern.items() if matches(key, module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def matches(pattern: str, module: str) -> bool:
    """Whether a key of `rank_pattern` or `alpha_pattern` is that of a module, as in PEFT."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def adapter_options(section: LoraConfig) -> AdapterOptions:
    """Options of the section's adapter: those of `section.adapter`, or of a new one.

    Raises ModelError for a folder without an adapter, for one that cannot be continued, and for a section that
    contradicts it.
    """
    if section.adapter is None:
        return AdapterOptions(
            rank=section.rank,
            alpha=section.alpha,
            use_rslora=bool(section.use_rslora),
            rank_pattern=section.rank_pattern or {},
            alpha_pattern=section.alpha_pattern or {},
            targets=section.targets,
            exclude=section.exclude,
            dropout=section.dropout,
        )
    folder = adapter_folder(section.adapter)
    saved = read_adapter_options(folder, "model.lora.adapter")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ModelError(
            f"model.lora.adapter: {folder} has no adapter in PEFT's format: there is no {_WEIGHTS[0]} next to its "
            f"{CONFIG_FILE}."
        )
    if (saved.rank, saved.alpha) != (section.rank, section.alpha):
        raise ModelError(
            f"model.lora.adapter: the adapter in {folder} has rank {saved.rank} and alpha {saved.alpha:g}; write "
            "them as model.lora.rank and model.lora.alpha."
        )
    for name in ("use_rslora", "rank_pattern", "alpha_pattern"):
        written, own = getattr(section, name), getattr(saved, name)
        if written is not None and written != own:
            raise ModelError(
                f"model.lora.adapter: the adapter in {folder} has {name} {_shown(own)}, and model.lora.{name} is "
                f"{_shown(written)}. Remove model.lora.{name}, which is that of the adapter where it is omitted."
            )
    return saved


def adapter_folder(path: str) -> Path:
    """The local folder of an adapter, downloaded if the path is a name on the Hub. Raises ModelError if there is
    none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if is_local(path):
        raise ModelError(
            f"model.lora.adapter: there is no folder {path}. Write the folder of an adapter in PEFT's format."
        )
    from huggingface_hub import snapshot_download

    limit_hub_requests()
    try:
        return Path(snapshot_download(path, allow_patterns=["adapter_*"]))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelError(
            f"model.lora.adapter: there is no folder {path}, and the Hub gave no adapter of this name: {reason}. Write "
            "the folder of an adapter in PEFT's format."
        ) from error


def adapter_in_model_folder(folder: Path) -> str | None:
    """Fault of a model's folder that holds an adapter; None without one."""
    if not (folder / CONFIG_FILE).is_file():
        return None
    if not (folder / "config.json").is_file():
        return (
            f"{folder} holds an adapter in PEFT's format ({CONFIG_FILE}) and no model. Write the folder of its model, "
            "and name the adapter as model.lora.adapter."
        )
    return (
        f"{folder} holds an adapter in PEFT's format ({CONFIG_FILE}) next to a model, and transformers would load it "
        "into another model's layers. Move it to a folder of its own, and name it as model.lora.adapter."
    )


def read_adapter_options(folder: Path, key: str) -> AdapterOptions:
    """Options in an adapter's folder; `key` names it in messages.

    Raises ModelError for a folder that has no adapter in PEFT's format, and for options that Strop does not have.
    """
    file = folder / CONFIG_FILE
    try:
        values = read_object(file)
    except (OSError, ValueError) as error:
        raise ModelError(f"{key}: {folder} has no adapter in PEFT's format: {error}") from error
    if (fault := next(_faults(values), None)) is not None:
        raise ModelError(f"{key}: the adapter in {folder} cannot be used: {fault}.")
    try:
        return _options(values)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise ModelError(
            f"{key}: {file} has a value that PEFT would not write ({type(error).__name__}: {error}). Restore the file "
            "that PEFT wrote with the adapter."
        ) from error


def _faults(values: Mapping[str, Any]) -> Iterator[str]:
    """Options of an adapter that Strop does not have, a sentence without a period for each."""
    for name, value in values.items():
        only = REFUSED.get(name)
        if only is not None and value not in only.values:
            yield f"its {name} is {_shown(value)}, which {only.reason}. To use it, {only.remedy}"
        elif name == "init_lora_weights":
            if value not in _KEPT_BASE:
                yield f"its init_lora_weights is {_shown(value)}, which {_RESIDUAL}"
        elif only is None and name not in HONORED and name not in WITHOUT_EFFECT and value not in _UNSET:
            yield (
                f"its {CONFIG_FILE} has {name}: {_shown(value)}, which Strop does not know, so that it may change what "
                f"the adapter is. To use it, {_MERGE}"
            )


def _options(values: Mapping[str, Any]) -> AdapterOptions:
    ranks = {str(key): _positive_int(value) for key, value in (values.get("rank_pattern") or {}).items()}
    alphas = {str(key): float(value) for key, value in (values.get("alpha_pattern") or {}).items()}
    for key in (*ranks, *alphas):
        re.compile(key)
    parameters = values.get("target_parameters")
    return AdapterOptions(
        rank=_positive_int(values["r"]),
        alpha=float(values["lora_alpha"]),
        use_rslora=bool(values.get("use_rslora")),
        rank_pattern=ranks,
        alpha_pattern=alphas,
        targets=_names(values.get("target_modules")),
        exclude=_names(values.get("exclude_modules")),
        target_parameters=None if parameters is None else tuple(map(str, parameters)),
        layers_to_transform=_layers(values.get("layers_to_transform")),
        layers_pattern=_names(values.get("layers_pattern")),
        dropout=float(values.get("lora_dropout") or 0.0),
    )


def _positive_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"a rank is {value!r}")
    return value


def _names(value: Any) -> str | tuple[str, ...] | None:
    return value if value is None or isinstance(value, str) else tuple(map(str, value))


def _layers(value: Any) -> int | tuple[int, ...] | None:
    return value if value is None or isinstance(value, int) else tuple(int(each) for each in value)


def _shown(value: Any) -> str:
    return json.dumps(dict(value) if isinstance(value, Mapping) else value)
