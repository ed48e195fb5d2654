"""Estimates of the memory of a trainer's rank and of an inference engine.

They count what grows with the model and the run file: parameters, gradients, optimizer state, activations and KV
cache. On a GPU the CUDA context, fragmentation and communication buffers come on top, about 1 to 2 GiB per process; on
a CPU the libraries are counted, and fragmentation comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any, Literal

from strop.config.deepspeed import ZeroSettings
from strop.config.gguf_reader import read_gguf
from strop.config.paths import existing_path, gguf_file
from strop.config.schema.model import DTYPE_BYTES, LoraConfig, ModelConfig
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, TrainingEngineConfig
from strop.config.units import Amount
from strop.workers.json_text import parse_object, read_object

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers from which the memory of a model is computed."""

    parameters: int
    layers: int
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Attention heads."""
    kv_heads: int
    """Attention heads of keys and values."""
    head_dim: int
    vocabulary: int = 0
    """Width of the logits; 0 where config.json does not say."""
    intermediate: int = 0
    """Width of the MLP that a token passes, with the experts chosen for it; 0 where config.json does not say."""
    quantized_bytes: int = 0
    """Bytes of the weights of a folder that bitsandbytes has quantized; 0 for any other."""

    @property
    def mlp_width(self) -> int:
        """`intermediate`, or four times the hidden size."""
        return self.intermediate or 4 * self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_model_size(path: str) -> ModelSize | None:
    """The size of a model folder or GGUF file; None for a name on the Hub, and for files without these entries."""
    folder, quantized = existing_path(path), gguf_file(path)
    if folder is None:
        return None
    try:
        if quantized is not None:
            return _gguf_size(quantized.absolute(), quantized.stat().st_mtime_ns)
        versions = [
            (file.absolute(), file.stat().st_mtime_ns)
            for file in (folder / "config.json", *sorted(folder.glob("*.safetensors")))
        ]
        return _model_size(*versions)
    except Exception:  # noqa: BLE001  (files of any content; the start of the run reports what is wrong with them)
        return None


@cache
def _model_size(config_version: tuple[Path, int], *weight_versions: tuple[Path, int]) -> ModelSize | None:
    """The size from files, each with its time of modification, so that a changed folder is read again."""
    if not weight_versions:
        return None
    config = read_object(config_version[0])
    text = config.get("text_config", config)
    heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
    parameters, stored = map(sum, zip(*(_contents(file) for file, _ in weight_versions), strict=True))
    is_quantized = (config.get("quantization_config") or {}).get("quant_method") == "bitsandbytes"
    return ModelSize(
        parameters=parameters,
        layers=int(text["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        vocabulary=int(text.get("vocab_size") or 0),
        intermediate=_intermediate(text),
        quantized_bytes=stored if is_quantized else 0,
    )


@cache
def _gguf_size(file: Path, version: int) -> ModelSize | None:
    """The size from a GGUF file of a version, its time of modification; None without the package that reads it."""
    if find_spec("gguf") is None:
        return None
    reader = read_gguf(file)
    architecture = reader.fields["general.architecture"].contents()

    def value(name: str, default: int = 0) -> int:
        field = reader.fields.get(f"{architecture}.{name}")
        return default if field is None else int(field.contents())

    heads, hidden = value("attention.head_count"), value("embedding_length")
    if not heads:
        return None
    return ModelSize(
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        layers=value("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=value("attention.head_count_kv", heads),
        head_dim=value("attention.key_length", hidden // heads),
        vocabulary=value("vocab_size") or len(reader.fields["tokenizer.ggml.tokens"].data),
        intermediate=value("feed_forward_length"),
    )


def _intermediate(text: dict[str, Any]) -> int:
    experts = int(text.get("num_experts_per_tok") or 0)
    of_expert = int(text.get("moe_intermediate_size") or 0)
    return experts * of_expert or max(experts, 1) * int(text.get("intermediate_size") or 0)


def _contents(file: Path) -> tuple[int, int]:
    """Number of values in a safetensors file, and their bytes.

    bitsandbytes writes two values of 4 bits as one byte of `NAME.weight`, and their scales as `NAME.weight.absmax` and
    other tensors below that name, or as `NAME.SCB` for 8 bits.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{file} is not a safetensors file")
        header = parse_object(opened.read(length))
    header.pop("__metadata__", None)
    values = stored = 0
    for name, entry in header.items():
        stored += entry["data_offsets"][1] - entry["data_offsets"][0]
        if ".weight." not in name and not name.endswith((".SCB", ".weight_format")):
            values += prod(entry["shape"]) * (2 if f"{name}.absmax" in header else 1)
    return values, stored


