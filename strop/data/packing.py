"""Packing of experiences into micro-batches: end to end, without padding, a shared prompt once.

Experiences of one group with the same prompt form a *bundle*. In a micro-batch, a bundle of two or more
holds its prompt once: the prompt's first P-1 tokens are a prefix segment, and each experience is a response
segment that starts with the prompt's last token (see `MicroBatch`).

Bundles are assigned to micro-batches by first-fit decreasing: the largest first, each into the first
micro-batch with enough capacity. A bundle larger than the limit is cut, and each piece repeats the prompt;
a single experience larger than the limit gets a micro-batch of its own. A chosen and its rejected response
count as one unit and always go into one micro-batch. The plan (`plan_micro_batches`) depends on prompts,
lengths and the limit only; the same input gives the same plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from strop.config.units import Amount
from strop.errors import DataError
from strop.protocols import ImageProcessor
from strop.transfers import to_device
from strop.types import (
    Experience,
    FloatArray,
    ImageReference,
    IntArray,
    MicroBatch,
    PackedImages,
    TrainingBatch,
)

SegmentTokens = tuple[Experience, int, int | None]
"""Tokens of an experience: first, and end, or None for the experience's end."""
_Unit = tuple[int, ...]
"""Numbers of experiences that are never separated: one experience, or the two of a pair."""


class SegmentImages:
    """Images and positions of segments that are packed end to end. Raises `DataError` as `image_spans` does."""

    def __init__(self, segments: Sequence[SegmentTokens], processor: ImageProcessor) -> None:
        self._segments = segments
        self._processor = processor
        self._media = tuple(reference for segment in segments for reference in _images_in(segment, processor))

    def packed(self) -> PackedImages:
        """The images, with a mask of their pad tokens."""
        pieces = [
            image_mask(experience, self._processor)[start:stop] for experience, start, stop in self._segments
        ]
        processor, media = self._processor, self._media
        return PackedImages(media, np.concatenate(pieces), lambda: processor.process(media))

    def position_ids(self, device: torch.device | str) -> torch.Tensor:
        """[T] or [3, T] int64"""
        pieces = [self._positions(experience)[..., start:stop] for experience, start, stop in self._segments]
        return to_device(np.concatenate(pieces, axis=-1, dtype=np.int64), device)

    def _positions(self, experience: Experience) -> IntArray:
        # A pad token that the model sampled has the position of text.
        token_ids = np.where(experience.loss_mask, -1, experience.token_ids)
        return self._processor.positions(token_ids, experience.media)


