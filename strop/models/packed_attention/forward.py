"""Forward pass of a Hugging Face model over packed sequences with shared prompts.

Strop's attention is registered with transformers (`AttentionInterface`) under the name `strop_packed`. It
takes no mask: visibility follows from the micro-batch's segments. For models that do not support it, the
micro-batch is padded.

The language-model head and a value head are applied to the rows of hidden states that predict a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from strop.errors import ModelError
from strop.models.family_traits import check_rope_limit, rope_token_limit
from strop.models.library_settings import one_line
from strop.models.packed_attention.attention import PackedLayout, attention
from strop.models.packed_attention.model_ranks import SequenceGroup, TensorGroup
from strop.models.packed_attention.segments import AttentionOptions, PackedSegments
from strop.models.vision.embedding import decoder_mask, embed_images, sees_whole_images, use_host_plans
from strop.transfers import Positions, to_device
from strop.types import BoolArray, MicroBatch

_PACKED_ATTENTION = "strop_packed"
"""The name of the attention in a model's configuration."""
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Maximum difference of hidden states between packed and separate sequences, relative to their norm."""


def packed_forward(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """[T, H] The decoder's last hidden states, before the language-model head; raises as `packed_outputs`.

    With sequence parallelism, [t, H] those of this rank's tokens.
    """
    return packed_outputs(model, micro_batch)[0]


def packed_outputs(
    model: nn.Module, micro_batch: MicroBatch, *, router_logits: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """[T, H] the decoder's last hidden states, and if requested [T, E] the logits of each layer's router.

    With sequence parallelism the hidden states are [t, H], those of this rank's tokens.

    Raises `ModelError` for shared prompts if `can_share_prompts` is False, and for a sequence that is too long for
    the rotary embeddings.
    """
    base = base_model(model)
    if rope_token_limit(base.config) is not None:
        check_rope_limit(base.config, micro_batch.longest_sequence())
    if _text_attention(base) == _PACKED_ATTENTION:
        group, tokens = SequenceGroup.of_model(base), len(micro_batch.token_ids)
        bounds, prefix_of = tuple(micro_batch.cu_seqlens.tolist()), micro_batch.prefix_of
        images = micro_batch.images
        inputs = _decoder_inputs(
            base, micro_batch, micro_batch.token_ids[None], None if images is None else images.is_image[None]
        )
        positions = micro_batch.position_ids[..., None, :]
        if group is not None:
            inputs, positions = _share_inputs(inputs, micro_batch, group), group.share(positions)
            if padding := group.padding(tokens):
                bounds, prefix_of = (*bounds, tokens + padding), (*prefix_of, -1)
        hidden, logits = _decoder_outputs(
            base,
            inputs,
            positions,
            router_logits=router_logits,
            strop_layout=PackedLayout(
                PackedSegments(bounds, prefix_of, _whole_images(base, micro_batch, bounds[-1])),
                micro_batch.token_ids.device,
            ),
            strop_sequence_group=group,
        )
        if group is not None:
            logits = tuple(group.gather(each, tokens) for each in logits)
        return hidden[0], logits
    return _padded_outputs(base, micro_batch, router_logits=router_logits)


def can_share_prompts(model: nn.Module) -> tuple[bool, str]:
    """Whether a micro-batch may contain a group's prompt once, and if not, the reason."""
    base = base_model(model)
    if _text_attention(base) == _PACKED_ATTENTION:
        return True, ""
    return False, _unsupported_reason(base) or "its attention was not switched to Strop's when it was loaded"


def enable_packed_attention(model: PreTrainedModel) -> None:
    """Switch the model to Strop's attention if that gives the same hidden states as its own, and a model of images to
    plans of the host."""
    use_host_plans(model)
    # Without a function for masks: transformers would wait for the device to look at the positions.
    AttentionInterface.register(_PACKED_ATTENTION, _packed_attention)
    if _unsupported_reason(model) is None:
        _set_text_attention(model, _PACKED_ATTENTION)


def split_sequences(model: nn.Module, group: SequenceGroup) -> None:
    """Divide the tokens of the model's micro-batches over the ranks of a group.

    Raises ModelError for a model without Strop's attention, or with a number of heads that the ranks do not divide.
    """
    base = base_model(model)
    supported, obstacle = can_share_prompts(base)
    if not supported:
        raise ModelError(
            f"trainer.engine.sequence_parallel is {group.size}, but the tokens of {type(base).__name__} cannot be "
            f"divided over ranks: {obstacle}. Write sequence_parallel: 1."
        )
    heads = base.config.get_text_config().num_attention_heads
    tensor = TensorGroup.of_model(base)
    if tensor is not None:
        heads //= tensor.size
    if heads % group.size:
        raise ModelError(
            f"trainer.engine.sequence_parallel is {group.size}, which does not divide the {heads} attention heads of "
            f"{type(base).__name__}{' on a rank' if tensor else ''}. Write a divisor of {heads}."
        )
    group.set_on(base)


def base_model(model: nn.Module) -> PreTrainedModel:
    """The Hugging Face model, without a PEFT wrapper."""
    return cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)


