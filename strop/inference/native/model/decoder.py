"""Native forward pass of Llama-style decoders, over a cache that stores a group's prompt once.

Each row attends to its prompt, which is shared, and its tokens. A prompt's keys and values are stored once and read
once per step: the queries of all its rows are stacked, as in Hydragen (arXiv 2402.05099). Scores of prompt and own
tokens go through one softmax. Dimensions:

    R  rows       G  prompts     N  largest number of rows of one prompt
    P  width of the stored prompts     W  width of the rows' own tokens
    K  key-value heads     Q  query heads per key-value head     D  head size
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from strop.inference.native.model.architecture import DecoderArchitecture
from strop.inference.native.model.positions import RotaryTable, RowPositions, rotate
from strop.inference.native.model.runner import (
    Compaction,
    DecodingSteps,
    DirectSteps,
    PrefilledPrompts,
    Prompt,
    TokenScores,
    score_tokens,
)
from strop.inference.native.model.vision_tower import EmbeddedPrompts, NativeVisionTower
from strop.inference.native.model.weights import (
    AppliedAdapter,
    LayerWeights,
    StackedWeight,
    check_complete,
    empty_weights,
    load_weights,
    shared_fraction,
)
from strop.models.vision.embedding import takes_images
from strop.protocols import ImageProcessor, LowRankUpdate
from strop.transfers import to_device

_PREFILL_CHUNK_TOKENS = 8192
"""Maximum number of prompt tokens in one forward pass; a longer prompt goes through alone."""

_LANGUAGE_MODEL = "model.language_model."
"""Prefix of the decoder's names in a model with a vision tower, which is `model.` without one."""


