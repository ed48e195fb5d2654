"""Reader of a model folder and its JSON files, which checks the types and sizes of what Strop and transformers use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strop.config.paths import existing_path
from strop.config.redact import redacted_repr
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.workers.json_text import parse_object, read_object

_GENERATION_CONFIG = "generation_config.json"
_MAX_FAULTS = 3
"""Number of faults of a folder's files that a message lists."""

Layers = Annotated[int, Field(gt=0, le=2000)]
Width = Annotated[int, Field(gt=0, le=10_000_000)]
TokenId = Annotated[int, Field(ge=-1, le=100_000_000)]
Positive = Annotated[float, Field(gt=0)]


class _File(BaseModel):
    """Known values of a file; a model's class may read others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class _Decoder(_File):
    """Sizes of a decoder; what a file leaves out has the default of its family."""

    num_hidden_layers: Layers | None = None
    hidden_size: Width | None = None
    intermediate_size: Width | list[Width] | None = None
    num_attention_heads: Width | list[Width] | None = None
    num_key_value_heads: Width | list[Width] | None = None
    head_dim: Width | None = None
    vocab_size: Width | None = None
    max_position_embeddings: Width | None = None
    rms_norm_eps: Positive | None = None
    attention_dropout: Annotated[float, Field(ge=0, le=1)] | None = None


class _Config(_Decoder):
    """`config.json`."""

    model_type: str | None = None
    architectures: list[str] | None = None
    text_config: _Decoder | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


class _GenerationConfigFile(_File):
    """`generation_config.json`."""

    eos_token_id: TokenId | list[TokenId] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


class _TokenizerConfig(_File):
    """`tokenizer_config.json`."""

    model_max_length: int | float | None = None
    chat_template: str | list[dict[str, str]] | dict[str, str] | None = None
    tokenizer_class: str | None = None
    added_tokens_decoder: dict[str, dict[str, Any]] | None = None
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None


class _Index(_File):
    """`model.safetensors.index.json`."""

    weight_map: dict[str, str]


_FILES: dict[str, type[_File]] = {
    "config.json": _Config,
    _GENERATION_CONFIG: _GenerationConfigFile,
    "model.safetensors.index.json": _Index,
    "tokenizer_config.json": _TokenizerConfig,
}


def check_model_files(path: str, key: str = "model.path") -> None:
    """Raise `ModelError` for a local folder whose JSON files have values that no model has. Of a damaged
    generation_config.json transformers would say nothing, and responses would not end at its stop tokens."""
    folder = Path(path).expanduser()
    if faults := list(islice(value_faults(folder), _MAX_FAULTS)) if folder.is_dir() else []:
        raise ModelError(f"{key}: {' '.join(faults)}")


def value_faults(folder: Path) -> Iterator[str]:
    """A sentence for each value that no model has, and for each JSON file of a folder that cannot be read."""
    for fault in _file_faults(folder):
        is_optional = _GENERATION_CONFIG in fault
        instead = ", or delete it to use the values of config.json" if is_optional else ""
        yield f"{fault}. Restore the file{instead}."


def _file_faults(folder: Path) -> Iterator[str]:
    """A sentence without a mark at its end for each value that no model has, and for each file that is not JSON."""
    for name, kind in _FILES.items():
        file = folder / name
        if not file.is_file():
            continue
        try:
            kind.model_validate(read_object(file))
        except ValidationError as error:
            yield from _value_faults(file, error)
        except (OSError, ValueError) as error:
            yield f"{file} cannot be read, or is no JSON object ({error})"


def _value_faults(file: Path, error: ValidationError) -> Iterator[str]:
    """One sentence for each value, of which a union of types has several errors."""
    found: dict[str, str] = {}
    for detail in error.errors():
        if not detail["loc"]:
            yield f"{file} cannot be read, or is no JSON object"
            return
        keys = [str(part) for part in detail["loc"] if isinstance(part, int) or part.isidentifier()]
        key = ".".join(name for name in keys if name not in ("int", "float", "str"))
        found.setdefault(key, f"{detail['msg'].lower()}, got {redacted_repr(detail['input'], key)}")
    for key, reason in found.items():
        yield f"{file}: {key}: {reason}"


_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
_QUANTIZED = (
    "bitsandbytes",
    "gptq",
    "awq",
    "torchao",
    "hqq",
    "quanto",
    "auto-round",
    "aqlm",
    "eetq",
    "higgs",
    "vptq",
)
"""Methods of quantization whose weights transformers keeps as integers; Strop reads those of bitsandbytes."""
_LENGTH_BYTES = 8
"""Bytes at the beginning of a safetensors file that hold the length of its header."""


def model_file_faults(folder: Path, path: str) -> Iterator[str]:
    """Yield what is wrong with the files of a model folder that has a config.json; `path` names it in messages."""
    if (fault := pickled_weights_fault(folder, path)) is not None:
        yield fault
    yield from value_faults(folder)
    config = _read_object(folder / "config.json")
    if config.get("is_encoder_decoder"):
        yield encoder_decoder_fault(path, str(config.get("model_type", "unknown")))
    yield from _weight_faults(folder)


def pickled_weights_fault(folder: Path, path: str) -> str | None:
    """The fault of a folder whose weights are pickled only."""
    if any(folder.glob("*.safetensors")):
        return None
    pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if not pickled:
        return None
    return (
        f"the weights in {path} are pickled ({pickled[0]}). Loading a pickle can run any code, so Strop reads "
        "safetensors only. If you trust them, convert them once: "
        "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new)."
    )


def encoder_decoder_fault(path: str, model_type: str) -> str:
    """The fault of a model with an encoder."""
    return (
        f"{path} is an encoder-decoder model ({model_type}), and Strop trains causal language models, which have a "
        "decoder only. Write the folder of such a model."
    )


def is_quantized(section: ModelConfig) -> bool:
    """Whether the frozen weights of a model are in few bits, as far as that is known on this machine."""
    return quantization_library(section) is not None


def quantization_library(section: ModelConfig) -> str | None:
    """Name of the package that dequantizes the frozen weights; None where they are not in few bits."""
    if section.quantization is not None:
        return section.quantization.library
    return "bitsandbytes" if _quant_method(section.path) == "bitsandbytes" else None


def _quant_method(path: str) -> str | None:
    found = read_model_file(path, "config.json").get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else None
    return method if method in _QUANTIZED else None


def quantization_fault(section: ModelConfig) -> str | None:
    """The fault of a trained model whose files have quantized weights; None for a name on the Hub."""
    if (method := _quant_method(section.path)) is None:
        return None
    instead = (
        "Write the folder of the model that they were made from, or convert them once: "
        "AutoModelForCausalLM.from_pretrained(old).dequantize().save_pretrained(new, save_original_format=False)."
    )
    has = f"{section.path} has quantized weights ({method})"
    if method != "bitsandbytes":
        return f"{has}, and of those Strop trains adapters of bitsandbytes' only. {instead}"
    if section.lora is None:
        return f"{has}, of which no gradient is computed. Add model.lora, which trains an adapter. {instead}"
    if section.quantization is not None:
        return f"{has}, which stay as they are. Remove model.quantization."
    return None


def language_model_fault(path: str) -> str | None:
    """The fault of a language model whose folder has a classifier; None for a name on the Hub."""
    named = read_model_file(path, "config.json").get("architectures")
    kinds = [kind for kind in named or () if str(kind).endswith("Classification")]
    if not kinds:
        return None
    return (
        f"{path} is a classifier ({kinds[0]}), such as a reward model, which has no language-model head. Write the "
        "folder of a language model, such as that which the classifier was trained from."
    )


def labels_fault(folder: Path, path: str) -> str | None:
    """The fault of a reward model that has another number of labels than one."""
    named = _read_object(folder / "config.json").get("id2label")
    labels = [str(label) for label in named.values()] if isinstance(named, dict) else ["LABEL_0", "LABEL_1"]
    return None if len(labels) == 1 else wrong_labels(path, labels)


def wrong_labels(path: str, labels: Sequence[str]) -> str:
    """The fault of a reward model with these labels."""
    return (
        f"the model in {path} has {len(labels)} labels ({', '.join(labels)}), not 1. Name a model for sequence "
        "classification with one label (num_labels in its config.json), whose logit is the reward."
    )


def _weight_faults(folder: Path) -> Iterator[str]:
    """Yield an error for each file that the index names and the folder lacks, and for one whose size is not that of its
    header, as an interrupted download leaves it."""
    tensors = _read_object(folder / _INDEX).get("weight_map")
    named = sorted({str(name) for name in tensors.values()}) if isinstance(tensors, dict) else []
    if missing := [name for name in named if not (folder / name).is_file()]:
        yield (
            f"{folder} lacks {missing[0]}, {len(missing)} of the {len(named)} files with weights that {_INDEX} names. "
            "Is the folder complete?"
        )
    for file in sorted(folder.glob("*.safetensors")):
        if (fault := _file_fault(file)) is not None:
            yield f"{file} is damaged or incomplete: {fault}. Copy or download the file again."


def _file_fault(file: Path) -> str | None:
    """The fault in the size or the header of a safetensors file."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if _LENGTH_BYTES + length > size:
            return f"it has {size} bytes, fewer than its header"
        try:
            header = parse_object(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            wanted = _LENGTH_BYTES + length + max(ends, default=0)
        except (ValueError, TypeError, LookupError):
            return "its header cannot be read"
    return None if wanted == size else f"it has {size} bytes, and its header describes {wanted}"


def _read_object(file: Path) -> dict[str, Any]:
    """The object of a JSON file; empty for a file that is missing, cannot be read, or holds another value."""
    try:
        return read_object(file)
    except (OSError, ValueError):
        return {}


GRID_FAMILIES = frozenset(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
"""Values of `model_type` with one run of tokens per image, a grid of patches and three-dimensional positions."""
TILE_FAMILIES = frozenset(("idefics3", "smolvlm", "gemma3", "internvl"))
"""Values of `model_type` that scale an image to one or several tiles of one size, with one position per token."""
IMAGE_FAMILIES = GRID_FAMILIES | TILE_FAMILIES
"""Values of `model_type` in config.json for which Strop accepts images."""


def folder_takes_images(path: str) -> bool:
    """Whether a model folder on this machine is of such a family.

    False for a name on the Hub, and for a config.json that cannot be read, which loading the model reports.
    """
    return read_model_file(path, "config.json").get("model_type") in IMAGE_FAMILIES


def read_model_file(path: str, name: str) -> dict[str, Any]:
    """Return the JSON object of a file in a model folder; empty for a name on the Hub, and if it cannot be read."""
    folder = existing_path(path)
    return _read_object(folder / name) if folder else {}
