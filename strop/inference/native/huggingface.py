"""Any causal language model, through its own Hugging Face forward and cache."""

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
from strop.inference.native.moves import Moves
from strop.inference.native.weights import Matrix, load_into, shared_share
from strop.types import Ints


@dataclass(slots=True)
class Cohort:
    """Rows that began together: one Hugging Face batch, padded on the left."""

    rows: torch.Tensor
    """[n] int64 Their places among all rows; before `add_rows`, the prompts' slots."""
    cache: DynamicCache
    mask: torch.Tensor
    """[n, tokens so far] int64, 0 for padding"""
    positions: torch.Tensor
    """[n] int64 of the next token"""


class HuggingFaceRunner:
    """A `Runner` over a model's own forward: correct for every family, and slower than a native one.

    Each admission is a cohort with a cache of its own, in which a shared prompt stands once per row.
    """

    keeps_prompts = False

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.vocab_size: int = config.get_text_config().vocab_size
        self.device = device
        self._dtype = dtype
        self._model = _empty_model(config, device, dtype)
        self._tensors: dict[str, torch.Tensor] = dict(self._model.state_dict(keep_vars=True))
        self._matrices = {name: Matrix((name,), device, dtype) for name in self._tensors}
        self.load(weights)
        self._check_complete()
        accepted = inspect.signature(self._model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._extra = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        rotary = hasattr(config, "rope_parameters")
        self.longest: int | None = None if rotary else getattr(config, "max_position_embeddings", None)
        self._cohorts: list[Cohort] = []
        self._pending: Cohort | None = None

    def describe(self) -> str:
        """One line for people."""
        dtype = str(self._dtype).removeprefix("torch.")
        return f"Hugging Face's own {type(self._model).__name__}, {dtype}"

    def shared_share(self) -> float:
        """How much of the weights is the giver's memory, 0 to 1."""
        return shared_share(matrix for matrix in self._matrices.values() if matrix.filled)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take new weights; those whose memory is shared already cost nothing."""
        load_into(self._matrices, weights)
        for name, matrix in self._matrices.items():
            if matrix.filled:
                self._put(name, matrix.tensor)

    def tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Every row holds its prompt too."""
        return rows * (row_tokens + prompt_tokens)

    def joins_well(self, joining: int, under_way: int) -> bool:
        """A cohort costs a forward of its own each step: it must be a fair share of all."""
        return 4 * joining >= under_way

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Ints]) -> torch.Tensor:
        """[prompts, V] logits after each prompt."""
        width = max(len(prompt) for prompt in prompts)
        tokens = np.zeros((len(prompts), width), np.int64)
        mask = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        attention_mask = torch.from_numpy(mask).to(self.device)
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        self._pending = Cohort(
            rows=torch.arange(len(prompts), device=self.device),
            cache=DynamicCache(config=self._model.config),
            mask=attention_mask,
            positions=positions[:, -1] + 1,
        )
        return self._forward(self._pending, torch.from_numpy(tokens).to(self.device), positions)

    def add_rows(self, slots: Sequence[int]) -> None:
        """New rows at the ends of the prompts just prefilled."""
        cohort = self._pending
        assert cohort is not None, "add_rows comes after prefill"
        self._pending = None
        first = sum(len(other.rows) for other in self._cohorts)
        _select(cohort, torch.tensor(slots, dtype=torch.int64, device=self.device))
        cohort.rows = torch.arange(first, first + len(slots), device=self.device)
        self._cohorts.append(cohort)

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token."""
        logits = torch.empty(len(tokens), self.vocab_size, dtype=self._dtype, device=self.device)
        for cohort in self._cohorts:
            cohort.mask = torch.cat((cohort.mask, cohort.mask.new_ones(len(cohort.rows), 1)), dim=1)
            logits[cohort.rows] = self._forward(
                cohort, tokens[cohort.rows, None], cohort.positions[:, None]
            ).to(self._dtype)
            cohort.positions = cohort.positions + 1
        return logits

    def drop_rows(self, moves: Moves) -> None:
        """Let rows go."""
        places = moves.new_places()
        for cohort in self._cohorts:
            cohort.rows = places[cohort.rows]
            kept = cohort.rows >= 0
            if not kept.all():
                _select(cohort, kept.nonzero()[:, 0])
        self._cohorts = [cohort for cohort in self._cohorts if len(cohort.rows)]

    def drop_prompts(self, moves: Moves) -> None:
        """Nothing to do: prompts are not kept."""

    def clear(self) -> None:
        """Forget all rows."""
        self._cohorts.clear()
        self._pending = None

    def _forward(self, cohort: Cohort, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[n, V] logits of the last tokens."""
        placed = {"position_ids": positions} if self._takes_positions else {}
        out = self._model(
            input_ids=tokens,
            attention_mask=cohort.mask,
            past_key_values=cohort.cache,
            use_cache=True,
            **placed,
            **self._extra,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def _put(self, name: str, values: torch.Tensor) -> None:
        tensor = self._tensors[name]
        if tensor.shape != values.shape:
            raise ModelError(
                f"weight {name!r} has shape {tuple(values.shape)}, but the model wants {tuple(tensor.shape)}"
            )
        tensor.data = values

    def _check_complete(self) -> None:
        """Every tensor of the model was given, by its own name or by one that is tied to it."""
        given = {id(self._tensors[name]) for name, matrix in self._matrices.items() if matrix.filled}
        for name, tensor in self._tensors.items():
            if id(tensor) not in given:
                raise ModelError(f"the weights given to the sampler have no {name!r}")


def _empty_model(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model with memory for its parameters set aside, but neither filled nor touched."""
    own = copy.deepcopy(config)
    own._attn_implementation = None
    with no_init_weights(), torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(own, dtype=dtype)  # type: ignore[no-untyped-call]
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{config.model_type} models keep a running state instead of keys and values, which the native "
            "sampler cannot pad or share; use another inference engine for them"
        )
    model.tie_weights()  # which transformers leaves out together with the initial values
    model.train(False)
    return model


def _select(cohort: Cohort, chosen: torch.Tensor) -> None:
    """Keep these members, in this order; a member may be chosen more than once."""
    cohort.cache.batch_select_indices(chosen)
    cohort.mask = cohort.mask[chosen]
    cohort.positions = cohort.positions[chosen]
    cohort.rows = cohort.rows[chosen]
