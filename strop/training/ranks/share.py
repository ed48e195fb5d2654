"""Distribution of a batch over data-parallel ranks: each rank packs its own experiences.

Every rank runs the same number of forward passes, since each of them is a collective operation; a rank with
fewer micro-batches runs an idle one.

All ranks run their micro-batches in rounds, and a round takes as long as its most expensive micro-batch. Micro-
batches of similar cost form a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from strop.config.units import Amount
from strop.data.packing import (
    BundledBatch,
    ExperienceBundle,
    MicroBatchPlan,
    SegmentPlan,
    build_micro_batch,
    plan_of_bundles,
    planned_experiences,
    renumber,
    unpack_numbered,
)
from strop.models.vision.model_images import ModelImages, has_images
from strop.protocols import ImageProcessor
from strop.types import (
    Experience,
    FloatArray,
    GlobalCounts,
    LossOutput,
    MicroBatch,
    PackedImages,
    TokenOutputs,
    TrainingBatch,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankShare:
    """One data-parallel rank's experiences of a batch, and the micro-batches that it makes of them."""

    batch: TrainingBatch
    numbers: tuple[int, ...]
    """Number of each experience in the full batch."""
    plans: tuple[MicroBatchPlan | None, ...]
    """Micro-batches, with experiences numbered as in `batch`; None for an idle one."""
    needs_placeholders: bool = False
    """Whether every rank runs its vision tower for each micro-batch, because an experience of the full batch has an
    image and a forward pass is an operation of all ranks."""

    def micro_batches(self, device: torch.device, images: ModelImages) -> Iterator[MicroBatch]:
        """The rank's micro-batches, built one at a time; they number experiences as in the full batch."""
        own = self.batch.experiences
        processor = images.processor if self.needs_placeholders else images.processor_for(own)
        for plan in self.plans:
            built = self._build(plan, device, processor)
            if self.needs_placeholders and built.images is None:
                assert processor is not None
                built = replace(built, images=_placeholder(built, processor))
            yield built

    def _build(
        self, plan: MicroBatchPlan | None, device: torch.device, processor: ImageProcessor | None
    ) -> MicroBatch:
        if plan is None:
            return _idle_micro_batch(device)
        built = build_micro_batch(plan, self.batch, device, processor)
        return replace(built, experience=tuple(self.numbers[i] if i >= 0 else -1 for i in built.experience))

    def unpack(self, micro_batches: Sequence[MicroBatch], values: Sequence[Tensor]) -> dict[int, FloatArray]:
        """[T] values of the rank's micro-batches as [L] values by the experience's number in the full batch."""
        experiences = dict(zip(self.numbers, self.batch.experiences, strict=True))
        return unpack_numbered(micro_batches, values, experiences)


def plan_rank_shares(
    batch: TrainingBatch, plans: Sequence[MicroBatchPlan | None], ranks: int, *, collective: bool = True
) -> list[RankShare]:
    """Each data-parallel rank's share: rank r gets micro-batches r, r + ranks, r + 2 ranks, ...

    `collective` is whether a forward pass is an operation of all ranks, so that idle ones take part.
    """
    if not collective:
        return [
            _share(batch, [p for p in plans[rank::ranks] if p is not None], False) for rank in range(ranks)
        ]
    padded = [*plans, *[None] * (-len(plans) % ranks)]
    needs_placeholders = has_images(batch.experiences)
    return [_share(batch, padded[rank::ranks], needs_placeholders) for rank in range(ranks)]


def _share(
    batch: TrainingBatch, plans: Sequence[MicroBatchPlan | None], needs_placeholders: bool
) -> RankShare:
    numbers = planned_experiences(plan for plan in plans if plan is not None)
    local = {number: i for i, number in enumerate(numbers)}
    return RankShare(
        batch=batch.select(numbers),
        numbers=tuple(numbers),
        plans=tuple(None if plan is None else renumber(plan, local) for plan in plans),
        needs_placeholders=needs_placeholders,
    )


def interleave(by_rank: Sequence[Sequence[T]]) -> list[T]:
    """Results of the ranks' micro-batches in the order of the full batch's micro-batches."""
    longest = max(len(results) for results in by_rank)
    return [results[i] for i in range(longest) for results in by_rank if i < len(results)]


