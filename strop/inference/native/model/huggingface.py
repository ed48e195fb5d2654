"""Model runner for any causal language model, over its own Hugging Face forward and cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from strop.errors import ModelError
from strop.inference.native.model.positions import left_padded
from strop.inference.native.model.runner import (
    Compaction,
    PrefilledPrompts,
    Prompt,
    TokenScores,
    score_tokens,
)
from strop.inference.native.model.vision_tower import image_logits, prompt_images
from strop.inference.native.model.weights import (
    StackedWeight,
    check_complete,
    load_weights,
    shared_fraction,
)
from strop.models.family_traits import attention_implementation, has_recurrent_layers, rope_token_limit
from strop.models.loading import language_model_class
from strop.models.quantization import full_precision
from strop.models.vision.embedding import use_host_plans
from strop.protocols import ImageProcessor


@dataclass(slots=True)
class BatchGroup:
    """Rows that were admitted together: one Hugging Face batch, padded on the left or of one length."""

    rows: torch.Tensor
    """[n] int64 Indices among all rows; before `add_rows`, slots of the prompts."""
    cache: DynamicCache
    mask: torch.Tensor | None
    """[n, tokens so far] int64, 0 for padding; None without padding"""
    positions: torch.Tensor
    """[n] int64 Position of the next token"""


class HuggingFaceModelRunner:
    """Model runner that is correct for every family, and slower than `NativeModelRunner`.

    Each admission makes a batch group with its own cache, which stores a shared prompt once per row. A model with
    recurrent layers is not padded: each length of prompts has a group of its own.
    """

    caches_prompts = False
    takes_prefixes = False

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype,
        image_processor: Callable[[], ImageProcessor] | None = None,
    ) -> None:
        """Raises `ModelError` for weights that do not fit the configuration, and for unsupported models."""
        self.vocab_size: int = config.get_text_config().vocab_size
        self.device = device
        self._dtype = dtype
        self._image_processor = image_processor
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
        self._cache_argument = "cache_params" if "cache_params" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted
        self._logits_to_keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.max_sequence_tokens = _sequence_limit(config)
        self._pads = not has_recurrent_layers(config)
        self._groups: list[BatchGroup] = []
        self._pending: list[BatchGroup] = []

    def describe(self) -> str:
        """One line: class of the model and data type."""
        dtype = str(self._dtype).removeprefix("torch.")
        return f"Hugging Face's own {type(self._model).__name__}, {dtype}"

    def shared_fraction(self) -> float:
        """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
        return shared_fraction(self._matrices.values())

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights; tensors whose memory is already shared cost nothing."""
        canonical = (
            (self._canonical_names.get(name, name), full_precision(tensor)) for name, tensor in weights
        )
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
    def prefill(self, prompts: Sequence[Prompt]) -> PrefilledPrompts:
        """Prefill prompts, which take the next slots."""
        logits = torch.empty(len(prompts), self.vocab_size, dtype=self._dtype, device=self.device)
        lengths = [0 if self._pads else len(prompt.token_ids) for prompt in prompts]
        self._pending = []
        for length in sorted(set(lengths)):
            slots = [slot for slot, each in enumerate(lengths) if each == length]
            logits[torch.tensor(slots, device=self.device)] = self._prefill_group(
                [prompts[slot] for slot in slots], slots
            )
        return PrefilledPrompts(logits, [self._scores(prompt) for prompt in prompts])

    def _scores(self, prompt: Prompt) -> TokenScores | None:
        """Scores of a prompt's tokens after its first, from a forward pass of its own: the batch may be padded,
        and keeps the last logits only."""
        if prompt.top_logprobs is None:
            return None
        tokens = torch.from_numpy(prompt.token_ids).to(self.device, torch.int64)
        logits = self._model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
        return score_tokens(logits, lambda part: part, tokens[1:], prompt.top_logprobs)

    def add_rows(self, slots: Sequence[int]) -> None:
        """Append rows at the ends of the prompts of the last `prefill`."""
        first = sum(len(group.rows) for group in self._groups)
        for group in self._pending:
            local = {slot: index for index, slot in enumerate(group.rows.tolist())}
            rows = [row for row, slot in enumerate(slots) if slot in local]
            if rows:
                _select(group, torch.tensor([local[slots[row]] for row in rows], device=self.device))
                group.rows = first + torch.tensor(rows, device=self.device)
                self._groups.append(group)
        self._pending = []

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token."""
        logits = torch.empty(len(tokens), self.vocab_size, dtype=self._dtype, device=self.device)
        for group in self._groups:
            if group.mask is not None:
                group.mask = torch.cat((group.mask, group.mask.new_ones(len(group.rows), 1)), dim=1)
            logits[group.rows] = self._forward(group, tokens[group.rows, None], group.positions[:, None]).to(
                self._dtype
            )
            group.positions = group.positions + 1
        return logits

    def copy_row(self, row: int) -> torch.Tensor:
        """Raise: families have caches of different kinds, so that `takes_prefixes` is False."""
        raise NotImplementedError

    def compact_rows(self, compaction: Compaction) -> None:
        """Remove finished rows."""
        indices = torch.from_numpy(compaction.new_indices()).to(self.device)
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
        self._pending.clear()

    def _prefill_group(self, prompts: Sequence[Prompt], slots: Sequence[int]) -> torch.Tensor:
        """[n, V] logits after prompts that become one group."""
        batch = left_padded([prompt.token_ids for prompt in prompts], self.device)
        group = BatchGroup(
            rows=torch.tensor(slots, device=self.device),
            cache=DynamicCache(config=self._model.config),
            mask=batch.mask if self._pads else None,
            positions=batch.positions[:, -1] + 1,
        )
        self._pending.append(group)
        if not any(prompt.media for prompt in prompts):
            return self._forward(group, batch.token_ids, batch.positions).to(self._dtype)
        assert self._image_processor is not None  # the engine refuses images without one
        images = prompt_images(prompts, batch, self._image_processor())
        group.positions = images.positions[..., -1].amax(0) + 1
        return image_logits(self._model, batch, images, group.cache).to(self._dtype)

    def _forward(self, group: BatchGroup, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[n, V] logits of the last tokens."""
        out = self._model(
            input_ids=tokens,
            use_cache=True,
            **{self._cache_argument: group.cache},
            **({} if group.mask is None else {"attention_mask": group.mask}),
            **({"position_ids": positions} if self._takes_positions else {}),
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


def _sequence_limit(config: PretrainedConfig) -> int | None:
    """Maximum number of tokens in a sequence; None if there is no limit."""
    rope_limit = rope_token_limit(config)
    if rope_limit is not None:
        return rope_limit[0]
    return None if hasattr(config, "rope_parameters") else getattr(config, "max_position_embeddings", None)


def _empty_model(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters that are allocated, but neither initialized nor written to."""
    own = copy.deepcopy(config)
    own._attn_implementation = attention_implementation(config)
    with no_init_weights(), torch.device(device):
        model: PreTrainedModel = language_model_class(config).from_config(own, dtype=dtype)
    model.tie_weights()  # transformers skips this under no_init_weights
    model.train(False)
    use_host_plans(model)
    return model


def _select(group: BatchGroup, chosen: torch.Tensor) -> None:
    """Keep these rows, in this order; a row may be chosen more than once."""
    # Keys, values and recurrent states; any number of rows.
    group.cache.reorder_cache(chosen)  # type: ignore[arg-type]
    group.mask = None if group.mask is None else group.mask[chosen]
    group.positions = group.positions[chosen]
    group.rows = group.rows[chosen]
