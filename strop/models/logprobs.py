"""Log-probs, entropies and divergences of a micro-batch's targets, by a model."""

from __future__ import annotations

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.errors import ModelError
from strop.models.attention import base_model, packed_forward
from strop.models.head import LogitTransform, ReferenceStates, head_outputs
from strop.types import MicroBatch, TokenOutputs

LOGITS_TOLERANCE = 0.02
"""How far, relative to their norm, our logits may be from the model's own: bfloat16 rounds."""


@torch.no_grad()
def reference_states(model: nn.Module, micro_batch: MicroBatch) -> ReferenceStates:
    """Of a model that is the reference now: a frozen one, or one whose adapters are off.

    Adapters may be on again when the head is used: it is taken without its own.
    """
    head = _head(base_model(model))
    if isinstance(head, BaseTunerLayer):
        head = head.get_base_layer()
    return ReferenceStates(packed_forward(model, micro_batch), head)


def token_outputs(
    model: nn.Module, micro_batch: MicroBatch, *, entropy: bool, reference: ReferenceStates | None = None
) -> TokenOutputs:
    """Log-prob, and entropy if asked, of each target, and with a reference the divergence from it; the
    gradient flows through all.

    A target's logits are divided by its `temperature`: these are the log-probs of what was sampled.
    """
    hidden = packed_forward(model, micro_batch)
    base = base_model(model)
    targets = micro_batch.loss_mask.nonzero()[:, 0]
    logprobs, entropies, divergences = head_outputs(
        _head(base),
        hidden,
        targets - 1,
        micro_batch.token_ids[targets],
        micro_batch.temperature[targets],
        logit_transform(base),
        entropy=entropy,
        reference=reference,
    )

    def in_place(values: Tensor) -> Tensor:
        return values.new_zeros(len(hidden)).index_copy(0, targets, values)

    return TokenOutputs(
        in_place(logprobs),
        None if entropies is None else in_place(entropies),
        None if divergences is None else in_place(divergences),
    )


def logit_transform(base: PreTrainedModel) -> LogitTransform:
    """What this model's configuration says it does to its logits (Gemma 2, Cohere, Granite)."""
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def check_logits(model: nn.Module) -> None:
    """Raise ModelError unless head and transform, as used here, give the model's own logits."""
    base = base_model(model)
    decoder: nn.Module = base.get_decoder()  # type: ignore[no-untyped-call]
    seen: list[Tensor] = []
    hook = decoder.register_forward_hook(lambda _m, _a, output: seen.append(output.last_hidden_state))
    try:
        expected = base(input_ids=torch.arange(4, device=base.device)[None], use_cache=False).logits.float()
    finally:
        hook.remove()
    ours = logit_transform(base).apply(_head(base)(seen[0]).float())
    distance = float((ours - expected).norm() / expected.norm())
    if distance > LOGITS_TOLERANCE:
        raise ModelError(
            f"Strop cannot compute the log-probs of {type(base).__name__}: its logits are not its head's "
            f"output (they differ by {distance:.2g} of their norm)."
        )


def _head(base: PreTrainedModel) -> nn.Module:
    head: nn.Module | None = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(f"{type(base).__name__} has no language-model head, and so no log-probs.")
    return head
