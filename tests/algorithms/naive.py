"""Policy losses and the policy objective in plain Python, token by token, from the definitions in the papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strop.config.schema.algorithm import GrpoConfig
from strop.types import GlobalCounts, MicroBatch, TokenOutputs


def naive_losses(
    loss: Any,
    logprobs: Sequence[float],
    old: Sequence[float],
    advantages: Sequence[float],
    selected: Sequence[bool],
) -> list[float]:
    """The loss of each token of one response; `selected` tokens are those that the loss treats differently."""
    if not logprobs:
        return []
    count = len(logprobs)
    moved = [new - before for new, before in zip(logprobs, old, strict=True)]
    match loss.type:
        case "gspo":
            whole = math.exp(sum(moved) / count)
            return [-_clipped(whole, a, 1 - loss.clip_low, 1 + loss.clip_high) for a in advantages]
        case "gmpo":
            bounded = [
                min(each, loss.clip_high) if a > 0 else max(each, -loss.clip_low)
                for each, a in zip(moved, advantages, strict=True)
            ]
            whole = math.prod(map(math.exp, bounded)) ** (1 / count)
            return [-a * whole for a in advantages]
        case "gvpo":
            return [(loss.beta * sum(moved) - sum(advantages) / count) ** 2 / 2 / count] * count
        case "self_play":
            return [(sum(moved) - loss.eta * sum(advantages) / count) ** 2 / count] * count
    found = [_of_token(loss, *each) for each in zip(logprobs, old, advantages, strict=True)]
    if loss.type in ("clip_cov", "m2po"):
        return [0.0 if chosen else each for each, chosen in zip(found, selected, strict=True)]
    if loss.type == "kl_cov":
        penalties = [loss.kl_coef * abs(change) for change in moved]
        return [each + kl * chosen for each, kl, chosen in zip(found, penalties, selected, strict=True)]
    return found


def _clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, min(max(ratio, low), high) * advantage)


def _of_token(loss: Any, logprob: float, old: float, a: float) -> float:
    ratio, p, q = math.exp(logprob - old), math.exp(logprob), math.exp(old)
    match loss.type:
        case "clip":
            surrogate = _clipped(ratio, a, 1 - loss.clip_low, 1 + loss.clip_high)
            return -(max(surrogate, loss.dual_clip * a) if loss.dual_clip and a < 0 else surrogate)
        case "clip_cov":
            return -_clipped(ratio, a, 1 - loss.clip_low, 1 + loss.clip_high)
        case "cispo":
            low, high = 0 if loss.clip_low is None else 1 - loss.clip_low, 1 + loss.clip_high
            if loss.mask_clipped and (ratio > high if a > 0 else ratio < low):
                return 0.0
            return -min(max(ratio, low), high) * a * logprob
        case "gpg":
            return -a * logprob
        case "opmd":
            return -a * logprob / (1 + loss.tau)
        case "importance_sampling" | "kl_cov" | "m2po":
            return -a * p / q
        case "sapo":
            tau = loss.tau_pos if a > 0 else loss.tau_neg
            gate = 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
            return -a * gate * (logprob if loss.gate == "weight" else 1)
        case "dppo_tv":
            away = (a > 0 and p - q > loss.divergence_high) or (a < 0 and q - p > loss.divergence_low)
            return 0.0 if away else -a * min(ratio, loss.ratio_cap) * logprob
        case "dppo_kl":
            kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
            up, down = a > 0 and p > q, a < 0 and p < q
            away = (up and kl > loss.divergence_high) or (down and kl > loss.divergence_low)
            return 0.0 if away else -a * min(ratio, loss.ratio_cap) * logprob
        case "topr":
            return -a * logprob * (min(ratio, 1) if a <= loss.threshold else 1)
        case "sppo":
            return -a * (logprob - old) if 1 / (1 + loss.clip) <= ratio <= 1 + loss.clip else 0.0
        case "rec":
            return _rec(loss, logprob, old, a)
        case "dro":
            return -a * logprob + loss.beta / 2 * (logprob - old) ** 2
    raise TypeError(loss)


def _rec(loss: Any, logprob: float, old: float, a: float) -> float:
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


def _corrected_losses(
    config: GrpoConfig, logprobs: list[float], batch: MicroBatch, targets: list[int]
) -> list[float]:
    """One response's policy losses, corrected for the sampler where that is asked."""
    old = logprobs if batch.old_logprobs is None else batch.old_logprobs.tolist()
    sampler, advantages = batch.sampler_logprobs.tolist(), batch.advantages.tolist()
    whole = math.exp(sum(old[t] - sampler[t] for t in targets))
    assert batch.selected is not None
    new, before, weights = ([values[t] for t in targets] for values in (logprobs, old, advantages))
    losses = naive_losses(config.policy_loss, new, before, weights, batch.selected[targets].tolist())
    if config.importance_correction is None:
        return losses
    level, cap = config.importance_correction.level, config.importance_correction.cap
    floor = config.importance_correction.floor
    found = []
    for t, loss in zip(targets, losses, strict=True):
        token = math.exp(old[t] - sampler[t])
        weight = {"token": token, "sequence": whole, "geometric": whole ** (1 / len(targets))}[level]
        found.append(loss * (min(weight, cap) if floor is None else weight * (floor <= weight <= cap)))
    return found


