"""Loading of models and tokenizers from Hugging Face folders, GGUF files or the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from strop.config.model_files import (
    check_model_files,
    encoder_decoder_fault,
    language_model_fault,
    pickled_weights_fault,
    quantization_fault,
    wrong_labels,
)
from strop.config.paths import GGUF_SUFFIX, gguf_file, is_local
from strop.config.peft_adapter import adapter_in_model_folder
from strop.config.schema.model import ModelConfig
from strop.config.schema.policy_gradient import HeadInit
from strop.config.user_code import import_user_module
from strop.errors import ModelError
from strop.models.family_traits import attention_implementation
from strop.models.formats.gguf import (
    dequantization,
    gguf_reading,
    pretrained_source,
    read_config,
)
from strop.models.fused_layers import fuse_layers
from strop.models.hub import check_hub
from strop.models.library_settings import limit_cpu_memory, one_line, silence_transformers
from strop.models.logprobs import check_logits
from strop.models.packed_attention.forward import enable_packed_attention
from strop.models.quantization import (
    QuantizedWeight,
    adopt_quantized_layers,
    is_bitsandbytes,
    quantize_linear_layers,
)
from strop.models.routers import router_modules
from strop.models.selective_recompute import selective_contexts
from strop.models.value_head import SCORE, head_of, init_head, wrong_head
from strop.models.vision.embedding import takes_images, vision_tower
from strop.printable import did_you_mean, printable, shorten

LOAD_ERRORS = (Exception,)
"""Exceptions that transformers, tokenizers and a model's own code raise for invalid files, options and missing
packages: any, as tokenizers raises plain `Exception`."""


def load_model(
    section: ModelConfig, *, device: torch.device | str, trainable: bool = True
) -> PreTrainedModel:
    """Load a model with parameters in `section.dtype`, ready for packed micro-batches; without an adapter.

    Frozen weights, which are those of a model with an adapter or one that is not `trainable`, have the type
    of the computation. Parameters have their own storage, not the file's memory-mapped pages, so that a
    run's arithmetic does not depend on how the file was read.

    Raises `ModelError` for a folder that is missing, incomplete or damaged, and for a model whose log-probs
    Strop cannot compute.
    """
    config = load_config(section)
    if (fault := language_model_fault(section.path)) is not None:
        raise ModelError(f"model.path: {fault}")
    model = _read(language_model_class(config), section, config, device=device, trainable=trainable)
    check_logits(model)
    return _prepare_for_training(model, section, trainable=trainable)


def language_model_class(config: PreTrainedConfig) -> Any:
    """The auto class of transformers that loads a model with its language-model head."""
    return AutoModelForImageTextToText if takes_images(config) else AutoModelForCausalLM


def load_weights(section: ModelConfig, *, classifier: bool) -> PreTrainedModel:
    """Load a language model, or a classifier with any head, on the CPU, whose weights are read and which is not run."""
    if classifier:
        return _read_classifier(section, "zero", device="cpu", trainable=False)
    config = load_config(section)
    return _read(language_model_class(config), section, config, device="cpu", trainable=False)


def load_decoder(section: ModelConfig, *, device: torch.device | str) -> PreTrainedModel:
    """Load a trainable model without its language-model head."""
    model = _read(AutoModel, section, load_config(section), device=device, trainable=True)
    return _prepare_for_training(model, section, trainable=True)


def load_classifier(section: ModelConfig, *, device: torch.device | str) -> PreTrainedModel:
    """Load a model for sequence classification with one label, with frozen weights.

    Raises `ModelError` for a folder that is missing, incomplete or damaged, and for another number of labels.
    """
    config = load_config(section)
    if config.num_labels != 1:
        labels = [str(label) for label in (config.id2label or {}).values()]
        raise ModelError(wrong_labels(section.path, labels))
    return _read(AutoModelForSequenceClassification, section, config, device=device, trainable=False)


def load_trained(
    section: ModelConfig, head: HeadInit | None, *, device: torch.device | str
) -> PreTrainedModel:
    """Load a trainable language model, or with `head` a classifier of one output; without an adapter.

    Raises `ModelError` as `load_model` does, for a family without such a classifier, and under `score` for a folder
    without its head.
    """
    if head is None:
        return load_model(section, device=device)
    model = _read_classifier(section, head, device=device, trainable=True)
    prepare_head(model, head, section)
    return _prepare_for_training(model, section, trainable=True)


def _read_classifier(
    section: ModelConfig, head: HeadInit, *, device: torch.device | str, trainable: bool
) -> PreTrainedModel:
    kind, config = AutoModelForSequenceClassification, classifier_config(section)
    with torch.random.fork_rng(
        devices=[]
    ):  # which transformers draws a missing head from, unlike ranks of shards
        return _read(kind, section, config, head, device=device, trainable=trainable)


def classifier_config(section: ModelConfig) -> PreTrainedConfig:
    """The configuration of a classifier of one output with the decoder of a section.

    Raises `ModelError` for a family of which transformers has no such classifier.
    """
    config = load_config(section)
    config.num_labels = 1
    auto = getattr(config, "auto_map", None) or {}
    has_own = section.trust_remote_code and "AutoModelForSequenceClassification" in auto
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING and not has_own:
        raise ModelError(
            f"model.path: {section.path} is a {config.model_type} model, of which transformers has no "
            "*ForSequenceClassification, the class of reward models. Write a model of another family, such as Qwen2, "
            "Llama or Gemma."
        )
    return config


def prepare_head(model: PreTrainedModel, head: HeadInit, section: ModelConfig) -> None:
    """Set the head of a classifier, and train it in `section.dtype` whatever else is frozen."""
    linear = head_of(model)
    linear.to(getattr(torch, section.dtype)).requires_grad_(True)
    init_head(linear, head, model.config)


def _read(
    kind: Any,
    section: ModelConfig,
    config: PreTrainedConfig,
    head: HeadInit | None = None,
    *,
    device: torch.device | str,
    trainable: bool,
) -> PreTrainedModel:
    """Load with `kind`, an auto class of transformers; a classifier with a new `head` may lack that in its files."""
    limit_cpu_memory()
    if trainable and (fault := quantization_fault(section)) is not None:
        raise ModelError(f"model.path: {fault}")
    frozen = section.lora is not None or not trainable
    dtype = section.compute_dtype if frozen and section.compute_dtype else section.dtype
    with silence_transformers(), gguf_reading(section.path):
        try:
            model, found = kind.from_pretrained(
                **pretrained_source(section.path),
                **dequantization(section.path),
                config=config,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                trust_remote_code=section.trust_remote_code,
                ignore_mismatched_sizes=True,  # rejected below, with their names
                output_loading_info=True,
            )
        except ModelError:
            raise
        except LOAD_ERRORS as error:
            raise ModelError(_not_loaded(section.path, config, error)) from error
    wrong = [*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])]
    if head is not None:
        of_head = [name for name in wrong if name.startswith(f"{SCORE}.")]
        if head == "score" and of_head:
            raise ModelError(
                f"algorithm.{wrong_head(section.path, f'has no tensor {of_head[0]} of this shape')}"
            )
        wrong = [name for name in wrong if name not in of_head]
    if wrong:
        raise ModelError(
            f"model.path: the weights in {section.path} do not fit its config.json: {len(wrong)} tensors are "
            f"missing or of another shape, such as {sorted(wrong)[0]}. Is the folder complete?"
        )
    if is_bitsandbytes(config):
        adopt_quantized_layers(model)
    for name, parameter in model.named_parameters():
        require_finite(parameter.data, name, section.path)
    if section.quantization is not None:
        quantize_linear_layers(model, section.quantization, device)
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, QuantizedWeight):
            tensor.data = tensor.data.clone()
    model.to(device).eval()
    set_trained_parameters(model, section, trainable=trainable)
    return cast(PreTrainedModel, model)


def require_finite(tensor: torch.Tensor, name: str, path: str) -> None:
    """Raise `ModelError` for weights that are NaN or infinite, of which every token would have the log-prob NaN."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    smallest, largest = tensor.aminmax()
    if not bool(torch.isfinite(smallest) & torch.isfinite(largest)):
        raise ModelError(
            f"model.path: weights are not finite: {name} in {path} has a value that is NaN or infinite. The training "
            "that wrote them has diverged, or the file is damaged; write a model from before that."
        )