class NativeModelRunner:
    """Model runner for the families in `architecture.NATIVE_MODEL_TYPES`."""

    caches_prompts = True
    max_sequence_tokens: int | None = None

    def __init__(
        self,
        config: PretrainedConfig,
        weights: Iterable[tuple[str, torch.Tensor]],
        *,
        device: torch.device,
        dtype: torch.dtype,
        image_processor: Callable[[], ImageProcessor] | None = None,
        adapter: Mapping[str, LowRankUpdate] | None = None,
        steps: DecodingSteps | None = None,
    ) -> None:
        """`adapter` has updates that the forward pass applies to weights, by the weight's name. `steps` runs the
        decoding steps; None calls them.

        Raises `ModelError` for weights that do not fit the configuration.
        """
        self._arch = arch = DecoderArchitecture.from_config(config)
        self.vocab_size = arch.vocab_size
        self.device = device
        self._dtype = dtype
        self._family = config.model_type
        self._weights = empty_weights(arch, device, dtype)
        self._image_processor = image_processor
        self._tower = NativeVisionTower(config, device, dtype) if takes_images(config) else None
        self.takes_prefixes = self._tower is None  # whose positions and images are those of whole prompts
        self._matrices = [*self._weights.matrices(), *(self._tower.weights.values() if self._tower else ())]
        self._by_name = {name: matrix for matrix in self._matrices for name in matrix.names}
        self._adapter = AppliedAdapter()
        self.load(weights)
        check_complete(self._matrices)
        self._adapter.apply(self._weights.matrices(), adapter or {})
        self._rope = RotaryTable(config, device, dtype)
        self._steps = DirectSteps() if steps is None else steps
        self._own = KvCache(arch, device, dtype)
        self._prompts = KvCache(arch, device, dtype)
        self.clear()

    def describe(self) -> str:
        """One line: family and data type."""
        return f"native {self._family} forward, {str(self._dtype).removeprefix('torch.')}"

    def shared_fraction(self) -> float:
        """Fraction of the weights that use the memory of the given tensors, 0 to 1."""
        return shared_fraction(self._matrices)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace weights and their updates; tensors whose memory is already shared cost nothing."""
        named = ((name.replace(_LANGUAGE_MODEL, "model.", 1), tensor) for name, tensor in weights)
        merged = self._adapter.dropped_for(named)
        load_weights(self._by_name, merged, ignore=("lm_head.weight",) if self._arch.tied_embeddings else ())
        if self._tower is not None:
            self._tower.use_weights()

    def release_weights(self) -> None:
        """Free the weights that do not use the memory of given tensors."""
        for matrix in self._matrices:
            matrix.release()
        if self._tower is not None:
            self._tower.use_weights()

    def has_weights(self) -> bool:
        """Whether all weights are present."""
        return all(matrix.is_complete for matrix in self._matrices)

    def cache_tokens_needed(self, rows: int, row_tokens: int, prompts: int, prompt_tokens: int) -> int:
        """Own tokens of all rows, and each prompt once."""
        slots = self._steps.padded_count(rows), self._steps.padded_count(prompts)
        return slots[0] * padded_width(row_tokens) + slots[1] * padded_width(prompt_tokens)

    def should_admit(self, joining: int, running: int) -> bool:
        """Always True: new rows go through the model together with the running ones."""
        return True

    @torch.no_grad()
    def prefill(self, prompts: Sequence[Prompt]) -> PrefilledPrompts:
        """Prefill prompts, which take the next slots."""
        first = len(self._prompt_lengths)
        self._prompt_lengths += [len(prompt.token_ids) for prompt in prompts]
        lengths = [len(prompt.new_ids) for prompt in prompts]
        count = self._steps.padded_count(len(self._prompt_lengths))
        self._prompts.resize(count, max(self._prompt_lengths))
        last: list[torch.Tensor] = []
        scores: list[TokenScores | None] = []
        for chunk in _prefill_chunks(lengths, _PREFILL_CHUNK_TOKENS):
            selected = slice(chunk.start, chunk.stop)
            hidden = self._prefill(prompts[selected], first + chunk.start)
            ends = torch.tensor(lengths[selected], device=self.device).cumsum(0)
            last.append(self._norm(hidden[ends - 1], self._weights.norm))
            states = torch.split(hidden, lengths[selected])
            scores += [self._scores(*pair) for pair in zip(prompts[selected], states, strict=True)]
        return PrefilledPrompts(self._logits(torch.cat(last)), scores)

    def add_rows(self, slots: Sequence[int]) -> None:
        """Append rows at the ends of their prompts."""
        self._rows.reserve(self._steps.padded_count(len(self._rows) + len(slots)))
        self._rows.add(
            slots,
            [self._prompt_lengths[slot] for slot in slots],
            [self._next_positions[slot] for slot in slots],
        )
        self._resize_own()
        self._sharing_is_current = False

    @torch.no_grad()
    def decode(self, tokens: torch.Tensor) -> torch.Tensor:
        """[R, V] logits after each row's next token; valid until the next step."""
        self._resize_own()
        self._prompts.resize(self._steps.padded_count(len(self._prompt_lengths)), self._prompts.width)
        self._rope.reserve(max(self._prompt_lengths) + self._own.width)
        self._rows.next_tokens[: len(tokens)] = tokens
        sharing = self._share_prompts()
        logits = self._steps.run(partial(self._step, sharing), self._memory(sharing))
        self._rows.advance()
        return logits[: len(tokens)]

    def copy_row(self, row: int) -> torch.Tensor:
        """[layers, 2, kv_heads, tokens, head_dim] Keys and values of a row: its prompt, and its tokens but the last."""
        slot, own_tokens = self._rows.slots[row], self._rows.lengths[row]
        prompt_tokens = self._prompt_lengths[slot]
        arch, tokens = self._arch, prompt_tokens + own_tokens
        copied = self._weights.embedding.tensor.new_empty(
            arch.layers, 2, arch.kv_heads, tokens, arch.head_dim, dtype=self._dtype
        )
        for number in range(arch.layers):
            for place, (prompt, own) in enumerate(
                zip(self._prompts.layer(number), self._own.layer(number), strict=True)
            ):
                copied[number, place, :, :prompt_tokens] = prompt[slot, :, :prompt_tokens]
                copied[number, place, :, prompt_tokens:] = own[row, :, :own_tokens]
        return copied

    def compact_rows(self, compaction: Compaction) -> None:
        """Remove finished rows; their memory is freed when none remains."""
        self._rows.compact(compaction)
        self._own.compact(compaction)
        self._sharing_is_current = False
        if compaction.after == 0:
            self._own.clear()
            self._steps.clear()

    def compact_prompts(self, compaction: Compaction) -> None:
        """Remove prompts, and update the slots of the rows."""
        compaction.apply_to_list(self._prompt_lengths)
        compaction.apply_to_list(self._next_positions)
        self._prompts.compact(compaction)
        self._rows.slots = compaction.new_indices()[self._rows.slots].tolist()
        self._sharing_is_current = False
        if compaction.after == 0:
            self._prompts.clear()

    def clear(self) -> None:
        """Remove all rows and prompts, and free the cache."""
        self._own.clear()
        self._prompts.clear()
        self._rows = RowPositions(self.device)
        self._prompt_lengths: list[int] = []
        self._next_positions: list[int] = []
        """Position after each prompt."""
        self._sharing: PromptSharing | None = None
        self._sharing_is_current = False
        self._steps.clear()

    def _resize_own(self) -> None:
        """Resize the cache of the rows' own tokens to what the next step stores."""
        self._own.resize(self._steps.padded_count(len(self._rows)), self._rows.longest + 1)

    def _share_prompts(self) -> PromptSharing:
        """Assignment of the current rows to prompts, in the memory of the last one if it has the same sizes."""
        if self._sharing is None or not self._sharing_is_current:
            built = build_prompt_sharing(
                self._rows.slots,
                len(self._prompt_lengths),
                self._arch.kv_heads,
                self.device,
                self._steps.padded_count,
            )
            self._sharing = built if self._sharing is None else self._sharing.replaced_by(built)
            self._sharing_is_current = True
        return self._sharing

    def _memory(self, sharing: PromptSharing) -> Iterator[torch.Tensor]:
        """Every tensor that a decoding step reads or changes."""
        rows = self._rows
        yield from (rows.next_tokens, rows.prompt_tokens, rows.first_positions, rows.own_tokens)
        yield from (sharing.stack, sharing.unstack, *self._rope.tables)
        for number in range(self._arch.layers):
            yield from (*self._own.layer(number), *self._prompts.layer(number))
        yield from (matrix.tensor for matrix in self._weights.matrices())
        yield from self._adapter.tensors()

    def _step(self, sharing: PromptSharing) -> torch.Tensor:
        """[rows, V] logits after each row's next token, whose keys and values it stores."""
        arch, rows, count = self._arch, self._rows, self._own.count
        prompt_tokens, own_tokens = rows.prompt_tokens[:count], rows.own_tokens[:count]
        cos, sin = self._rope.at(rows.first_positions[:count] + own_tokens)
        masks = {
            window: attention_mask(
                prompt_tokens, own_tokens + 1, self._prompts.width, self._own.width, window
            )
            for window in set(arch.sliding_windows)
        }
        heads = torch.arange(count * arch.kv_heads, device=self.device).view(count, -1)
        cache_indices = (heads * self._own.width + own_tokens[:, None]).flatten()
        x = F.embedding(rows.next_tokens[:count], self._weights.embedding.tensor)
        for number, layer in enumerate(self._weights.layers):
            queries_keys, values = self._project(layer, x, cos, sin)
            own = self._own.layer(number)
            for stored, new in zip(own, (queries_keys[:, arch.heads :], values), strict=True):
                stored.view(-1, arch.head_dim).index_copy_(0, cache_indices, new.reshape(-1, arch.head_dim))
            prompt = self._prompts.layer(number)
            attended = _shared_prompt_attention(
                queries_keys[:, : arch.heads], prompt, own, sharing, masks[arch.sliding_windows[number]]
            )
            x = self._output_and_mlp(layer, x, attended)
        own_tokens += 1
        return self._logits(self._norm(x, self._weights.norm))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, V] from hidden states after the last norm."""
        return F.linear(hidden, self._weights.head.tensor)

    def _scores(self, prompt: Prompt, hidden: torch.Tensor) -> TokenScores | None:
        """Scores of a prompt's tokens after its first, from its hidden states [P, hidden] before the last norm."""
        if prompt.top_logprobs is None:
            return None
        tokens = torch.from_numpy(prompt.token_ids[1:]).to(self.device, torch.int64)
        normed = self._norm(hidden[:-1], self._weights.norm)
        return score_tokens(normed, self._logits, tokens, prompt.top_logprobs)

    def _prefill(self, prompts: Sequence[Prompt], first: int) -> torch.Tensor:
        """[tokens, hidden] states before the last norm of all tokens after the prompts' prefixes; keys and values go to
        slots from `first` on."""
        arch = self._arch
        lengths = [len(prompt.new_ids) for prompt in prompts]
        embedded = self._embed(prompts)
        self._next_positions += [int(each.max()) + 1 for each in embedded.positions]
        positions = torch.from_numpy(np.concatenate(embedded.positions, axis=-1)).to(self.device, torch.int64)
        self._rope.reserve(max(len(prompt.token_ids) for prompt in prompts))
        cos, sin = self._rope.at(positions)
        x = embedded.hidden
        for number, layer in enumerate(self._weights.layers):
            queries_keys, values = self._project(layer, x, cos, sin)
            stored_keys, stored_values = self._prompts.layer(number)
            attended = []
            parts = zip(torch.split(queries_keys, lengths), torch.split(values, lengths), strict=True)
            for place, (part, value) in enumerate(parts):
                query, key = part[:, : arch.heads], part[:, arch.heads :]
                prefix = prompts[place].prefix
                if prefix is not None:
                    key, value = (
                        torch.cat((known.transpose(0, 1), new))
                        for known, new in zip(prefix[number], (key, value), strict=True)
                    )
                stored_keys[first + place, :, : len(key)] = key.transpose(0, 1)
                stored_values[first + place, :, : len(key)] = value.transpose(0, 1)
                attended.append(_causal_attention(query, key, value, arch.sliding_windows[number]))
            x = self._output_and_mlp(layer, x, torch.cat(attended))
            if number < len(embedded.layer_features):
                assert embedded.image_rows is not None
                x.index_add_(0, embedded.image_rows, embedded.layer_features[number])
        return x

    def _embed(self, prompts: Sequence[Prompt]) -> EmbeddedPrompts:
        tokens = torch.from_numpy(np.concatenate([prompt.new_ids for prompt in prompts]))
        hidden = F.embedding(tokens.to(self.device, torch.int64), self._weights.embedding.tensor)
        if self._tower is None or not any(prompt.media for prompt in prompts):
            positions = [
                np.arange(prompt.cached_tokens, len(prompt.token_ids), dtype=np.int32) for prompt in prompts
            ]
            return EmbeddedPrompts(hidden, positions)
        assert self._image_processor is not None  # the engine refuses images without one
        return self._tower.embed(prompts, hidden, self._image_processor())

    def _norm(self, x: torch.Tensor, weight: StackedWeight) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight.tensor, self._arch.norm_eps)

    def _project(
        self, layer: LayerWeights, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries and keys [n, heads + kv_heads, head_dim], and values [n, kv_heads, head_dim]."""
        arch = self._arch
        qkv = self._linear(self._norm(x, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = qkv.view(len(x), arch.heads + 2 * arch.kv_heads, arch.head_dim)
        queries_keys, values = heads[:, : arch.heads + arch.kv_heads], heads[:, arch.heads + arch.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            queries = self._norm(queries_keys[:, : arch.heads], layer.q_norm)
            keys = self._norm(queries_keys[:, arch.heads :], layer.k_norm)
            queries_keys = torch.cat((queries, keys), dim=1)
        return rotate(queries_keys, cos, sin), values

    def _output_and_mlp(self, layer: LayerWeights, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and MLP of a layer."""
        x = x + self._linear(attended, layer.output, layer.output_bias)
        gate_up = self._linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, dim=-1)
        return x.add_(self._linear(F.silu(gate).mul_(up), layer.down, layer.down_bias))

    def _linear(self, x: torch.Tensor, weight: StackedWeight, bias: StackedWeight | None) -> torch.Tensor:
        output = F.linear(x, weight.tensor, None if bias is None else bias.tensor)
        return self._adapter.add_to(output, x, weight)


