"""Weights of the native engine: the given tensors' memory if layout and type allow, else one copy; adapters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from strop.errors import ModelError
from strop.inference.native.model.architecture import DecoderArchitecture
from strop.models.quantization import stack_quantized
from strop.models.shared_weights import concatenated_view
from strop.protocols import LowRankUpdate


class StackedWeight:
    """One tensor of the engine: one or more Hugging Face parameters stacked by rows.

    While `shared` is True it uses the memory of the given tensors and never writes to it: loading other
    values makes a copy.
    """

    def __init__(self, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> None:
        """An incomplete tensor of the parameters `names`."""
        self.names = tuple(names)
        self.shared = False
        self._device_and_dtype = (device, dtype)
        self._may_share = True
        self._parts: dict[str, torch.Tensor] = {}
        self._tensor: torch.Tensor | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every part has been set."""
        return self._tensor is not None

    @property
    def missing_parts(self) -> list[str]:
        """Names of the parts that have not been set."""
        return [name for name in self.names if name not in self._parts]

    @property
    def tensor(self) -> torch.Tensor:
        """The stacked tensor; all parts must be set."""
        assert self._tensor is not None, f"{self.missing_parts} have not been set"
        return self._tensor

    def part(self, name: str) -> torch.Tensor:
        """The rows of one part, which has been set."""
        return self._parts[name]

    def set_part(self, name: str, source: torch.Tensor) -> None:
        """Set or replace one part, without a copy if possible."""
        if self._tensor is None:
            self._parts[name] = source.detach()
            if len(self._parts) == len(self.names):
                self._complete([self._parts[part] for part in self.names])
            return
        part = self._parts[name]
        if part.data_ptr() == source.data_ptr() and part.dtype == source.dtype:
            return
        if part.shape != source.shape:
            raise ModelError(f"weight {name!r} has shape {tuple(source.shape)}, not {tuple(part.shape)}")
        if self.shared:
            self._set_own(self._tensor.clone())
        self._parts[name].copy_(source.detach())

    def release(self) -> None:
        """Free the tensor unless it is shared; it is incomplete until all parts are set again."""
        if self._tensor is None or self.shared:
            return
        self._tensor, self._parts = None, {}
        self._may_share = False

    def _complete(self, parts: list[torch.Tensor]) -> None:
        joined: torch.Tensor | None = stack_quantized(parts)
        if joined is None and self._may_share:
            joined = concatenated_view(parts)
        if joined is not None and (joined.device, joined.dtype) == self._device_and_dtype:
            self._tensor, self.shared = joined, True
            return
        device, dtype = self._device_and_dtype
        self._set_own(torch.cat([part.to(device, dtype) for part in parts]))

    def _set_own(self, tensor: torch.Tensor) -> None:
        self._tensor, self.shared = tensor, False
        sizes = [len(self._parts[name]) for name in self.names]
        self._parts = dict(zip(self.names, torch.split(tensor, sizes), strict=True))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Linear weights are [out, in]."""

    input_norm: StackedWeight
    """[hidden]"""
    qkv: StackedWeight
    """[(heads + 2 kv_heads) head_dim, hidden]"""
    qkv_bias: StackedWeight | None
    q_norm: StackedWeight | None
    """[head_dim]"""
    k_norm: StackedWeight | None
    """[head_dim]"""
    output: StackedWeight
    """[hidden, heads head_dim]"""
    output_bias: StackedWeight | None
    mlp_norm: StackedWeight
    """[hidden]"""
    gate_up: StackedWeight
    """[2 intermediate, hidden]"""
    gate_up_bias: StackedWeight | None
    down: StackedWeight
    """[hidden, intermediate]"""
    down_bias: StackedWeight | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a Llama-style decoder."""

    embedding: StackedWeight
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: StackedWeight
    """[hidden]"""
    head: StackedWeight
    """[vocab, hidden]; the embedding itself if they are tied."""

    def matrices(self) -> list[StackedWeight]:
        """Every tensor, once."""
        found = [self.embedding, self.norm, self.head]
        for layer in self.layers:
            found += [m for m in (getattr(layer, name) for name in layer.__slots__) if m is not None]
        return list(dict.fromkeys(found))


