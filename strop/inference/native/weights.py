"""The sampler's weights: the trainer's own memory where layout and dtype allow, else one copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from strop.errors import ModelError
from strop.inference.native.architecture import Architecture
from strop.models.fuse import joined_view


class Matrix:
    """One tensor of the sampler, made of one or more Hugging Face parameters stacked by rows.

    While `shared` it is the giver's memory, which is never written to: other values for it make a copy.
    """

    def __init__(self, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> None:
        self.names = tuple(names)
        self.shared = False
        self._kind = (device, dtype)
        self._parts: dict[str, torch.Tensor] = {}
        self._tensor: torch.Tensor | None = None

    @property
    def filled(self) -> bool:
        """Whether every part was given."""
        return self._tensor is not None

    @property
    def missing(self) -> list[str]:
        """Parts that were not given."""
        return [name for name in self.names if name not in self._parts]

    @property
    def tensor(self) -> torch.Tensor:
        """The values, once every part was given."""
        assert self._tensor is not None, f"{self.missing} were not given"
        return self._tensor

    def take(self, name: str, source: torch.Tensor) -> None:
        """Use these values for one part from now on, without a copy where that is possible."""
        if self._tensor is None:
            self._parts[name] = source.detach()
            if len(self._parts) == len(self.names):
                self._settle([self._parts[part] for part in self.names])
            return
        part = self._parts[name]
        if part.data_ptr() == source.data_ptr() and part.dtype == source.dtype:
            return
        if part.shape != source.shape:
            raise ModelError(f"weight {name!r} has shape {tuple(source.shape)}, not {tuple(part.shape)}")
        if self.shared:
            self._own(self._tensor.clone())
        self._parts[name].copy_(source.detach())

    def _settle(self, parts: list[torch.Tensor]) -> None:
        joined = joined_view(parts)
        if joined is not None and (joined.device, joined.dtype) == self._kind:
            self._tensor, self.shared = joined, True
            return
        device, dtype = self._kind
        self._own(torch.cat([part.to(device, dtype) for part in parts]))

    def _own(self, tensor: torch.Tensor) -> None:
        self._tensor, self.shared = tensor, False
        sizes = [len(self._parts[name]) for name in self.names]
        self._parts = dict(zip(self.names, torch.split(tensor, sizes), strict=True))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Linear weights are [out, in]."""

    input_norm: Matrix
    """[hidden]"""
    qkv: Matrix
    """[(heads + 2 kv_heads) head_dim, hidden]"""
    qkv_bias: Matrix | None
    q_norm: Matrix | None
    """[head_dim]"""
    k_norm: Matrix | None
    """[head_dim]"""
    output: Matrix
    """[hidden, heads head_dim]"""
    output_bias: Matrix | None
    mlp_norm: Matrix
    """[hidden]"""
    gate_up: Matrix
    """[2 intermediate, hidden]"""
    gate_up_bias: Matrix | None
    down: Matrix
    """[hidden, intermediate]"""
    down_bias: Matrix | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder of the Llama kind."""

    embedding: Matrix
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: Matrix
    """[hidden]"""
    head: Matrix
    """[vocab, hidden]; the embedding itself where they are tied."""

    def matrices(self) -> list[Matrix]:
        """Each matrix once."""
        found = [self.embedding, self.norm, self.head]
        for layer in self.layers:
            found += [m for m in (getattr(layer, name) for name in layer.__slots__) if m is not None]
        return list(dict.fromkeys(found))


def empty_weights(arch: Architecture, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    """A place for every weight, under Hugging Face's names."""

    def matrix(*names: str) -> Matrix:
        return Matrix(names, device, dtype)

    def layer(prefix: str) -> LayerWeights:
        def linear(kind: str, module: str, *parts: str) -> Matrix:
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
        head=embedding if arch.tied else matrix("lm_head.weight"),
    )


def load_into(
    by_name: Mapping[str, Matrix], weights: Iterable[tuple[str, torch.Tensor]], ignore: Sequence[str] = ()
) -> None:
    """Hand each weight to its matrix. Raises `ModelError` for a name the model does not have."""
    for name, source in weights:
        matrix = by_name.get(name)
        if matrix is not None:
            matrix.take(name, source)
        elif name not in ignore:
            raise ModelError(f"the sampler's model has no weight {name!r}")


def check_complete(matrices: Iterable[Matrix]) -> None:
    """Raises `ModelError` where a weight was not given."""
    for matrix in matrices:
        if matrix.missing:
            raise ModelError(f"the weights given to the sampler have no {matrix.missing[0]!r}")


def shared_share(matrices: Iterable[Matrix]) -> float:
    """How much of the weights is the giver's memory, 0 to 1."""
    sizes = [(matrix.tensor.numel(), matrix.shared) for matrix in matrices]
    return sum(size for size, is_shared in sizes if is_shared) / sum(size for size, _ in sizes)


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """A model's own tensors under Hugging Face's names; an adapter round it is left out."""
    unwrap = getattr(model, "get_base_model", lambda: model)
    for name, tensor in unwrap().state_dict().items():
        if ".lora_" not in name:
            yield name.replace(".base_layer.", "."), tensor