STATES_PER_PARAMETER: Mapping[str, float] = {
    "adamw": 2,
    "adamw_bnb": 0.5,  # two of 8 bits; with `bits: 32` they are paged, and need not be on the GPU
    "ademamix": 3,
    "adafactor": 0,
    "sgd": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "galore_adamw": 2,
    "lomo": 0,
    "adalomo": 0,
    "grokadamw": 3,
    "schedule_free_sgd": 1,
}
"""Values of the optimizer state per trained parameter, at most; Adafactor's rows and columns count as none."""
_LOGIT_ROWS = 256
"""Positions whose logits exist at the same time (`strop.models.chunked_head`)."""
_LOGIT_COPIES = 3
"""Logits, their softmax and their gradient."""
_LIBRARY_BYTES = 480_000_000
"""Resident memory of a process without a model: Python, torch, transformers and Strop on Linux."""


PartName = Literal["parameters", "gradients", "optimizer", "activations", "logits", "KV cache", "libraries"]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Memory of one purpose, in bytes."""

    name: PartName
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of a process on each of its GPUs, in bytes."""

    resident: int
    """Weights and state, which are kept between two phases of the run."""
    working: int = 0
    """Gradients, activations and KV cache, which are needed in the process's own phase."""
    fraction: float | None = None
    """Fraction of the GPU that the process reserves, whatever it needs; None for what it needs."""
    is_released: bool = False
    """Whether it frees all of its memory outside its own phase."""
    fraction_key: str = ""
    """Key of `fraction` in the run file, for messages."""
    parts: tuple[MemoryPart, ...] = ()
    """Parts by purpose, of each model."""
    loading: int = 0
    """Memory on the CPU, in addition to `resident`, while weights are read that are quantized then."""

    @property
    def needed(self) -> int:
        """Least memory with which the process works."""
        return self.resident + self.working

    def active(self, gpu_bytes: int) -> int:
        """Memory in its own phase."""
        return self.needed if self.fraction is None else int(self.fraction * gpu_bytes)

    def least(self, gpu_bytes: int) -> int:
        """Memory in its own phase without the working memory, which is an estimate: what it certainly takes."""
        return self.resident if self.fraction is None else self.active(gpu_bytes)

    def idle(self, gpu_bytes: int) -> int:
        """Memory outside its own phase."""
        return 0 if self.is_released else self.least(gpu_bytes)


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Division of models and micro-batches over the ranks of a trainer."""

    parts: int = 1
    """Number of parts of each parameter: the ranks of one replica."""
    sequence: int = 1
    """Ranks that divide the tokens of a micro-batch."""
    tensor: int = 1
    """Ranks that divide each layer's matrices."""
    offloads_trained: bool = False
    """Whether shards of trained models are in the CPU's memory."""
    offloads_frozen: bool = False
    """Whether shards of frozen models are in the CPU's memory."""
    keeps_gradients: bool = False
    """Whether gradients of all parameters are held until the last micro-batch of an update."""

    @classmethod
    def of(cls, engine: TrainingEngineConfig) -> RankLayout:
        """The layout of a section of the run file."""
        if isinstance(engine, DeepSpeedEngineConfig):
            return cls(parts=engine.ranks, sequence=engine.sequence_parallel)
        if not isinstance(engine, Fsdp2EngineConfig):
            return cls(parts=engine.ranks)
        return cls(
            parts=engine.ranks // engine.replicate,
            sequence=engine.sequence_parallel,
            tensor=engine.tensor_parallel,
            offloads_trained=engine.cpu_offload,
            offloads_frozen=engine.reference_cpu_offload,
            keeps_gradients=engine.gradient_sync == "last_microbatch",
        )