def empty_weights(arch: DecoderArchitecture, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    """Incomplete tensors for every weight, under Hugging Face's names."""

    def matrix(*names: str) -> StackedWeight:
        return StackedWeight(names, device, dtype)

    def layer(prefix: str) -> LayerWeights:
        def linear(kind: str, module: str, *parts: str) -> StackedWeight:
            return matrix(*(f"{prefix}.{module}.{part}.{kind}" for part in parts))

        qkv = ("self_attn", "q_proj", "k_proj", "v_proj")
        output = ("self_attn", "o_proj")
        gate_up, down = ("mlp", "gate_proj", "up_proj"), ("mlp", "down_proj")
        return LayerWeights(
            input_norm=matrix(f"{prefix}.input_layernorm.weight"),
            qkv=linear("weight", *qkv),
            qkv_bias=linear("bias", *qkv) if arch.qkv_bias else None,
            q_norm=linear("weight", "self_attn", "q_norm") if arch.qk_norm else None,
            k_norm=linear("weight", "self_attn", "k_norm") if arch.qk_norm else None,
            output=linear("weight", *output),
            output_bias=linear("bias", *output) if arch.output_bias else None,
            mlp_norm=matrix(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=linear("weight", *gate_up),
            gate_up_bias=linear("bias", *gate_up) if arch.mlp_bias else None,
            down=linear("weight", *down),
            down_bias=linear("bias", *down) if arch.mlp_bias else None,
        )

    embedding = matrix("model.embed_tokens.weight")
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(f"model.layers.{number}") for number in range(arch.layers)),
        norm=matrix("model.norm.weight"),
        head=embedding if arch.tied_embeddings else matrix("lm_head.weight"),
    )


def load_weights(
    by_name: Mapping[str, StackedWeight],
    weights: Iterable[tuple[str, torch.Tensor]],
    ignore: Sequence[str] = (),
) -> None:
    """Set each weight in its tensor. Raises `ModelError` for a name that the model does not have."""
    for name, source in weights:
        matrix = by_name.get(name)
        if matrix is not None:
            matrix.set_part(name, source)
        elif name not in ignore:
            raise ModelError(f"the inference engine's model has no weight {name!r}")


def check_complete(matrices: Iterable[StackedWeight]) -> None:
    """Raise `ModelError` for the first weight that has not been set."""
    for matrix in matrices:
        if matrix.missing_parts:
            raise ModelError(f"the weights given to the inference engine have no {matrix.missing_parts[0]!r}")


def shared_fraction(matrices: Iterable[StackedWeight]) -> float:
    """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
    sizes = [(matrix.tensor.numel(), matrix.shared) for matrix in matrices if matrix.is_complete]
    return sum(size for size, is_shared in sizes if is_shared) / max(1, sum(size for size, _ in sizes))


@dataclass(frozen=True, slots=True)
class _RowUpdate:
    """Update of some rows of a stacked weight."""

    first: int
    rows: int
    update: LowRankUpdate


_NONE: Mapping[str, _RowUpdate] = {}


class AppliedAdapter:
    """Updates of stacked weights. Their tensors are the trainer's own, which it changes in place."""

    def __init__(self) -> None:
        self._updates: dict[StackedWeight, dict[str, _RowUpdate]] = {}

    def apply(self, matrices: Iterable[StackedWeight], adapter: Mapping[str, LowRankUpdate]) -> None:
        """Apply updates, by the name of the weight, to complete stacked weights."""
        for matrix in matrices:
            first = 0
            for name in matrix.names:
                rows = len(matrix.part(name))
                if name in adapter:
                    self._updates.setdefault(matrix, {})[name] = _RowUpdate(first, rows, adapter[name])
                first += rows

    def dropped_for(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights, which have the adapter merged: an update ends with the weight that it is merged into."""
        for name, weight in weights:
            for updates in self._updates.values():
                updates.pop(name, None)
            yield name, weight

    def tensors(self) -> Iterator[torch.Tensor]:
        """Both matrices of each update."""
        for updates in self._updates.values():
            for each in updates.values():
                yield from (each.update.a, each.update.b)

    def add_to(self, output: torch.Tensor, x: torch.Tensor, weight: StackedWeight) -> torch.Tensor:
        """Add the updates of a weight to its product with `x` [n, in], in place; rounded as in training."""
        for each in self._updates.get(weight, _NONE).values():
            low = F.linear(x, each.update.a)
            rows = output[:, each.first : each.first + each.rows]
            rows.addmm_(low, each.update.b.T, alpha=each.update.scale)
        return output


def is_applicable(adapter: Mapping[str, LowRankUpdate], dtype: torch.dtype) -> bool:
    """Whether the decoder can apply the adapter: it adapts layers only, and has the dtype of the computation."""
    return all(
        name.startswith("model.layers.") and update.a.dtype == dtype for name, update in adapter.items()
    )