def decoder_of(base: PreTrainedModel) -> nn.Module:
    """The model without its language-model head."""
    decoder: nn.Module = base.get_decoder()  # type: ignore[no-untyped-call]
    headless = base.get_output_embeddings() is None  # type: ignore[no-untyped-call]
    return (
        decoder if decoder is not base or headless else base.model
    )  # Llama 4's text model finds only itself


def _text_attention(base: PreTrainedModel) -> str:
    return cast(str, base.config.get_text_config()._attn_implementation)


def _set_text_attention(base: PreTrainedModel, name: str) -> None:
    """Set the decoder's attention; a vision tower keeps its own."""
    is_part = base.config.get_text_config() is not base.config
    base.set_attn_implementation({"text_config": name} if is_part else name)


def _decoder_inputs(
    base: PreTrainedModel, micro_batch: MicroBatch, token_ids: Tensor, is_image: BoolArray | None
) -> dict[str, Any]:
    """Tokens of a micro-batch, arranged as rows [B, L], as arguments of the decoder."""
    if micro_batch.images is None or is_image is None:
        return {"input_ids": token_ids}
    return embed_images(base, token_ids, is_image, micro_batch.images.load())


def _whole_images(base: PreTrainedModel, micro_batch: MicroBatch, tokens: int) -> BoolArray | None:
    """[tokens] Pad tokens of images, if each attends to all tokens of its image."""
    if micro_batch.images is None or not sees_whole_images(base.config):
        return None
    is_image = micro_batch.images.is_image
    return np.pad(is_image, (0, tokens - len(is_image)))


def _share_inputs(inputs: Mapping[str, Any], micro_batch: MicroBatch, group: SequenceGroup) -> dict[str, Any]:
    """The part of a rank of `_decoder_inputs` [1, T, ...]."""
    shared: dict[str, Any] = {
        name: group.share(inputs[name], dim=1) for name in ("input_ids", "inputs_embeds") if name in inputs
    }
    if "deepstack_visual_embeds" in inputs:
        assert micro_batch.images is not None
        start, end = group.bounds(len(micro_batch.token_ids))
        first, last = (int(micro_batch.images.is_image[:token].sum()) for token in (start, end))
        shared["visual_pos_masks"] = inputs["visual_pos_masks"][first:last] - start
        shared["deepstack_visual_embeds"] = [each[first:last] for each in inputs["deepstack_visual_embeds"]]
    return shared