def image_mask(
    experience: Experience, processor: ImageProcessor
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[L] Whether a token is a pad token of an image; one that the model sampled is not."""
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        experience.token_ids == processor.image_token_id
    ) & ~experience.loss_mask
    return mask


def image_spans(
    experience: Experience, processor: ImageProcessor
) -> Iterator[tuple[ImageReference, int, int]]:
    """Each image with the position of its first pad token and the position after its last.

    Raises `DataError` if the number of pad tokens is not that of the images.
    """
    pads = np.flatnonzero(image_mask(experience, processor))
    counts = [processor.feature_count(each.width, each.height) for each in experience.media]
    if len(pads) != sum(counts):
        raise DataError(
            f"Experience {experience.id} has {len(pads)} image tokens, but its {len(counts)} images have "
            f"{sum(counts)}. Was it made with other values of data.images.min_pixels and max_pixels, or with another "
            "model?"
        )
    used = 0
    for reference, count in zip(experience.media, counts, strict=True):
        yield reference, int(pads[used]), int(pads[used + count - 1]) + 1
        used += count


def _images_in(segment: SegmentTokens, processor: ImageProcessor) -> Iterator[ImageReference]:
    experience, start, stop = segment
    for reference, first, end in image_spans(experience, processor):
        if stop is not None and first < stop < end:
            raise DataError(
                f"The prompt of experience {experience.id} ends with an image, without a token after it. The chat "
                "template must write one, such as that of the assistant's turn."
            )
        if start <= first and (stop is None or end <= stop):
            yield reference


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Tokens of one experience that form a segment: `start` to the end, or to `stop` for a shared prompt."""

    source: int
    """Number of the experience in the batch."""
    start: int
    stop: int | None
    """End of a shared prompt; None for a segment up to the experience's end."""
    prefix_of: int
    """Number of the prefix segment in the micro-batch, or -1."""

    @property
    def experience(self) -> int:
        """Number of the experience, or -1 for a shared prompt."""
        return self.source if self.stop is None else -1


MicroBatchPlan = tuple[SegmentPlan, ...]
"""Segments of one micro-batch, in order."""


@dataclass(frozen=True, slots=True)
class ExperienceBundle:
    """Experiences, by number in the batch, that share their first `prefix` tokens."""

    members: tuple[int, ...]
    prefix: int
    """Number of shared tokens; 0 for none."""
    size: int
    """Size in the unit of the limit."""
    tokens: int
    """Number of tokens, the shared ones once."""
    pairs: int
    """Number of pairs of a token and one that it attends to."""


def pack(
    batch: TrainingBatch,
    limit: Amount,
    *,
    share_prompts: bool,
    device: torch.device | str,
    image_processor: ImageProcessor | None = None,
) -> list[MicroBatch]:
    """Micro-batches of at most `limit` tokens, or `limit` sequences (experiences), each.

    Without `share_prompts`, every experience is one segment, including its prompt. Images need the model's
    `image_processor`.
    """
    plans = plan_micro_batches(batch.experiences, limit, share_prompts=share_prompts)
    return [build_micro_batch(plan, batch, device, image_processor) for plan in plans]


def plan_micro_batches(
    experiences: Sequence[Experience], limit: Amount, *, share_prompts: bool
) -> list[MicroBatchPlan]:
    """Which segments of which experiences each micro-batch holds; see `pack`."""
    contents = BundledBatch(experiences, share_prompts=share_prompts).contents(limit)
    return [plan_of_bundles(bundles) for bundles in contents]


@dataclass(frozen=True, slots=True)
class _SharedPrompt:
    """Units, longest first, whose experiences share their first `prefix` tokens."""

    prefix: int
    units: list[_Unit]
    tokens: list[int]
    """Tokens of each unit after the shared ones."""
    pairs: list[int]
    """Pairs of each of these tokens and one that it attends to."""


class BundledBatch:
    """A batch whose micro-batches are planned for several limits: prompts and lengths are compared once."""

    def __init__(self, experiences: Sequence[Experience], *, share_prompts: bool) -> None:
        """Without `share_prompts`, every unit has a bundle of its own."""
        self._prompts: list[_SharedPrompt] = []
        for units, prefix in _shared_prompts(experiences, share_prompts):
            lengths = [[len(experiences[member].token_ids) for member in unit] for unit in units]
            tokens = [sum(own) - prefix * len(own) for own in lengths]
            pairs = [sum(_pairs(length) - _pairs(prefix) for length in own) for own in lengths]
            self._prompts.append(_SharedPrompt(prefix, units, tokens, pairs))

    def contents(self, limit: Amount) -> list[list[ExperienceBundle]]:
        """The bundles of each micro-batch of at most `limit`."""
        bundles = [piece for prompt in self._prompts for piece in _cut(prompt, limit)]
        return _first_fit_decreasing(bundles, limit)


def _pairs(length: int) -> int:
    """Pairs of a token of a sequence and one that it attends to."""
    return length * (length + 1) // 2


def planned_experiences(plans: Iterable[MicroBatchPlan]) -> list[int]:
    """Numbers of all experiences in these micro-batches, each once, in order of appearance."""
    return list(dict.fromkeys(segment.source for plan in plans for segment in plan))


def renumber(plan: MicroBatchPlan, numbers: Mapping[int, int]) -> MicroBatchPlan:
    """The plan with each experience's number replaced by `numbers[number]`."""
    return tuple(replace(segment, source=numbers[segment.source]) for segment in plan)


def build_micro_batch(
    plan: MicroBatchPlan,
    batch: TrainingBatch,
    device: torch.device | str,
    image_processor: ImageProcessor | None = None,
) -> MicroBatch:
    """The tensors of one planned micro-batch. Values at tokens that are not targets become 0."""
    experiences = batch.experiences
    segment_images = _segment_images(plan, experiences, image_processor)

    def gather(arrays: Iterable[npt.NDArray[Any]], dtype: type) -> torch.Tensor:
        return to_device(np.concatenate(list(arrays), dtype=dtype), device)

    def cut(array: float | npt.NDArray[Any], segment: SegmentPlan) -> npt.NDArray[Any]:
        length = len(experiences[segment.source].token_ids)
        if not isinstance(array, np.ndarray) or array.shape != (length,):
            array = np.broadcast_to(array, length)  # slow next to a slice, which nearly all arrays need alone
        return array[segment.start : segment.stop]

    tokens = [cut(experiences[s.source].token_ids, s) for s in plan]
    is_target = [cut(experiences[s.source].loss_mask, s) for s in plan]

    def optional(column: Sequence[float | FloatArray] | None) -> torch.Tensor | None:
        return None if column is None else masked(column.__getitem__)

    def masked(value_of: Callable[[int], float | FloatArray]) -> torch.Tensor:
        pairs = zip(plan, is_target, strict=True)
        return gather((np.where(mask, cut(value_of(s.source), s), 0.0) for s, mask in pairs), np.float32)

    advantages, selected, old = batch.advantages, batch.selected, None
    if batch.old_logprobs is not None:
        old = [math.nan if each is None else each for each in batch.old_logprobs]
    policy = [e.policy_logprobs for e in experiences if e.policy_logprobs is not None]
    return MicroBatch(
        token_ids=gather(tokens, np.int64),
        position_ids=gather(
            (np.arange(s.start, s.start + len(t)) for s, t in zip(plan, tokens, strict=True)), np.int64
        )
        if segment_images is None
        else segment_images.position_ids(device),
        cu_seqlens=np.cumsum([0, *map(len, tokens)]),
        prefix_of=tuple(s.prefix_of for s in plan),
        experience=tuple(s.experience for s in plan),
        role=tuple(experiences[s.source].role if s.experience >= 0 else None for s in plan),
        source=tuple(experiences[s.source].source for s in plan),
        weight=gather([np.array([s.experience >= 0 for s in plan])], np.float32),
        targets=np.flatnonzero(np.concatenate(is_target)),
        temperature=gather((cut(experiences[s.source].temperature, s) for s in plan), np.float32),
        sampler_logprobs=masked(lambda number: experiences[number].sampler_logprobs),
        advantages=masked(lambda number: 0.0 if advantages is None else advantages[number]),
        policy_logprobs=optional(policy if len(policy) == len(experiences) else None),
        old_logprobs=optional(old),
        ref_logprobs=optional(batch.ref_logprobs),
        teacher_logprobs=optional(batch.teacher_logprobs),
        values=optional(batch.values),
        returns=optional(batch.returns),
        selected=None
        if selected is None
        else gather(
            (cut(selected[s.source], s) & mask for s, mask in zip(plan, is_target, strict=True)), np.bool_
        ),
        target_tokens=None
        if batch.target_tokens is None
        else gather((batch.target_tokens[s.source][s.start : s.stop] for s in plan), np.int64),
        images=None if segment_images is None else segment_images.packed(),
    )


def _segment_images(
    plan: MicroBatchPlan, experiences: Sequence[Experience], processor: ImageProcessor | None
) -> SegmentImages | None:
    """The images of a micro-batch; None if it has none."""
    if not any(experiences[segment.source].media for segment in plan):
        return None
    if processor is None:
        raise ValueError("a batch with images was packed without the model's image processor")
    return SegmentImages([(experiences[s.source], s.start, s.stop) for s in plan], processor)


def unpack(
    micro_batches: Iterable[MicroBatch], values: Iterable[torch.Tensor], experiences: Sequence[Experience]
) -> list[FloatArray]:
    """[T] or [T, K] values of each micro-batch, split by experience: [L] or [L, K] each, 0 in shared prompts."""
    found = unpack_numbered(micro_batches, values, dict(enumerate(experiences)))
    return [found[number] for number in range(len(experiences))]


def unpack_numbered(
    micro_batches: Iterable[MicroBatch], values: Iterable[torch.Tensor], experiences: Mapping[int, Experience]
) -> dict[int, FloatArray]:
    """The same for the experiences with these numbers."""
    result = {number: np.zeros(len(e.token_ids), dtype=np.float32) for number, e in experiences.items()}
    for micro_batch, tensor in zip(micro_batches, values, strict=True):
        array = tensor.detach().to("cpu", torch.float32).numpy()
        bounds = micro_batch.cu_seqlens.tolist()
        for segment, experience in enumerate(micro_batch.experience):
            if experience >= 0:
                own = array[bounds[segment] : bounds[segment + 1]]
                if own.ndim > 1:
                    length = len(experiences[experience].token_ids)
                    result[experience] = np.zeros((length, *own.shape[1:]), dtype=np.float32)
                result[experience][len(result[experience]) - len(own) :] = own
    return result


def _units(experiences: Sequence[Experience]) -> list[_Unit]:
    """In the order of their first experience; in a pair, the chosen response comes first."""
    members: dict[int | str, list[int]] = defaultdict(list)
    for i, experience in enumerate(experiences):
        members[i if experience.pair is None else experience.pair].append(i)
    return [tuple(sorted(unit, key=lambda i: experiences[i].role)) for unit in members.values()]


def _shared_prompts(
    experiences: Sequence[Experience], share_prompts: bool
) -> Iterator[tuple[list[_Unit], int]]:
    """The units of each bundle and the number of tokens they share, in the order of the first units."""
    if not share_prompts:
        yield from (([unit], 0) for unit in _units(experiences))
        return
    bundles: dict[tuple[object, ...], list[_Unit]] = defaultdict(list)
    for unit in _units(experiences):
        first = experiences[unit[0]]
        prompt = first.token_ids[: first.prompt_tokens]
        # Different images may have the same tokens.
        bundles[first.group, prompt.tobytes(), first.media].append(unit)
    for units in bundles.values():
        # Longest first: a bundle that is cut has segments of similar length in each part, which attention computes
        # together.
        units.sort(key=lambda unit: -max(len(experiences[i].token_ids) for i in unit))
        yield units, experiences[units[0][0]].prompt_tokens - 1


def _cut(prompt: _SharedPrompt, limit: Amount) -> Iterator[ExperienceBundle]:
    """One bundle if it fits into a micro-batch; otherwise the fewest pieces that keep the order."""
    prefix = prompt.prefix
    sizes = prompt.tokens if limit.unit == "tokens" else [len(unit) for unit in prompt.units]
    shared = prefix if limit.unit == "tokens" else 0

    def bundle(first: int, end: int, size: int) -> ExperienceBundle:
        members = tuple(member for unit in prompt.units[first:end] for member in unit)
        tokens, pairs = prefix + sum(prompt.tokens[first:end]), _pairs(prefix) + sum(prompt.pairs[first:end])
        return ExperienceBundle(members, prefix if len(members) > 1 else 0, size, tokens, pairs)

    first, size = 0, shared
    for number, own in enumerate(sizes):
        if number > first and size + own > limit.count:
            yield bundle(first, number, size)
            first, size = number, shared
        size += own
    yield bundle(first, len(sizes), size)


def _first_fit_decreasing(bundles: Iterable[ExperienceBundle], limit: Amount) -> list[list[ExperienceBundle]]:
    """Each bundle, largest first, into the first micro-batch with enough capacity, or into a new one."""
    contents: list[list[ExperienceBundle]] = []
    capacity: list[float] = []
    for bundle in sorted(bundles, key=lambda b: -b.size):
        index = next((i for i, left in enumerate(capacity) if bundle.size <= left), None)
        if index is None:
            index = len(contents)
            contents.append([])
            capacity.append(limit.count)
        contents[index].append(bundle)
        capacity[index] -= bundle.size
    return contents


def plan_of_bundles(bundles: Iterable[ExperienceBundle]) -> MicroBatchPlan:
    """The segments of a micro-batch."""
    segments: list[SegmentPlan] = []
    for bundle in bundles:
        prefix_of = -1
        if bundle.prefix:
            prefix_of = len(segments)
            segments.append(SegmentPlan(bundle.members[0], 0, bundle.prefix, -1))
        segments += (SegmentPlan(member, bundle.prefix, None, prefix_of) for member in bundle.members)
    return tuple(segments)
