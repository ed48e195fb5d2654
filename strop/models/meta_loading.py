"""Models built on the meta device, with a reader of parts of their weights from safetensors files.

A rank of a sharded model builds the model without memory for its weights and then reads its own part of each.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from strop.config.paths import gguf_file
from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.errors import ModelError
from strop.models.dtensor import Block
from strop.models.fused_layers import fuse_layers
from strop.models.library_settings import limit_cpu_memory, silence_transformers
from strop.models.loading import (
    LOAD_ERRORS,
    classifier_config,
    language_model_class,
    load_config,
    prepare_head,
    require_finite,
    set_trained_parameters,
)
from strop.models.value_head import head_of
from strop.workers.json_text import parse_json

_INDEX_FILE, _SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"


class MetaLoadingUnsupported(Exception):
    """The model cannot be built on the meta device; the message is the reason."""


@dataclass(frozen=True)
class WeightFiles:
    """The weights of a model folder, of which each rank reads only the parts that it needs."""

    files: dict[str, Path]
    """File of each tensor, by the tensor's name in the files."""
    names: dict[str, str]
    """Name in the files of each parameter and persistent buffer of the model."""

    def read_block(self, name: str, block: Block) -> Tensor:
        """A part of a tensor of the model, in the files' dtype, in its own storage."""
        stored = self.names[name]
        try:
            part: Tensor = self._open(stored).get_slice(stored)[block]
        except (OSError, SafetensorError) as error:
            raise ModelError(f"model.path: {self.files[stored]} cannot be read: {error}") from error
        require_finite(part, stored, str(self.files[stored].parent))
        return part.clone()

    def read(self, name: str) -> Tensor:
        """A whole tensor of the model."""
        stored = self.names[name]
        tensor: Tensor = self._open(stored).get_tensor(stored)
        return tensor.clone()

    def shape(self, stored: str) -> torch.Size:
        """Shape of a tensor, by its name in the files."""
        return torch.Size(self._open(stored).get_slice(stored).get_shape())

    @cached_property
    def _opened(self) -> dict[Path, Any]:
        return {}

    def _open(self, stored: str) -> Any:
        path = self.files[stored]
        if path not in self._opened:
            self._opened[path] = safe_open(path, framework="pt")
        return self._opened[path]


def build_on_meta(
    section: ModelConfig,
    *,
    headless: bool = False,
    classifier: HeadInit | None = None,
    trainable: bool = True,
) -> tuple[PreTrainedModel, WeightFiles]:
    """The model of a section with its parameters on the meta device and its buffers on the CPU, and its weights.

    Args:
        headless: leave out the language-model head.
        classifier: a head of one output in its place, with these initial weights; new ones are on the CPU.
        trainable: whether its weights are trained, which decides their dtype together with `section.lora`.

    Raises MetaLoadingUnsupported for a model that must be loaded whole, and ModelError as `load_model` does.
    """
    limit_cpu_memory()
    config = load_config(section) if classifier is None else classifier_config(section)
    if getattr(config, "quantization_config", None) is not None:
        raise MetaLoadingUnsupported("its weights are quantized")
    if gguf_file(section.path) is not None:
        raise MetaLoadingUnsupported("its weights are in a GGUF file")
    frozen = section.lora is not None or not trainable
    dtype = section.compute_dtype if frozen and section.compute_dtype else section.dtype
    kind = AutoModel if headless else language_model_class(config)
    if classifier is not None:
        kind = AutoModelForSequenceClassification
    try:
        with ExitStack() as contexts:
            contexts.enter_context(silence_transformers())
            contexts.enter_context(torch.random.fork_rng(devices=[]))
            contexts.enter_context(no_init_weights())
            contexts.enter_context(init_empty_weights(include_buffers=False))
            model: PreTrainedModel = kind.from_config(
                config, dtype=getattr(torch, dtype), trust_remote_code=section.trust_remote_code
            )
    except LOAD_ERRORS as error:
        raise MetaLoadingUnsupported(f"it cannot be built without its weights ({error})") from error
    if model._keep_in_fp32_modules or model._keep_in_fp32_modules_strict:
        raise MetaLoadingUnsupported("some of its modules keep a dtype of their own")
    model.tie_weights()
    if classifier not in (None, "score"):
        head_of(model).to_empty(device="cpu")
    folder = local_folder(section.path)
    weights = _find_weights(model, folder)
    for name, buffer in model.named_buffers():
        if name in weights.names:
            buffer.copy_(weights.read(name))
    if not headless:
        _read_generation_config(model, folder)
    set_trained_parameters(model, section, trainable=trainable)
    if classifier is not None:
        prepare_head(model, classifier, section)
    fuse_layers(model)
    model.eval()  # type: ignore[no-untyped-call]
    return model, weights


def local_folder(path: str) -> Path:
    """Folder of a model's files, of a name on the Hub that of the cache. Raises ModelError where there is none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, allow_patterns=["*.safetensors", "*.json"]))
    except LOAD_ERRORS as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelError(f"model.path: no model could be loaded from {path}: {reason}.") from error


def _find_weights(model: PreTrainedModel, folder: Path) -> WeightFiles:
    files = tensor_files(folder)
    prefix = f"{model.base_model_prefix}."
    names: dict[str, str] = {}
    weights = WeightFiles(files, names)
    aliases: dict[int, list[str]] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if tensor.is_meta and not tensor.dim():
            raise MetaLoadingUnsupported(f"{name} is a single number, which cannot be sharded")
        aliases.setdefault(id(tensor), []).append(name)
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter) and not tensor.is_meta:
            continue  # the new head of a classifier
        candidates = [
            candidate
            for alias in dict.fromkeys([name, *aliases[id(tensor)]])
            for candidate in (alias, prefix + alias, alias.removeprefix(prefix))
        ]
        stored = next((candidate for candidate in candidates if candidate in files), None)
        if stored is None:
            raise MetaLoadingUnsupported(f"its weight files have no tensor named {name}")
        if weights.shape(stored) != tensor.shape:
            raise MetaLoadingUnsupported(f"the tensor {stored} of its weight files has another shape")
        names[name] = stored
    return weights


def tensor_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor in a model folder. Raises MetaLoadingUnsupported where they cannot be listed."""
    try:
        if (folder / _INDEX_FILE).is_file():
            entries = parse_json((folder / _INDEX_FILE).read_text())["weight_map"]
            return {name: folder / file for name, file in entries.items()}
        with safe_open(folder / _SINGLE_FILE, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), folder / _SINGLE_FILE)
    except LOAD_ERRORS as error:
        raise MetaLoadingUnsupported(f"its weight files cannot be listed ({error})") from error


def _read_generation_config(model: PreTrainedModel, folder: Path) -> None:
    if not model.can_generate():
        return
    try:
        model.generation_config = GenerationConfig.from_pretrained(str(folder))
    except OSError:
        return  # the folder has none, so the model keeps the defaults of its config.json