@dataclass(frozen=True, slots=True)
class IdleSafeLoss:
    """A loss that is 0 for an idle micro-batch, with a gradient, so that the rank joins the backward pass."""

    loss_fn: Callable[[MicroBatch, Any, GlobalCounts], LossOutput]

    def __call__(self, micro_batch: MicroBatch, outputs: Any, counts: GlobalCounts) -> LossOutput:
        if len(micro_batch.targets):
            return self.loss_fn(micro_batch, outputs, counts)
        values: Tensor = outputs
        if isinstance(outputs, TokenOutputs):
            values = outputs.logprobs if outputs.scores is None else outputs.scores
        return LossOutput(values.sum(), {})


def _placeholder(micro_batch: MicroBatch, processor: ImageProcessor) -> PackedImages:
    """An image without tokens, for a micro-batch without images: the tower's forward pass is collective, too."""
    return PackedImages((), np.zeros(len(micro_batch.token_ids), np.bool_), processor.placeholder)


def _idle_micro_batch(device: torch.device) -> MicroBatch:
    """Two tokens, neither of them a target."""
    zeros = torch.zeros(2, device=device)
    return MicroBatch(
        token_ids=torch.zeros(2, dtype=torch.int64, device=device),
        position_ids=torch.arange(2, device=device),
        cu_seqlens=np.array([0, 2]),
        prefix_of=(-1,),
        experience=(-1,),
        role=(None,),
        source=("",),
        weight=torch.ones(1, device=device),
        targets=np.array([], dtype=np.int64),
        temperature=torch.ones(2, device=device),
        sampler_logprobs=zeros,
        policy_logprobs=zeros,
        advantages=zeros,
    )


RankPlan = list[MicroBatchPlan | None]
"""Micro-batches in rounds of one for each rank; None for an idle rank."""
_ATTENTION_UNIT = 6
"""A layer with the hidden size h has about 12 h^2 parameters, so 24 h^2 operations per token, and attention has 4 h per
pair of tokens: 6 h pairs cost as much as one token."""
_MICRO_BATCH_COST = 64.0
"""Cost of a micro-batch whatever its size, in tokens: it adds to the gradients of all parameters."""
_MARGINS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0)
"""Sizes that are tried, relative to an even share: bundles of experiences do not divide evenly."""


def predicted_cost(plan: MicroBatchPlan, experiences: Sequence[Experience], hidden_size: int) -> float:
    """Cost of a micro-batch, in tokens: its tokens, and its pairs of tokens that attention compares over 6 h."""
    sizes = [(segment.start, _tokens(segment, experiences)) for segment in plan]
    pairs = sum(own * (before + (own + 1) / 2) for before, own in sizes)
    return sum(own for _, own in sizes) + pairs / (_ATTENTION_UNIT * hidden_size)


def plan_for_ranks(
    experiences: Sequence[Experience],
    limit: Amount,
    *,
    ranks: int,
    hidden_size: int,
    share_prompts: bool,
) -> RankPlan:
    """Micro-batches of at most `limit` for each rank, in as few rounds as the limit allows.

    Of several sizes of micro-batches, the one with the least predicted time is taken. The plan depends on prompts,
    lengths and these arguments only.
    """
    batch = BundledBatch(experiences, share_prompts=share_prompts)
    largest = batch.contents(limit)
    if ranks == 1:
        return [plan_of_bundles(bundles) for bundles in largest]
    rounds = math.ceil(len(largest) / ranks)
    even = _total_size(largest) / max(1, rounds * ranks)
    smaller = sorted({min(limit.count, math.ceil(even * margin)) for margin in _MARGINS})
    contents = [batch.contents(Amount(count, limit.unit)) for count in smaller]
    fitting = [largest, *(each for each in contents if len(each) <= rounds * ranks)]
    dealt = [_deal(each, ranks, hidden_size) for each in fitting]
    return _planned(min(dealt, key=lambda each: each[0])[1])


