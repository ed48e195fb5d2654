"""Experiences -> micro-batches: packed end to end, without padding, a shared prompt once.

Experiences of one group that begin with the same prompt form a *bundle*. In a micro-batch a bundle
of two or more costs its prompt once: the prompt's first P-1 tokens are a prefix segment, and each
experience is a response segment that opens with the prompt's last token (see `MicroBatch`).

Bundles go into micro-batches by first-fit decreasing: the largest first, each into the first
micro-batch with room. A bundle that is too large for any is cut, and each piece has the prompt
again; a single experience that is too large goes alone. A chosen and its rejected answer count as a
single one: they always stand side by side in one micro-batch. Same input, same packing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strop.config.units import Amount
from strop.types import Experience, Floats, MicroBatch


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Experiences, by their place in the batch, that share their first `prefix` tokens."""

    members: tuple[int, ...]
    prefix: int
    """0 where nothing is shared."""
    size: int
    """What it takes of a micro-batch, in the unit of the limit."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens `start` to the end (or, of a prefix, to `stop`) of the experience `source`."""

    source: int
    start: int
    stop: int | None
    prefix_of: int

    @property
    def experience(self) -> int:
        return self.source if self.stop is None else -1


_Unit = tuple[int, ...]
"""What is never cut, by place in the batch: one experience, or a pair's two."""


def pack(
    experiences: Sequence[Experience],
    advantages: Sequence[float | Floats],
    limit: Amount,
    *,
    share_prompts: bool,
    device: torch.device | str,
    old_logprobs: Sequence[Floats] | None = None,
    ref_logprobs: Sequence[Floats] | None = None,
    values: Sequence[Floats] | None = None,
    returns: Sequence[Floats] | None = None,
) -> list[MicroBatch]:
    """Micro-batches of at most `limit` tokens, or `limit` sequences (experiences), each.

    `advantages` and all that comes after `device` go by experience: [L] each, and an advantage may
    be one number for all its tokens. What they say where `loss_mask` is False is dropped. Without
    `share_prompts` every experience is one segment, prompt and all.
    """
    per_token: dict[str, Sequence[float | Floats]] = {
        "sampler_logprobs": [e.sampler_logprobs for e in experiences],
        "policy_logprobs": [e.policy_logprobs for e in experiences],
        "advantages": advantages,
        "temperature": [e.temperature for e in experiences],
    }
    optional = {
        "old_logprobs": old_logprobs,
        "ref_logprobs": ref_logprobs,
        "values": values,
        "returns": returns,
    }
    per_token |= {name: each for name, each in optional.items() if each is not None}
    bundles = [
        piece
        for units, prefix in _shared_prompts(experiences, share_prompts)
        for piece in _cut(experiences, units, prefix, limit)
    ]
    return [
        _micro_batch(experiences, per_token, list(_segments(contents)), device)
        for contents in _first_fit_decreasing(bundles, limit)
    ]


def unpack(
    micro_batches: Sequence[MicroBatch], values: Sequence[torch.Tensor], experiences: Sequence[Experience]
) -> list[Floats]:
    """Take [T] values of each micro-batch apart again: [L] of each experience, 0 in shared prefixes."""
    result = [np.zeros(len(e.token_ids), dtype=np.float32) for e in experiences]
    for micro_batch, tensor in zip(micro_batches, values, strict=True):
        array = tensor.detach().to("cpu", torch.float32).numpy()
        bounds = micro_batch.cu_seqlens.tolist()
        for segment, experience in enumerate(micro_batch.experience):
            if experience >= 0:
                own = array[bounds[segment] : bounds[segment + 1]]
                result[experience][len(result[experience]) - len(own) :] = own
    return result


def _units(experiences: Sequence[Experience]) -> list[_Unit]:
    """In the order of their first; of a pair, the chosen answer stands first."""
    members: dict[int | str, list[int]] = defaultdict(list)
    for i, experience in enumerate(experiences):
        members[i if experience.pair is None else experience.pair].append(i)
    return [tuple(sorted(unit, key=lambda i: experiences[i].role)) for unit in members.values()]