def naive_objective(
    config: GrpoConfig, batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts, limit: int
) -> dict[str, float]:
    """The loss and its metrics; `limit` is `data.max_response_tokens`."""
    assert batch.ref_logprobs is not None and config.kl_loss is not None
    assert outputs.entropy is not None and outputs.divergence is not None
    logprobs, entropy, full = (x.tolist() for x in (outputs.logprobs, outputs.entropy, outputs.divergence))
    names = ("policy_loss", "kl_loss", "entropy_bonus", "kl/ref", "approx_kl", "ratio/mean")
    sums = dict.fromkeys(names, 0.0)
    for s in range(batch.num_segments):
        start, end = int(batch.cu_seqlens[s]), int(batch.cu_seqlens[s + 1])
        targets = [t for t in range(start, end) if batch.loss_mask[t]]
        losses = _corrected_losses(config, logprobs, batch, targets)
        for t, loss in zip(targets, losses, strict=True):
            divisor = {
                "token-mean": counts.tokens,
                "seq-mean-token-sum": counts.sequences,
                "seq-mean-token-mean": counts.sequences * len(targets),
                "seq-mean-token-sum-norm": counts.sequences * limit,
            }[config.aggregation]
            weight = float(batch.weight[s]) / divisor
            difference = float(batch.ref_logprobs[t]) - logprobs[t]
            k3 = math.exp(difference) - 1 - difference
            kl = {"k1": -difference, "abs": abs(difference), "k2": difference**2 / 2, "k3": k3}
            kl |= {f"{name}+": kl[name] for name in ("k1", "abs", "k3")}
            kl["full"] = full[t]
            old = batch.old_logprobs
            moved = 0.0 if old is None else logprobs[t] - float(old[t])
            if config.kl_loss.weight_by_ratio:
                of = targets if config.kl_loss.ratio_level == "sequence" else [t]
                moves = [0.0 if old is None else logprobs[u] - float(old[u]) for u in of]
                kl["k3"] *= min(math.exp(sum(moves) / len(of)), config.kl_loss.max_ratio or math.inf)
            sums["policy_loss"] += loss * weight
            sums["kl_loss"] += config.kl_loss.coef * kl[config.kl_loss.estimator] * weight
            sums["entropy_bonus"] += config.entropy_coef * entropy[t] * weight
            sums["kl/ref"] += full[t] / counts.tokens
            sums["approx_kl"] += (math.exp(moved) - 1 - moved) / counts.tokens
            sums["ratio/mean"] += math.exp(moved) / counts.tokens
    sums["loss"] = sums["policy_loss"] + sums["kl_loss"] - sums["entropy_bonus"]
    return sums
