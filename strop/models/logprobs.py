"""Log-probs, entropies and divergences of a micro-batch's targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.schema.distillation import ReverseKlConfig
from strop.errors import ModelError
from strop.models.chunked_head import (
    CHUNK_ROWS,
    Comparison,
    FrozenDistribution,
    FrozenStates,
    LogitTransform,
    entropy_effects,
    gathered_head,
    head_outputs,
    squared_probability_sums,
)
from strop.models.library_settings import one_line
from strop.models.packed_attention.forward import (
    TargetRows,
    base_model,
    decoder_of,
    head_rows,
    packed_forward,
    packed_outputs,
)
from strop.models.packed_attention.model_ranks import SequenceGroup, TensorGroup
from strop.transfers import Positions
from strop.types import MicroBatch, TokenOutputs

UNKNOWN_LOGPROB = -1e4
"""Log-prob of a token that a frozen model does not have: finite, with the probability 0."""
LOGITS_TOLERANCE = 0.02
"""Maximum difference between Strop's logits and the model's, relative to their norm; bfloat16 rounds."""


@torch.no_grad()
def frozen_states(
    model: nn.Module, micro_batch: MicroBatch, *, temperature: float | None = None
) -> FrozenStates:
    """Hidden states and head of a frozen model, or of one with disabled adapters.

    The returned head is the base layer, so that adapters may be enabled again before it is used. `temperature`
    divides its logits; None for the policy's temperature.
    """
    base = base_model(model)
    head = _head(base)
    if isinstance(head, BaseTunerLayer):
        head = head.get_base_layer()
    hidden = packed_forward(model, micro_batch)
    return FrozenStates(hidden, gathered_head(head), logit_transform(base), temperature)


def squared_probabilities(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """[T] Sum over the vocabulary of the squared probabilities, at each target's position and temperature; 0 at
    other tokens."""
    return _vocabulary_sums(model, micro_batch, squared_probability_sums)


def expected_entropy_effects(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    """[T] Sum over the vocabulary of p^2 (H + log p), at each target's position and temperature; 0 at other tokens."""
    return _vocabulary_sums(model, micro_batch, entropy_effects)


@torch.no_grad()
def _vocabulary_sums(
    model: nn.Module,
    micro_batch: MicroBatch,
    sum_over: Callable[[FrozenDistribution, Positions, Tensor], Tensor],
) -> Tensor:
    base, found = base_model(model), head_rows(model, micro_batch)
    head = gathered_head(_head(base))
    states = FrozenStates(packed_forward(model, micro_batch), head, logit_transform(base))
    return found.spread(sum_over(states, found.rows, micro_batch.temperature[found.targets]))


def token_outputs(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    entropy: bool,
    reference: FrozenStates | None = None,
    teacher: Comparison | None = None,
    router_logits: bool = False,
) -> TokenOutputs:
    """Log-prob of each target, entropy and the routers' logits if requested, and divergences from a reference and a
    teacher if given.

    All are differentiable. A target's logits are divided by its `temperature`, as in sampling.
    """
    hidden, routers = packed_outputs(model, micro_batch, router_logits=router_logits)
    base, found = base_model(model), head_rows(model, micro_batch)
    if (group := TensorGroup.of_model(base)) is not None:
        hidden = group.divide_use(hidden)
    comparisons = [] if reference is None else [Comparison(reference, ReverseKlConfig())]
    logprobs, entropies, divergences = head_outputs(
        _head(base),
        hidden,
        found.rows,
        (micro_batch.token_ids if micro_batch.target_tokens is None else micro_batch.target_tokens)[
            found.targets
        ],
        micro_batch.temperature[found.targets],
        logit_transform(base),
        entropy=entropy,
        comparisons=comparisons if teacher is None else [*comparisons, teacher],
    )
    return TokenOutputs(
        found.spread(logprobs),
        None if entropies is None else found.spread(entropies),
        None if reference is None else found.spread(divergences[0]),
        None if teacher is None else found.spread(divergences[-1]),
        routers,
    )


@torch.no_grad()
def sampled_logprobs(
    distribution: FrozenDistribution, micro_batch: MicroBatch, group: SequenceGroup | None = None
) -> Tensor:
    """[T] Log-prob of each target under a frozen model's distribution; 0 where `loss_mask` is False.

    With sequence parallelism the distribution has the positions of this rank of the `group`.

    A token beyond its vocabulary, which only pads the policy's, has the log-prob `UNKNOWN_LOGPROB`.
    """
    found = TargetRows.of(micro_batch, group)
    labels, temperature = micro_batch.token_ids[found.targets], micro_batch.temperature[found.targets]
    logprobs = torch.zeros_like(temperature)
    for start in range(0, len(labels), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        every, tokens = distribution.logprobs(found.rows[chunk], temperature[chunk]), labels[chunk]
        picked = every.gather(-1, tokens[:, None].clamp(max=every.shape[1] - 1))[:, 0]
        logprobs[chunk] = picked.masked_fill(tokens >= every.shape[1], UNKNOWN_LOGPROB)
    return found.spread(logprobs)


def logit_transform(base: PreTrainedModel) -> LogitTransform:
    """The transform of logits in a model's configuration (Gemma 2, Cohere, Granite)."""
    config = base.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    scale /= getattr(config, "logits_scaling", None) or 1.0
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))


@torch.no_grad()
def check_logits(model: nn.Module) -> None:
    """Raise `ModelError` unless the model can be run, and head and transform reproduce its own logits."""
    base = base_model(model)
    seen: list[Tensor] = []
    hook = decoder_of(base).register_forward_hook(
        lambda _m, _a, output: seen.append(output.last_hidden_state)
    )
    try:
        expected = base(input_ids=torch.arange(4, device=base.device)[None], use_cache=False).logits.float()
    except Exception as error:
        raise ModelError(
            f"model.path: {type(base).__name__} cannot be run on token ids alone; its own forward pass raises "
            f"{one_line(error)}. Check its config.json, or write a model that transformers runs so."
        ) from error
    finally:
        hook.remove()
    head = _head(base)
    try:
        recomputed = logit_transform(base).apply(head(seen[0]).float())
        distance = float((recomputed - expected).norm() / expected.norm())
    except (RuntimeError, IndexError) as error:  # of another shape, or of a decoder that did not run
        raise ModelError(
            f"Strop cannot compute the log-probs of {type(base).__name__}: its head does not take its decoder's last "
            f"hidden states ({one_line(error)})."
        ) from error
    if distance > LOGITS_TOLERANCE:
        raise ModelError(
            f"Strop cannot compute the log-probs of {type(base).__name__}: its logits are not its head's "
            f"output (the relative difference is {distance:.2g})."
        )


def _head(base: PreTrainedModel) -> nn.Module:
    head: nn.Module | None = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise ModelError(f"{type(base).__name__} has no language-model head, which log-probs need.")
    return head