def _not_loaded(path: str, config: PreTrainedConfig, error: Exception) -> str:
    if "Unrecognized configuration class" in str(error):  # a list of all classes follows
        return (
            f"model.path: {path} is a {config.model_type} model, which transformers does not load as a causal language "
            "model. Write the folder of a model with a decoder and a language-model head."
        )
    return f"model.path: no model could be loaded from {path}: {one_line(error)}."


def set_trained_parameters(model: PreTrainedModel, section: ModelConfig, *, trainable: bool) -> None:
    """Choose which parameters have a gradient before an adapter is added.

    Raises `ModelError` for `freeze_vision` of a model without a vision tower, and `freeze_router` of one without
    routers.
    """
    model.requires_grad_(trainable and section.lora is None)
    if section.freeze_router:
        routers = list(router_modules(model))
        if not routers:
            raise ModelError(
                f"model.freeze_router: {section.path} is a {model.config.model_type} model, in which Strop finds no "
                "router of experts. Remove the key."
            )
        for router in routers:
            router.requires_grad_(False)
    if not section.freeze_vision:
        return
    if not takes_images(model.config):
        raise ModelError(
            f"model.freeze_vision: {section.path} is a {model.config.model_type} model, which has no vision tower that "
            "Strop uses. Remove the key."
        )
    vision_tower(model).requires_grad_(False)


