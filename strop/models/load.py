"""Models and tokenizers from Hugging Face folders, or by their names on the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from strop.config.imports import import_library
from strop.config.schema.model import Model
from strop.config.suggest import did_you_mean
from strop.errors import ModelError
from strop.models.attention import use_packed_attention
from strop.models.logprobs import check_logits

UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, SafetensorError)
"""What transformers raises for files that it cannot make a model or tokenizer of."""


def load_model(section: Model, *, device: torch.device | str, trainable: bool = True) -> PreTrainedModel:
    """The model with parameters in `section.dtype`, ready for packed micro-batches; not yet an adapter.

    With an adapter the weights stay as they are, and so stand in the type that is computed in; so do
    those of a model that is not `trainable`. Parameters have storage of their own, not the file's
    pages, so that a run's arithmetic does not depend on how the file was read.

    Raises ModelError for a folder that is missing, incomplete or damaged, and for a model whose
    log-probs Strop cannot compute.
    """
    model = _read(AutoModelForCausalLM, section, device=device, trainable=trainable)
    check_logits(model)
    return _packed(model, section, trainable=trainable)


def load_decoder(section: Model, *, device: torch.device | str) -> PreTrainedModel:
    """The same without a head, to be trained; a head that the folder has is left out."""
    model = _read(AutoModel, section, device=device, trainable=True)
    return _packed(model, section, trainable=True)


def load_classifier(section: Model, *, labels: int, device: torch.device | str) -> PreTrainedModel:
    """A model for sequence classification, not to be trained.

    Raises ModelError for a folder that is missing, incomplete or damaged, and for another number of labels.
    """
    config = _config(section)
    if config.num_labels != labels:
        raise ModelError(
            f"the model in {section.path} has {config.num_labels} labels "
            f"({', '.join(map(str, (config.id2label or {}).values()))}), not {labels}. A reward model is one "
            "for sequence classification with one label (num_labels in its config.json), whose logit is the "
            "reward."
        )
    return _read(AutoModelForSequenceClassification, section, device=device, trainable=False)


def _read(
    kind: Any,
    section: Model,
    *,
    device: torch.device | str,
    trainable: bool,
) -> PreTrainedModel:
    """`kind` is the class of transformers that reads the folder."""
    config = _config(section)
    frozen = section.lora is not None or not trainable
    dtype = section.compute_dtype if frozen and section.compute_dtype else section.dtype
    with quiet():
        try:
            model, found = kind.from_pretrained(
                _expanded(section.path),
                config=config,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=section.trust_remote_code,
                ignore_mismatched_sizes=True,  # they are refused below, and by name
                output_loading_info=True,
            )
        except UNREADABLE as error:
            raise ModelError(f"model.path: no model could be loaded from {section.path}: {error}") from error
    wrong = [*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])]
    if wrong:
        raise ModelError(
            f"model.path: the weights in {section.path} do not fit its config.json: {len(wrong)} tensors are "
            f"missing or of another shape, such as {sorted(wrong)[0]}. Is the folder complete?"
        )
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    model.to(device).requires_grad_(trainable and section.lora is None).eval()
    return cast(PreTrainedModel, model)


def _config(section: Model) -> PreTrainedConfig:
    """The folder's config.json, with `section.override` put over it."""
    _import(section)
    _check_folder(section.path)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            _expanded(section.path), trust_remote_code=section.trust_remote_code
        )
    except UNREADABLE as error:
        raise ModelError(f"model.path: no model could be loaded from {section.path}: {error}") from error
    override(config, section.override)
    return config


def override(config: Any, values: Mapping[str, Any], at: str = "model.override") -> None:
    """Write values over those of a config, and inside its sections over theirs.

    Raises ModelError for a name that it does not have, which transformers would keep and never read.
    """
    for name, value in values.items():
        there = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        names = config if isinstance(config, dict) else config.to_dict()
        if name not in names and not hasattr(config, name):
            raise ModelError(
                f"{at}.{name}: the model's config.json has no {name!r}{did_you_mean(name, names)}."
            )
        if isinstance(value, Mapping) and (isinstance(there, dict) or hasattr(there, "to_dict")):
            override(there, value, f"{at}.{name}")
        elif isinstance(config, dict):
            config[name] = value
        else:
            setattr(config, name, value)


def _import(section: Model) -> None:
    for name in section.imports:
        import_library(name, "model.imports", ModelError)


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _packed(model: PreTrainedModel, section: Model, *, trainable: bool) -> PreTrainedModel:
    use_packed_attention(model)
    if section.gradient_checkpointing and trainable:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def load_tokenizer(section: Model) -> PreTrainedTokenizerBase:
    """The tokenizer of `section.tokenizer`, or the model's own. Raises ModelError where there is none."""
    path = section.tokenizer or section.path
    key = "model.tokenizer" if section.tokenizer else "model.path"
    _import(section)
    if _is_local(path) and not Path(path).expanduser().is_dir():
        raise ModelError(
            f"{key}: there is no folder {path}. Write a tokenizer's folder, or a name on the hub."
        )
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                _expanded(path), trust_remote_code=section.trust_remote_code
            )
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of an empty folder
            raise ValueError("there is no vocabulary in it")
    except UNREADABLE as error:
        raise ModelError(
            f"{key}: no tokenizer could be loaded from {path}: {error}. Put tokenizer.json and "
            "tokenizer_config.json there, or name another folder under model.tokenizer."
        ) from error
    return tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _is_local(path: str) -> bool:
    """Whether a path means a folder here rather than `owner/name` on the hub."""
    return Path(path).exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1


def _check_folder(path: str) -> None:
    """Say what a local folder lacks, better than transformers would."""
    if not _is_local(path):
        return
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"model.path: there is no folder {path}. Write a model folder, or a name on the hub."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path: {path} is no model folder: there is no config.json in it.")
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(p.name for p in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")))
    if pickled:
        raise ModelError(
            f"model.path: the weights in {path} are pickled ({pickled[0]}), which could run any code when "
            "read, so Strop reads safetensors only. Convert them once where you trust them: "
            "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new)."
        )
    raise ModelError(f"model.path: there are no weights in {path}: no *.safetensors file.")