def trained_model(
    size: ModelSize, model: ModelConfig, optimizer: str, layout: RankLayout, microbatch: Amount, longest: int
) -> MemoryNeed:
    """Memory of one rank for a trained model: parameters, gradients and optimizer state are divided as the layout says.

    `optimizer` is the type of its section; `longest` the longest sequence, in tokens.
    """
    of_value, in_compute = DTYPE_BYTES[model.dtype], DTYPE_BYTES[model.compute_dtype or model.dtype]
    trained = size.parameters if model.lora is None else _adapter_parameters(size, model.lora)
    weights = trained * of_value
    copy = 0 if in_compute == of_value else trained * in_compute
    frozen = 0 if model.lora is None else _frozen_bytes(size, model, in_compute)
    state = int(trained * of_value * STATES_PER_PARAMETER[optimizer])
    on_device = 0 if layout.offloads_trained else 1
    gradient_parts = layout.tensor if layout.keeps_gradients else layout.parts
    parts = (
        MemoryPart("parameters", on_device * (weights + copy + frozen) // layout.parts),
        MemoryPart("optimizer", on_device * state // layout.parts),
        MemoryPart("gradients", (on_device or layout.keeps_gradients) * trained * of_value // gradient_parts),
        *_of_microbatch(size, model, microbatch, longest, layout),
    )
    loading = size.parameters * in_compute - frozen if model.quantization is not None else 0
    return replace(_of_parts(parts), loading=loading)


def further_worker(need: MemoryNeed) -> MemoryNeed:
    """Memory of a further local worker for a model; the weights and the optimizer's state are in that of the first."""
    return _of_parts(tuple(part for part in need.parts if part.name not in ("parameters", "optimizer")))


def zero_model(
    size: ModelSize,
    model: ModelConfig,
    optimizer: str,
    ranks: int,
    zero: ZeroSettings,
    microbatch: Amount,
    longest: int,
) -> MemoryNeed:
    """Memory of one rank for a model that DeepSpeed trains (arXiv 1910.02054, figure 1).

    Every stage divides float32 masters and the optimizer's state, stage 2 also gradients, stage 3 also parameters.
    """
    in_compute = DTYPE_BYTES[model.compute_dtype or model.dtype]
    trained = size.parameters if model.lora is None else _adapter_parameters(size, model.lora)
    parameters = size.parameters * in_compute // (ranks if zero.stage == 3 else 1)
    masters_and_state = int(trained * DTYPE_BYTES["float32"] * (1 + STATES_PER_PARAMETER[optimizer])) // ranks
    parts = (
        MemoryPart("parameters", 0 if zero.stage == 3 and zero.offload_parameters else parameters),
        MemoryPart("optimizer", 0 if zero.offload_optimizer else masters_and_state),
        MemoryPart("gradients", trained * in_compute // (1 if zero.stage == 1 else ranks)),
        *_of_microbatch(size, model, microbatch, longest, RankLayout()),
    )
    return _of_parts(parts)


def frozen_model(size: ModelSize, model: ModelConfig, layout: RankLayout) -> MemoryNeed:
    """Memory of one rank for a reference model or a teacher."""
    weights = _frozen_bytes(size, model, DTYPE_BYTES[model.compute_dtype or model.dtype]) // layout.parts
    if layout.offloads_frozen:
        weights = 0
    return MemoryNeed(weights, parts=(MemoryPart("parameters", weights),))


def engine(size: ModelSize, dtype: str, devices: int, tokens: int) -> MemoryNeed:
    """Memory of an inference engine on each of its devices: its copy of the weights, and a KV cache of `tokens`."""
    cache = size.kv_values_per_token * tokens * DTYPE_BYTES[dtype] // devices
    weights = size.parameters * DTYPE_BYTES[dtype] // devices
    return MemoryNeed(
        weights, cache, parts=(MemoryPart("parameters", weights), MemoryPart("KV cache", cache))
    )


def sharing_weights(need: MemoryNeed) -> MemoryNeed:
    """The need of an engine that uses the weights of another model of its process."""
    parts = tuple(part for part in need.parts if part.name != "parameters")
    return replace(need, resident=0, parts=parts)


def total(needs: list[MemoryNeed]) -> MemoryNeed:
    """Memory of one process that has several models; their phases do not overlap."""
    parts = tuple(part for need in needs for part in need.parts)
    return MemoryNeed(
        sum(need.resident for need in needs),
        max(need.working for need in needs),
        parts=parts,
        loading=max(need.loading for need in needs),
    )


def checkpoint_bytes(size: ModelSize, model: ModelConfig, optimizer: str) -> int:
    """Size on disk of one checkpoint: the trained parameters and the optimizer's state."""
    trained = size.parameters if model.lora is None else _adapter_parameters(size, model.lora)
    return int(trained * DTYPE_BYTES[model.dtype] * (1 + STATES_PER_PARAMETER[optimizer]))


def _of_microbatch(
    size: ModelSize, model: ModelConfig, microbatch: Amount, longest: int, layout: RankLayout
) -> tuple[MemoryPart, MemoryPart]:
    """Activations and logits of a rank's part of a micro-batch, at the moment of the backward pass that needs the most.

    Either the head computes its gradient, or the last layer that of its MLP, after it was computed again where it is
    recomputed. The gradient of a head that is also the embedding waits for that of the embedding.
    """
    in_compute = DTYPE_BYTES[model.compute_dtype or model.dtype]
    tokens = int(microbatch.count) * (longest if microbatch.unit == "sequences" else 1)
    tokens = -(-tokens // layout.sequence)
    of_layer = _kept_values(size, layout.tensor)
    kept, recomputed = of_layer, 0
    if model.gradient_checkpointing == "selective":
        kept = size.hidden + _products(size, layout.tensor)
        recomputed = of_layer - (kept - 2 * size.hidden)  # results of two products are not in `of_layer`
    elif model.gradient_checkpointing:
        kept, recomputed = size.hidden, of_layer - size.hidden
    activations = tokens * size.layers * kept * in_compute
    layer = tokens * (recomputed + _gradients_of_mlp(size, layout.tensor)) * in_compute
    logits = (
        min(-(-tokens // layout.tensor), _LOGIT_ROWS)
        * size.vocabulary
        * _LOGIT_COPIES
        * DTYPE_BYTES["float32"]
    )
    waiting = 0
    if model.lora is None:
        weights = size.vocabulary * size.hidden
        logits += weights * (
            DTYPE_BYTES["float32"] + in_compute
        )  # the sum over chunks, and that of one chunk
        waiting = weights * in_compute
    if logits < waiting + layer:
        activations, logits = activations + layer, waiting
    return MemoryPart("activations", activations), MemoryPart("logits", logits)


def _kept_values(size: ModelSize, tensor: int) -> int:
    """Values of a token that a layer keeps for its backward pass, for a decoder with RMS norms and a gated MLP.

    Each norm keeps its input and its output (`strop.models.fused_layers`); attention keeps queries, keys, values, its
    output and the input of the output projection; the MLP keeps the two projections and the product that its last
    projection multiplies. Tensor parallelism divides all but the norms.
    """
    norms = 4 * size.hidden
    attention = 4 * size.heads * size.head_dim + 2 * size.kv_heads * size.head_dim
    return norms + (attention + 3 * size.mlp_width) // tensor


def _products(size: ModelSize, tensor: int) -> int:
    """Values of a token that a layer keeps under selective checkpointing: the results of its matrix products, and of
    attention."""
    attention = 2 * size.heads * size.head_dim + 2 * size.kv_heads * size.head_dim
    return 2 * size.hidden + (attention + 2 * size.mlp_width) // tensor


def _gradients_of_mlp(size: ModelSize, tensor: int) -> int:
    """Values of a token that are gradients while a layer computes that of its gated MLP: of the two projections and of
    their product, and of the layer's output and the norm's."""
    return 2 * size.hidden + 3 * size.mlp_width // tensor


def with_libraries(need: MemoryNeed) -> MemoryNeed:
    """The need of a process on the CPU, where its libraries are in the same memory."""
    part = MemoryPart("libraries", _LIBRARY_BYTES)
    return replace(
        need,
        resident=need.resident + part.bytes,
        working=max(need.working, need.loading),
        parts=(*need.parts, part),
    )


def _of_parts(parts: tuple[MemoryPart, ...]) -> MemoryNeed:
    """The need of a trained model: its first two parts, parameters and optimizer, are resident."""
    resident, working = parts[:2], parts[2:]
    return MemoryNeed(sum(part.bytes for part in resident), sum(part.bytes for part in working), parts=parts)


def _frozen_bytes(size: ModelSize, model: ModelConfig, in_compute: int) -> int:
    """Weights under an adapter; those of the linear layers quantized as the section or the model's files say."""
    section = model.quantization
    if section is None:
        return size.quantized_bytes or size.parameters * in_compute
    attention = 2 * (size.heads + size.kv_heads) * size.head_dim
    linear = min(size.parameters, size.layers * size.hidden * (attention + 3 * size.mlp_width))
    if section.bits == 8:
        return linear + (size.parameters - linear) * in_compute
    scales = (1 if section.double else DTYPE_BYTES["float32"]) / section.block_size
    return int(linear * (section.bits / 8 + scales)) + (size.parameters - linear) * in_compute


def _adapter_parameters(size: ModelSize, lora: LoraConfig) -> int:
    """Parameters of an adapter on the seven projections of each layer, taken as hidden x 4 hidden at most."""
    rank = max((lora.rank, *(lora.rank_pattern or {}).values()))
    return size.layers * rank * (4 * 2 * size.hidden + 3 * 5 * size.hidden)