def load_config(section: ModelConfig) -> PreTrainedConfig:
    """The folder's config.json, updated with `section.override`."""
    _import_user_modules(section)
    _check_folder(section.path)
    check_model_files(section.path)
    check_hub("model.path", section.path)
    try:
        config = read_config(section.path, trust_remote_code=section.trust_remote_code)
    except ModelError:
        raise
    except LOAD_ERRORS as error:
        reason = shorten(printable(" ".join(str(error).split()).rstrip(".")))
        raise ModelError(f"model.path: no model could be loaded from {section.path}: {reason}.") from error
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model.path: {encoder_decoder_fault(section.path, config.model_type)}")
    override_config(config, section.override)
    if (attention := attention_implementation(config)) is not None:
        config._attn_implementation = attention
    return config


def load_generation_config(section: ModelConfig) -> GenerationConfig | None:
    """The folder's generation defaults; None where it has none, and for a GGUF file."""
    if gguf_file(section.path) is not None:
        return None
    try:
        return GenerationConfig.from_pretrained(str(Path(section.path).expanduser()))
    except OSError:
        return None


def override_config(config: Any, values: Mapping[str, Any], key: str = "model.override") -> None:
    """Set values of a config, and recursively those of its sections.

    Raises `ModelError` for a name that the config does not have: transformers would store it and never read it.
    """
    for name, value in values.items():
        current = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        names = config if isinstance(config, dict) else config.to_dict()
        if name not in names and not hasattr(config, name):
            raise ModelError(
                f"{key}.{name}: the model's config.json has no {name!r}{did_you_mean(name, names)}."
            )
        if isinstance(value, Mapping) and (isinstance(current, dict) or hasattr(current, "to_dict")):
            override_config(current, value, f"{key}.{name}")
        elif isinstance(config, dict):
            config[name] = value
        else:
            setattr(config, name, value)


def _import_user_modules(section: ModelConfig) -> None:
    for name in section.imports:
        import_user_module(name, "model.imports", ModelError)