def _shared_prompts(
    experiences: Sequence[Experience], share_prompts: bool
) -> Iterator[tuple[list[_Unit], int]]:
    """Which experiences share how many tokens, in the order of each bundle's first."""
    if not share_prompts:
        yield from (([unit], 0) for unit in _units(experiences))
        return
    bundles: dict[tuple[str, bytes], list[_Unit]] = defaultdict(list)
    for unit in _units(experiences):
        first = experiences[unit[0]]
        prompt = first.token_ids[: first.prompt_tokens]
        bundles[first.group, prompt.tobytes()].append(unit)
    for units in bundles.values():
        # Longest first: attention computes neighbours of like length together.
        units.sort(key=lambda unit: -max(len(experiences[i].token_ids) for i in unit))
        yield units, experiences[units[0][0]].prompt_tokens - 1


def _cut(
    experiences: Sequence[Experience], units: Sequence[_Unit], prefix: int, limit: Amount
) -> Iterator[_Bundle]:
    """One bundle if it fits into a micro-batch, else as few pieces as its order allows."""

    def bundle(piece: list[int], size: int) -> _Bundle:
        return _Bundle(tuple(piece), prefix if len(piece) > 1 else 0, size)

    shared = prefix if limit.unit == "tokens" else 0
    piece: list[int] = []
    size = shared
    for unit in units:
        own = len(unit)
        if limit.unit == "tokens":
            own = sum(len(experiences[member].token_ids) - prefix for member in unit)
        if piece and size + own > limit.count:
            yield bundle(piece, size)
            piece, size = [], shared
        piece += unit
        size += own
    yield bundle(piece, size)


def _first_fit_decreasing(bundles: Iterable[_Bundle], limit: Amount) -> list[list[_Bundle]]:
    """Each bundle, largest first, into the first micro-batch with room; a new one where none has."""
    contents: list[list[_Bundle]] = []
    room: list[float] = []
    for bundle in sorted(bundles, key=lambda b: -b.size):
        place = next((i for i, left in enumerate(room) if bundle.size <= left), None)
        if place is None:
            place = len(contents)
            contents.append([])
            room.append(limit.count)
        contents[place].append(bundle)
        room[place] -= bundle.size
    return contents


def _segments(bundles: Iterable[_Bundle]) -> Iterator[_Segment]:
    count = 0
    for bundle in bundles:
        prefix_of = -1
        if bundle.prefix:
            yield _Segment(bundle.members[0], 0, bundle.prefix, -1)
            prefix_of = count
            count += 1
        for member in bundle.members:
            yield _Segment(member, bundle.prefix, None, prefix_of)
            count += 1


def _micro_batch(
    experiences: Sequence[Experience],
    values: dict[str, Sequence[float | Floats]],
    segments: Sequence[_Segment],
    device: torch.device | str,
) -> MicroBatch:
    def gather(arrays: Iterable[np.ndarray], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(arrays), dtype=dtype)).to(device)

    def cut(array: float | np.ndarray, s: _Segment) -> np.ndarray:
        whole = np.broadcast_to(array, len(experiences[s.source].token_ids))
        return whole[s.start : s.stop]

    tokens = [cut(experiences[s.source].token_ids, s) for s in segments]
    loss_mask = gather((cut(experiences[s.source].loss_mask, s) for s in segments), np.bool_)
    per_token = {
        name: gather((cut(of[s.source], s) for s in segments), np.float32) for name, of in values.items()
    }
    temperature = per_token.pop("temperature")
    masked = {name: value.masked_fill(~loss_mask, 0.0) for name, value in per_token.items()}
    return MicroBatch(
        token_ids=gather(tokens, np.int64),
        position_ids=gather(
            (np.arange(s.start, s.start + len(t)) for s, t in zip(segments, tokens, strict=True)), np.int64
        ),
        cu_seqlens=gather([np.cumsum([0, *map(len, tokens)])], np.int32),
        prefix_of=tuple(s.prefix_of for s in segments),
        experience=tuple(s.experience for s in segments),
        role=tuple(experiences[s.source].role if s.experience >= 0 else None for s in segments),
        weight=gather([np.array([s.experience >= 0 for s in segments])], np.float32),
        loss_mask=loss_mask,
        temperature=temperature,
        **masked,
    )