def _causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
) -> torch.Tensor:
    """[n, heads head_dim]: causal attention of the queries [n, heads, head_dim] of one prompt's last n tokens."""
    repeats = query.shape[1] // key.shape[1]
    query, key, value = (
        tensor.repeat_interleave(times, dim=1).transpose(0, 1)[None]
        for tensor, times in ((query, 1), (key, repeats), (value, repeats))
    )
    queries, length = query.shape[2], key.shape[2]
    known = length - queries
    mask = None
    if known or (window is not None and window < length):
        mask = torch.ones(queries, length, dtype=torch.bool, device=query.device).tril(known)
        mask = mask if window is None else mask.triu(known + 1 - window)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return out[0].transpose(0, 1).flatten(1)


def _prefill_chunks(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Consecutive ranges of prompts with at most `limit` tokens in total, or one longer prompt alone."""
    start = total = 0
    for index, length in enumerate(lengths):
        if total and total + length > limit:
            yield range(start, index)
            start, total = index, 0
        total += length
    yield range(start, len(lengths))


@dataclass(frozen=True, slots=True)
class PromptSharing:
    """Assignment of rows to prompts, rebuilt only when rows change. R, G and N may count some that are not in use."""

    rows_per_prompt: int
    """N"""
    stack: torch.Tensor
    """[G K N] Index in [R K] of each prompt's queries; an arbitrary row for prompts with fewer than N."""
    unstack: torch.Tensor
    """[R K] Index in [G K N] of each row's results."""

    def replaced_by(self, other: PromptSharing) -> PromptSharing:
        """The other assignment, in the memory of this one if it has the same sizes."""
        sizes = [(each.rows_per_prompt, each.stack.shape, each.unstack.shape) for each in (self, other)]
        if sizes[0] != sizes[1]:
            return other
        self.stack.copy_(other.stack)
        self.unstack.copy_(other.unstack)
        return self


def build_prompt_sharing(
    slots: Sequence[int],
    prompts: int,
    kv_heads: int,
    device: torch.device,
    padded_count: Callable[[int], int] = int,
) -> PromptSharing:
    """Build the assignment on the host, from the prompt slot of each row in use.

    `padded_count` gives the numbers R, G and N for those in use. A row that is not in use gets another row's results.
    """
    by_row = np.array(slots, dtype=np.int64)
    counts = np.bincount(by_row, minlength=prompts)
    largest = padded_count(int(counts.max()))
    by_prompt = np.argsort(by_row, kind="stable")
    starts = counts.cumsum() - counts
    index_in_prompt = np.empty_like(by_row)
    index_in_prompt[by_prompt] = np.arange(len(by_row)) - starts[by_row[by_prompt]]
    heads = np.arange(kv_heads)
    used = ((by_row[:, None] * kv_heads + heads) * largest + index_in_prompt[:, None]).ravel()
    stack = np.zeros(padded_count(prompts) * kv_heads * largest, dtype=np.int64)
    stack[used] = np.arange(len(used))
    unstack = np.zeros(padded_count(len(slots)) * kv_heads, dtype=np.int64)
    unstack[: len(used)] = used
    return PromptSharing(largest, to_device(stack, device), to_device(unstack, device))


def attention_mask(
    prompt_tokens: torch.Tensor,
    own_tokens: torch.Tensor,
    prompt_width: int,
    own_width: int,
    window: int | None,
) -> torch.Tensor:
    """[R, 1, P + W] float32 to add to scores: 0 for visible tokens, minus infinity for others.

    `prompt_tokens` and `own_tokens` [R] are numbers of stored tokens, the current token included. A row sees
    the last `window` of them, or all if it is None.
    """
    device = own_tokens.device
    prompt = torch.arange(prompt_width, device=device)
    own = torch.arange(own_width, device=device)
    prompt_count, own_count = prompt_tokens[:, None], own_tokens[:, None]
    sees_prompt, sees_own = prompt < prompt_count, own < own_count
    if window is not None:
        oldest = prompt_count + own_count - window
        sees_prompt &= prompt >= oldest
        sees_own &= prompt_count + own >= oldest
    visible = torch.cat((sees_prompt, sees_own), dim=1)[:, None]
    return torch.zeros(visible.shape, device=device).masked_fill_(~visible, -torch.inf)


def _shared_prompt_attention(
    queries: torch.Tensor,
    prompt: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    sharing: PromptSharing,
    mask: torch.Tensor,
) -> torch.Tensor:
    """[R, K Q D] from `queries` [R, K Q, D], keys and values [G, K, P, D] and [R, K, W, D]."""
    rows, heads, size = queries.shape
    kv_heads = own[0].shape[1]
    group = heads // kv_heads
    own_keys, own_values = (tensor.flatten(0, 1) for tensor in own)
    prompt_keys, prompt_values = (tensor.flatten(0, 1) for tensor in prompt)
    width = prompt_keys.shape[1]
    stacked_shape = (len(prompt_keys), sharing.rows_per_prompt * group)

    by_row = queries.reshape(rows * kv_heads, group, size)
    stacked = by_row.index_select(0, sharing.stack).view(*stacked_shape, size)
    prompt_scores = torch.bmm(stacked, prompt_keys.transpose(1, 2)).view(-1, group, width)
    own_scores = torch.bmm(by_row, own_keys.transpose(1, 2))
    scores = torch.cat((prompt_scores.index_select(0, sharing.unstack), own_scores), dim=-1)
    weights = torch.add(mask, scores.view(rows, heads, -1), alpha=size**-0.5).softmax(dim=-1)
    weights = weights.to(scores.dtype).view_as(scores)
    prompt_weights = weights[..., :width].index_select(0, sharing.stack).view(*stacked_shape, width)
    output = torch.bmm(prompt_weights, prompt_values).view(-1, group, size).index_select(0, sharing.unstack)
    output += torch.bmm(weights[..., width:], own_values)
    return output.view(rows, heads * size)


def padded_width(tokens: int) -> int:
    """Width of a slot for this many tokens: up to an eighth more, in steps of 16 or a larger power of two.

    Widths then change rarely: a change copies the cache, and makes oneDNN build new kernels.
    """
    step = 1 << max(4, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class KvCache:
    """`count` slots of `width` tokens each; one tensor [2, slots, kv_heads, width, head_dim] per layer.

    Matrix products over strided keys would copy the keys in every step, so the cache is as wide as its
    content and no wider. During a change of size, one layer is held twice. Tokens beyond the length of a
    slot's content are zero or stale: finite numbers, which a mask excludes.
    """

    def __init__(self, architecture: DecoderArchitecture, device: torch.device, dtype: torch.dtype) -> None:
        """An empty cache for this architecture."""
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self.clear()

    def clear(self) -> None:
        """Remove all slots, and free the memory."""
        self.count = 0
        self.width = 0
        self._layers = [self._zeros(0, 0) for _ in range(self._architecture.layers)]

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the slots in use: [count, kv_heads, width, head_dim] each."""
        keys_values = self._layers[number][:, : self.count]
        return keys_values[0], keys_values[1]

    def resize(self, count: int, tokens: int) -> None:
        """Resize to `count` slots, new ones at the end, with a width for `tokens`, the longest content."""
        width = padded_width(tokens)
        if width != self.width or count > self._layers[0].shape[1]:
            kept = (slice(None), slice(min(count, self.count)), slice(None), slice(min(width, self.width)))
            for number, old in enumerate(self._layers):
                new = self._zeros(count, width)
                new[kept] = old[kept]
                self._layers[number] = new
        self.count, self.width = count, width

    def compact(self, compaction: Compaction) -> None:
        """Remove slots; their memory stays allocated."""
        self.count = compaction.after
        for tensor in self._layers:
            compaction.apply(tensor, dim=1)

    def _zeros(self, slots: int, width: int) -> torch.Tensor:
        sizes = (2, slots, self._architecture.kv_heads, width, self._architecture.head_dim)
        return torch.zeros(sizes, device=self._device, dtype=self._dtype)