def _prepare_for_training(
    model: PreTrainedModel, section: ModelConfig, *, trainable: bool
) -> PreTrainedModel:
    fuse_layers(model)
    enable_packed_attention(model)
    if trainable:
        enable_gradient_checkpointing(model, section)
    return model


def enable_gradient_checkpointing(model: PreTrainedModel, section: ModelConfig) -> None:
    """Recompute layers in the backward pass as the section says; without a GPU there is nothing to offload."""
    if section.gradient_checkpointing:
        options: dict[str, Any] = {"use_reentrant": False}
        if section.gradient_checkpointing == "selective":
            options["context_fn"] = selective_contexts
        model.gradient_checkpointing_enable(
            options,
            every_n_layers=section.gradient_checkpointing_interval,
            offload=section.activation_offload and torch.cuda.is_available(),
        )


def load_tokenizer(section: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `section.tokenizer`, or the model's. Raises `ModelError` if there is none."""
    path = section.tokenizer or section.path
    key = "model.tokenizer" if section.tokenizer else "model.path"
    _import_user_modules(section)
    if is_local(path) and not Path(path).expanduser().is_dir() and gguf_file(path) is None:
        raise ModelError(
            f"{key}: there is no folder {path}. Set it to a tokenizer's folder or to a name on the hub."
        )
    check_hub(key, path)
    check_model_files(path, key)
    try:
        with silence_transformers(), gguf_reading(path):
            tokenizer = AutoTokenizer.from_pretrained(
                **pretrained_source(path), trust_remote_code=section.trust_remote_code
            )
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # as transformers loads an empty folder
            raise ValueError("it has no vocabulary")
    except ModelError:
        raise
    except LOAD_ERRORS as error:
        reason = shorten(printable(" ".join(str(error).split()).rstrip(".")))
        if not is_local(path):
            raise ModelError(
                f"{key}: there is no folder {path} here, and no tokenizer could be loaded from the Hugging Face hub "
                f"under this name: {reason}. Write the path of a model folder, or a name of the hub (owner/name) "
                "that this machine can reach or has in its cache."
            ) from error
        raise ModelError(
            f"{key}: no tokenizer could be loaded from {path}: {reason}. Put tokenizer.json and "
            "tokenizer_config.json there, or set model.tokenizer to another folder."
        ) from error
    return tokenizer


@contextmanager
def without_deepspeed() -> Iterator[None]:
    """Keep accelerate from importing DeepSpeed in the block, which takes a second where DeepSpeed is installed.

    It does so when transformers saves a model, to unwrap one of DeepSpeed's engines, which the model is not.
    """
    from accelerate.utils import other as accelerate_helpers

    is_available = accelerate_helpers.is_deepspeed_available
    accelerate_helpers.is_deepspeed_available = lambda: False
    try:
        yield
    finally:
        accelerate_helpers.is_deepspeed_available = is_available


def _check_folder(path: str) -> None:
    """Raise `ModelError` with the fault of a local folder, more specific than that of transformers."""
    if not is_local(path) or gguf_file(path) is not None:
        return
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"model.path: there is no folder {path}. Set it to a model folder or to a name on the hub."
        )
    if (fault := adapter_in_model_folder(folder)) is not None:
        raise ModelError(f"model.path: {fault}")
    if not (folder / "config.json").is_file() and (files := sorted(folder.glob(f"*{GGUF_SUFFIX}"))):
        raise ModelError(
            f"model.path: {path} holds {len(files)} GGUF files. Name one of them, such as {files[0]}."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path: {path} is not a model folder: it has no config.json.")
    if any(folder.glob("*.safetensors")):
        return
    if (fault := pickled_weights_fault(folder, path)) is not None:
        raise ModelError(f"model.path: {fault}")
    raise ModelError(f"model.path: there are no weights in {path}: it has no *.safetensors file.")