def _decoder_outputs(
    base: PreTrainedModel,
    inputs: Mapping[str, Any],
    position_ids: Tensor,
    *,
    router_logits: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """[B, L, H] hidden states and, if requested, [B * L, E] router logits of each layer."""
    if router_logits:
        kwargs["output_router_logits"] = True
    # With a mask or a cache, transformers would treat the packed sequences as one.
    output = decoder_of(base)(position_ids=position_ids, use_cache=False, **inputs, **kwargs)
    return output.last_hidden_state, tuple(output.router_logits) if router_logits else ()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    strop_layout: PackedLayout | None = None,
    strop_sequence_group: SequenceGroup | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function for transformers: query [1, H, T, D] and key [1, K, T, D] to [1, T, H, D].

    It is not compiled with a layer. With sequence parallelism T is the number of this rank's tokens, and the layout is
    that of all of them.
    """
    if strop_layout is None or attention_mask is not None:
        raise ModelError(
            "The model uses Strop's attention, which supports only packed micro-batches, but it was called "
            "without one. Call strop.models.packed_attention.forward.packed_forward, or load the model again "
            "for another use."
        )
    unknown = [name for name in ("s_aux", "position_bias") if options.get(name) is not None]
    if unknown or options.get("dropout"):
        raise ModelError(
            f"Strop's attention does not support the option {unknown or 'dropout'} of {type(module).__name__}."
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    attention_options = AttentionOptions(scale, sliding_window, softcap)
    if strop_sequence_group is None:
        return attention(q, k, v, strop_layout, attention_options)[None], None
    q, k, v = (strop_sequence_group.to_heads(x) for x in (q, k, v))
    out = attention(q, k, v, strop_layout, attention_options)
    return strop_sequence_group.to_tokens(out)[None], None


def _padded_outputs(
    base: PreTrainedModel, micro_batch: MicroBatch, *, router_logits: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    if any(prefix >= 0 for prefix in micro_batch.prefix_of):
        raise ModelError(
            f"{type(base).__name__} cannot share prompts ({can_share_prompts(base)[1]}), but a "
            "micro-batch shares one. Pack it with share_prompts=False."
        )
    lengths, device = np.diff(micro_batch.cu_seqlens), micro_batch.token_ids.device
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    cells = to_device(np.flatnonzero(real), device)

    def pad(tokens: Tensor) -> Tensor:
        padded = tokens.new_zeros(*tokens.shape[:-1], real.size)
        return padded.index_copy(-1, cells, tokens).view(*tokens.shape[:-1], *real.shape)

    positions = to_device(np.tile(columns, (len(real), 1)), device)
    if micro_batch.position_ids.dim() > 1:
        positions = pad(micro_batch.position_ids)
    is_image = None
    if micro_batch.images is not None:
        is_image = np.zeros(real.shape, dtype=np.bool_)
        is_image[real] = micro_batch.images.is_image
    inputs = _decoder_inputs(base, micro_batch, pad(micro_batch.token_ids), is_image)
    mask = to_device(real.astype(np.int64), device)
    if is_image is not None:
        mask = decoder_mask(base, inputs, mask, is_image, position_ids=positions, past_key_values=None)
    hidden, logits = _decoder_outputs(
        base, inputs, positions, router_logits=router_logits, attention_mask=mask
    )
    return hidden.flatten(0, 1).index_select(0, cells), tuple(each.index_select(0, cells) for each in logits)


def _unsupported_reason(base: PreTrainedModel) -> str | None:
    """Reason why the model does not support packed micro-batches with shared prompts; None if it does."""
    config = base.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    dropouts = [name for name in ("attention_dropout", "attn_pdrop") if getattr(config, name, 0.0)]
    if dropouts:
        return f"its attention has dropout ({dropouts[0]} in its config.json is not 0)"
    if not base._supports_attention_backend:
        return "its attention does not go through transformers' attention interface"
    return _probe(base)


@torch.no_grad()
def _probe(base: PreTrainedModel) -> str | None:
    """Compare a prompt of 4 tokens with two completions, packed, with separate sequences."""
    tokens = torch.arange(9, device=base.device) % base.config.get_text_config().vocab_size
    prompt, completions = tokens[:4], (tokens[4:6], tokens[6:9])
    layout = PackedLayout(PackedSegments((0, 3, 6, 10), (-1, 0, 0)), base.device)
    packed = torch.cat([prompt[:3], prompt[3:], completions[0], prompt[3:], completions[1]])
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 3, 4, 5, 6], device=base.device)
    training, own = base.training, _text_attention(base)
    base.train(False)
    try:
        _set_text_attention(base, "eager")
        separate = [
            _decoder_outputs(base, {"input_ids": s[None]}, torch.arange(len(s), device=s.device)[None])[0][0]
            for s in (torch.cat([prompt, completion]) for completion in completions)
        ]
        _set_text_attention(base, _PACKED_ATTENTION)
        packed_states = _decoder_outputs(
            base, {"input_ids": packed[None]}, positions[None], strop_layout=layout
        )[0][0]
    except ModelError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  (the model is foreign code, and runs with padding)
        return f"it cannot be run with packed sequences ({one_line(error)})"
    finally:
        _set_text_attention(base, own)
        base.train(training)
    expected = torch.cat([separate[0], separate[1][3:]])
    distance = float((packed_states - expected).float().norm() / expected.float().norm())
    if distance > _PROBE_TOLERANCE[expected.dtype]:
        return f"packed sequences change its hidden states (relative difference {distance:.2g})"
    return None


@dataclass(frozen=True, slots=True)
class TargetRows:
    """N targets: all of a micro-batch, or those of this rank with sequence or tensor parallelism."""

    targets: Tensor
    """[N] int64 Positions of the targets in the micro-batch."""
    rows: Positions
    """[N] Rows of this rank's hidden states that predict them."""
    tokens: int
    """Number of tokens of the micro-batch."""
    groups: tuple[SequenceGroup | TensorGroup, ...]
    """Ranks that have the other targets; empty where this rank has all."""

    @classmethod
    def of(
        cls, micro_batch: MicroBatch, sequence: SequenceGroup | None, tensor: TensorGroup | None = None
    ) -> TargetRows:
        """The targets of this rank of the groups."""
        tokens, first, targets = len(micro_batch.token_ids), 0, micro_batch.targets
        if sequence is not None:
            first, end = sequence.bounds(tokens)
            targets = targets[(targets > first) & (targets <= end)]
        if tensor is not None:
            targets = tensor.share(targets)
        groups = tuple(group for group in (sequence, tensor) if group is not None)
        on_device = to_device(targets, micro_batch.token_ids.device)
        rows = Positions(targets - 1 - first, on_device - 1 - first)
        return cls(on_device, rows, tokens, groups)

    def spread(self, values: Tensor) -> Tensor:
        """[T, ...] Values [N, ...] of all ranks' targets at their positions, and 0 at other tokens."""
        spread = values.new_zeros(self.tokens, *values.shape[1:]).index_copy(0, self.targets, values)
        for group in self.groups:
            spread = group.sum(spread)
        return spread


def target_rows(model: nn.Module, micro_batch: MicroBatch) -> TargetRows:
    """The targets whose hidden states `packed_forward` of a model returns on this rank."""
    return TargetRows.of(micro_batch, SequenceGroup.of_model(base_model(model)))


def head_rows(model: nn.Module, micro_batch: MicroBatch) -> TargetRows:
    """The targets whose log-probs this rank computes."""
    base = base_model(model)
    return TargetRows.of(micro_batch, SequenceGroup.of_model(base), TensorGroup.of_model(base))
