"""Model runner for any causal language model, over its own Hugging Face forward and cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from strop.errors import ModelError
from strop.inference.native.model.compaction import Compaction
from strop.inference.native.model.weights import (
    StackedWeight,
    check_complete,
    load_weights,
    shared_fraction,
)
from strop.types import IntArray


@dataclass(slots=True)
class BatchGroup:
    """Rows that were admitted together: one Hugging Face batch, padded on the left."""

    rows: torch.Tensor
    """[n] int64 Indices among all rows; before `add_rows`, slots of the prompts."""
    cache: DynamicCache
    mask: torch.Tensor
    """[n, tokens so far] int64, 0 for padding"""
    positions: torch.Tensor
    """[n] int64 Position of the next token"""


class HuggingFaceModelRunner:
    """Model runner that is correct for every family, and slower than `NativeModelRunner`.

    Each admission makes a batch group with its own cache, which stores a shared prompt once per row.
    """

    caches_prompts = False

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Raises `ModelError` for weights that do not fit the configuration, and for unsupported models."""
        self.vocab_size: int = config.get_text_config().vocab_size
        self.device = device
        self._dtype = dtype
        self._model = _empty_model(config, device, dtype)
        self._tensors: dict[str, torch.Tensor] = {}
        """Tensors of the model; of several tied names, the first."""
        self._canonical_names: dict[str, str] = {}
        """Key in `_tensors` for each of the model's names."""
        names_by_id: dict[int, str] = {}
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            first_name = names_by_id.setdefault(id(tensor), name)
            self._canonical_names[name] = first_name
            self._tensors[first_name] = tensor
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._matrices = {name: StackedWeight((name,), device, dtype) for name in self._tensors}
        self.load(weights)
        check_complete(self._matrices.values())
        accepted = inspect.signature(self._model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._logits_to_keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        rotary = hasattr(config, "rope_parameters")
        self.max_sequence_tokens: int | None = (
            None if rotary else getattr(config, "max_position_embeddings", None)
        )
        self._groups: list[BatchGroup] = []
        self._pending: BatchGroup | None = None

    def describe(self) -> str:
        """One line: class of the model and data type."""
        dtype = str(self._dtype).removeprefix("torch.")
        return f"Hugging Face's own {type(self._model).__name__}, {dtype}"

    def shared_fraction(self) -> float:
        """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
        return shared_fraction(self._matrices.values())

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights; tensors whose memory is already shared cost nothing."""
        canonical = ((self._canonical_names.get(name, name), tensor) for name, tensor in weights)
        load_weights(self._matrices, canonical)
        for name, matrix in self._matrices.items():
            if matrix.is_complete:
                self._set_parameter(name, matrix.tensor)

    def release_weights(self) -> None:
        """Free the weights that do not use the memory of given tensors."""
        for name, matrix in self._matrices.items():
            matrix.release()
            if not matrix.is_complete:
                self._tensors[name].data = self._tensors[name].data.new_empty(0)

    def has_weights(self) -> bool:
        """Whether all weights are present."""
        return all(matrix.is_complete for matrix in self._matrices.values())

    def cache_tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Every row stores its prompt too."""
        return rows * (row_tokens + prompt_tokens)

    def should_admit(self, joining: int, running: int) -> bool:
        """Whether the group is large enough for the forward pass that it costs in each step."""
        return 4 * joining >= running

    @torch.no_grad()
    def prefill(self, prompts: Sequence[IntArray]) -> torch.Tensor:
        """[prompts, V] logits after each prompt."""
        width = max(len(prompt) for prompt in prompts)
        tokens = np.zeros((len(prompts), width), np.int64)
        mask = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        attention_mask = torch.from_numpy(mask).to(self.device)
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        self._pending = BatchGroup(
            rows=torch.arange(len(prompts), device=self.device),
            cache=DynamicCache(config=self._model.config),
            mask=attention_mask,
            positions=positions[:, -1] + 1,
        )
        return self._forward(self._pending, torch.from_numpy(tokens).to(self.device), positions)

    def add_rows(self, slots: Sequence[int]) -> None:
        """Append rows at the ends of the prompts of the last `prefill`."""
        group = self._pending
        assert group is not None, "add_rows must follow prefill"
        self._pending = None
        first = sum(len(other.rows) for other in self._groups)
        _select(group, torch.tensor(slots, dtype=torch.int64, device=self.device))
        group.rows = torch.arange(first, first + len(slots), device=self.device)
        self._groups.append(group)

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token."""
        logits = torch.empty(len(tokens), self.vocab_size, dtype=self._dtype, device=self.device)
        for group in self._groups:
            group.mask = torch.cat((group.mask, group.mask.new_ones(len(group.rows), 1)), dim=1)
            logits[group.rows] = self._forward(group, tokens[group.rows, None], group.positions[:, None]).to(
                self._dtype
            )
            group.positions = group.positions + 1
        return logits

    def compact_rows(self, compaction: Compaction) -> None:
        """Remove finished rows."""
        indices = compaction.new_indices()
        for group in self._groups:
            group.rows = indices[group.rows]
            kept = group.rows >= 0
            if not kept.all():
                _select(group, kept.nonzero()[:, 0])
        self._groups = [group for group in self._groups if len(group.rows)]

    def compact_prompts(self, compaction: Compaction) -> None:
        """Nothing to do: prompts are not cached."""

    def clear(self) -> None:
        """Remove all rows, and free the caches."""
        self._groups.clear()
        self._pending = None

    def _forward(self, group: BatchGroup, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[n, V] logits of the last tokens."""
        position_ids = {"position_ids": positions} if self._takes_positions else {}
        out = self._model(
            input_ids=tokens,
            attention_mask=group.mask,
            past_key_values=group.cache,
            use_cache=True,
            **position_ids,
            **self._logits_to_keep,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _set_parameter(self, name: str, values: torch.Tensor) -> None:
        if self._shapes[name] != values.shape:
            raise ModelError(
                f"weight {name!r} has shape {tuple(values.shape)}; the model needs {tuple(self._shapes[name])}"
            )
        self._tensors[name].data = values


def _empty_model(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters that are allocated, but neither initialized nor written to."""
    own = copy.deepcopy(config)
    own._attn_implementation = None
    with no_init_weights(), torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(own, dtype=dtype)  # type: ignore[no-untyped-call]
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{config.model_type} models keep a recurrent state instead of keys and values, which the native "
            "engine cannot pad or share; use another inference engine for them"
        )
    model.tie_weights()  # transformers skips this under no_init_weights
    model.train(False)
    return model


def _select(group: BatchGroup, chosen: torch.Tensor) -> None:
    """Keep these rows, in this order; a row may be chosen more than once."""
    group.cache.batch_select_indices(chosen)
    group.mask = group.mask[chosen]
    group.positions = group.positions[chosen]
    group.rows = group.rows[chosen]
