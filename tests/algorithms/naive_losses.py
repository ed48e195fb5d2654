"""Policy losses of one response in plain Python, token by token, from the definitions in the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClipCovLossConfig,
    ClippedLossConfig,
    DppoKlLossConfig,
    DppoTvLossConfig,
    DroLossConfig,
    GmpoLossConfig,
    GpgLossConfig,
    GspoLossConfig,
    ImportanceSamplingLossConfig,
    KlCovLossConfig,
    OpmdLossConfig,
    PolicyLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)


def naive_losses(
    loss: PolicyLossConfig,
    logprobs: Sequence[float],
    old: Sequence[float],
    advantages: Sequence[float],
    selected: Sequence[bool],
) -> list[float]:
    """The loss of each token of one response; `selected` tokens are those that the loss treats differently."""
    if not logprobs:
        return []
    moved = [new - before for new, before in zip(logprobs, old, strict=True)]
    if isinstance(loss, GspoLossConfig):
        whole = math.exp(sum(moved) / len(moved))
        return [-_clipped(whole, a, 1 - loss.clip_low, 1 + loss.clip_high) for a in advantages]
    if isinstance(loss, GmpoLossConfig):
        bounded = [
            min(each, loss.clip_high) if a > 0 else max(each, -loss.clip_low)
            for each, a in zip(moved, advantages, strict=True)
        ]
        whole = math.prod(map(math.exp, bounded)) ** (1 / len(bounded))
        return [-a * whole for a in advantages]
    found = [_of_token(loss, *each) for each in zip(logprobs, old, advantages, strict=True)]
    if isinstance(loss, ClipCovLossConfig):
        return [0.0 if chosen else each for each, chosen in zip(found, selected, strict=True)]
    if isinstance(loss, KlCovLossConfig):
        return [
            each + loss.kl_coef * abs(change) * chosen
            for each, change, chosen in zip(found, moved, selected, strict=True)
        ]
    return found


def _clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, min(max(ratio, low), high) * advantage)


def _of_token(loss: PolicyLossConfig, logprob: float, old: float, a: float) -> float:
    ratio, p, q = math.exp(logprob - old), math.exp(logprob), math.exp(old)
    match loss:
        case ClippedLossConfig():
            surrogate = _clipped(ratio, a, 1 - loss.clip_low, 1 + loss.clip_high)
            return -(max(surrogate, loss.dual_clip * a) if loss.dual_clip and a < 0 else surrogate)
        case ClipCovLossConfig():
            return -_clipped(ratio, a, 1 - loss.clip_low, 1 + loss.clip_high)
        case CispoLossConfig():
            low, high = 0 if loss.clip_low is None else 1 - loss.clip_low, 1 + loss.clip_high
            if loss.mask_clipped and (ratio > high if a > 0 else ratio < low):
                return 0.0
            return -min(max(ratio, low), high) * a * logprob
        case GpgLossConfig():
            return -a * logprob
        case OpmdLossConfig():
            return -a * logprob / (1 + loss.tau)
        case ImportanceSamplingLossConfig() | KlCovLossConfig():
            return -a * p / q
        case SapoLossConfig():
            tau = loss.tau_pos if a > 0 else loss.tau_neg
            gate = 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
            return -a * gate * (logprob if loss.gate == "weight" else 1)
        case DppoTvLossConfig():
            away = (a > 0 and p - q > loss.divergence_high) or (a < 0 and q - p > loss.divergence_low)
            return 0.0 if away else -a * min(ratio, loss.ratio_cap) * logprob
        case DppoKlLossConfig():
            kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
            away = (a > 0 and p > q and kl > loss.divergence_high) or (
                a < 0 and p < q and kl > loss.divergence_low
            )
            return 0.0 if away else -a * min(ratio, loss.ratio_cap) * logprob
        case ToprLossConfig():
            return -a * logprob * (min(ratio, 1) if a <= loss.threshold else 1)
        case SppoLossConfig():
            return -a * (logprob - old) if 1 / (1 + loss.clip) <= ratio <= 1 + loss.clip else 0.0
        case RecLossConfig():
            return _rec(loss, logprob, old, a)
        case DroLossConfig():
            return -a * logprob + loss.beta / 2 * (logprob - old) ** 2
    raise TypeError(type(loss))


def _rec(loss: RecLossConfig, logprob: float, old: float, a: float) -> float:
    ratio = math.exp(logprob - old)
    within = 1 - loss.clip_low <= ratio <= 1 + loss.clip_high
    kept = {
        "none": True,
        "two_sides": within,
        "one_side": ratio <= 1 + loss.clip_high if a > 0 else ratio >= 1 - loss.clip_low,
        "ring": within or (ratio <= 1 - loss.ring_low if a > 0 else ratio >= 1 + loss.ring_high),
    }[loss.clipping]
    weight = {"none": 1.0, "ratio": ratio, "advantage": math.exp(a / loss.temperature)}[loss.weight]
    regularizer = {"none": 0.0, "k2": (logprob - old) ** 2, "forward_kl": -logprob}[loss.regularizer]
    return -a * weight * logprob * kept + loss.regularizer_coef * regularizer