def plan_for_workers(
    experiences: Sequence[Experience],
    limit: Amount,
    *,
    ranks: int,
    hidden_size: int,
    share_prompts: bool,
) -> RankPlan:
    """Micro-batches of at most `limit` for workers that do not wait for each other within an update.

    Of several sizes, by which groups are cut too, the one with the least predicted cost of the busiest worker is taken.
    """
    batch = BundledBatch(experiences, share_prompts=share_prompts)
    largest = batch.contents(limit)
    if ranks == 1:
        return [plan_of_bundles(bundles) for bundles in largest]
    total = _total_size(largest)
    sizes = {math.ceil(total * margin / (ranks * part)) for margin in _MARGINS for part in (1, 2, 4)}
    dealt = []
    for count in sorted({limit.count, *(min(size, limit.count) for size in sizes if size)}):
        contents = batch.contents(Amount(count, limit.unit))
        dealt.append(_deal_to_idlest(contents, ranks, hidden_size))
    return _planned(min(dealt, key=lambda each: each[:2])[2])


def rank_costs(
    plan: Sequence[MicroBatchPlan | None], experiences: Sequence[Experience], *, ranks: int, hidden_size: int
) -> list[float]:
    """Predicted cost of each rank's micro-batches together."""
    costs = _costs(plan, experiences, hidden_size)
    return [sum(costs[rank::ranks]) for rank in range(ranks)]


def predicted_time(
    plan: Sequence[MicroBatchPlan | None], experiences: Sequence[Experience], *, ranks: int, hidden_size: int
) -> float:
    """Sum over rounds of the cost of the most expensive micro-batch."""
    costs = _costs(plan, experiences, hidden_size)
    return sum(max(costs[start : start + ranks]) for start in range(0, len(costs), ranks))


def _costs(
    plan: Sequence[MicroBatchPlan | None], experiences: Sequence[Experience], hidden_size: int
) -> list[float]:
    return [0.0 if each is None else predicted_cost(each, experiences, hidden_size) for each in plan]


def _deal(
    contents: Sequence[list[ExperienceBundle]], ranks: int, hidden_size: int
) -> tuple[float, list[list[ExperienceBundle] | None]]:
    """Rounds by falling cost; in each of them, the rank with the least cost so far gets the most expensive one. The sum
    over rounds of the cost of the most expensive micro-batch, and the micro-batches; None for an idle rank."""
    by_cost = sorted(
        ((_cost(bundles, hidden_size), bundles) for bundles in contents), key=lambda each: -each[0]
    )
    totals, time = [0.0] * ranks, 0.0
    dealt: list[list[ExperienceBundle] | None] = []
    for start in range(0, len(by_cost), ranks):
        order = sorted(range(ranks), key=totals.__getitem__)
        of_rank = dict(zip(order, by_cost[start : start + ranks], strict=False))
        for rank, (cost, _) in of_rank.items():
            totals[rank] += cost
        time += by_cost[start][0]
        dealt += [of_rank[rank][1] if rank in of_rank else None for rank in range(ranks)]
    return time, dealt


def _deal_to_idlest(
    contents: Sequence[list[ExperienceBundle]], workers: int, hidden_size: int
) -> tuple[float, int, list[list[ExperienceBundle] | None]]:
    """By falling cost, each micro-batch to the worker with the least so far: the largest cost of a worker, the number
    of micro-batches, and these in rounds."""
    costs = [_cost(bundles, hidden_size) for bundles in contents]
    totals, shares = [0.0] * workers, [list[list[ExperienceBundle]]() for _ in range(workers)]
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        idlest = min(range(workers), key=totals.__getitem__)
        totals[idlest] += costs[number] + _MICRO_BATCH_COST
        shares[idlest].append(contents[number])
    rounds = zip_longest(*shares)
    return max(totals), len(contents), [bundles for each in rounds for bundles in each]


def _cost(bundles: Sequence[ExperienceBundle], hidden_size: int) -> float:
    """`predicted_cost` of a micro-batch."""
    pairs = sum(bundle.pairs for bundle in bundles)
    return sum(bundle.tokens for bundle in bundles) + pairs / (_ATTENTION_UNIT * hidden_size)


def _total_size(contents: Iterable[Iterable[ExperienceBundle]]) -> int:
    """Size of all micro-batches, in the unit of their limit."""
    return sum(bundle.size for bundles in contents for bundle in bundles)


def _planned(contents: Iterable[list[ExperienceBundle] | None]) -> RankPlan:
    return [None if bundles is None else plan_of_bundles(bundles) for bundles in contents]


def _tokens(segment: SegmentPlan, experiences: Sequence[Experience]) -> int:
    stop = len(experiences[segment.source].token_ids) if segment.stop is None else segment.stop
    return stop - segment.start
