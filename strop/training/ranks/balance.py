"""Plans of micro-batches for several ranks, with about the same predicted cost on each rank.

All ranks run their micro-batches in rounds, and a round takes as long as its most expensive micro-batch, since the
passes are collective operations. Micro-batches of similar cost form a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from strop.config.units import Amount
from strop.data.packing import MicroBatchPlan, SegmentPlan, plan_micro_batches
from strop.types import Experience

RankPlan = list[MicroBatchPlan | None]
"""Micro-batches in rounds of one for each rank; None for an idle rank."""
_ATTENTION_UNIT = 6
"""A layer with the hidden size h has about 12 h^2 parameters, so 24 h^2 operations per token, and attention has 4 h per
pair of tokens: 6 h pairs cost as much as one token."""
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
    largest = plan_micro_batches(experiences, limit, share_prompts=share_prompts)
    if ranks == 1:
        return list(largest)
    rounds = math.ceil(len(largest) / ranks)
    total = sum(_size(plan, experiences, limit) for plan in largest)
    even = total / max(1, rounds * ranks)
    smaller = sorted({min(limit.count, math.ceil(even * margin)) for margin in _MARGINS})
    plans = [
        plan_micro_batches(experiences, Amount(count, limit.unit), share_prompts=share_prompts)
        for count in smaller
    ]
    fitting = [largest, *(plan for plan in plans if len(plan) <= rounds * ranks)]
    dealt = [_deal(plan, experiences, ranks, hidden_size) for plan in fitting]
    return min(
        dealt, key=lambda plan: predicted_time(plan, experiences, ranks=ranks, hidden_size=hidden_size)
    )


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
    plans: Sequence[MicroBatchPlan], experiences: Sequence[Experience], ranks: int, hidden_size: int
) -> RankPlan:
    """Rounds by falling cost; in each of them, the rank with the least cost so far gets the most expensive one."""
    by_cost = sorted(plans, key=lambda plan: -predicted_cost(plan, experiences, hidden_size))
    totals = [0.0] * ranks
    dealt: RankPlan = []
    for start in range(0, len(by_cost), ranks):
        order = sorted(range(ranks), key=totals.__getitem__)
        of_rank = dict(zip(order, by_cost[start : start + ranks], strict=False))
        for rank, plan in of_rank.items():
            totals[rank] += predicted_cost(plan, experiences, hidden_size)
        dealt += [of_rank.get(rank) for rank in range(ranks)]
    return dealt


def _tokens(segment: SegmentPlan, experiences: Sequence[Experience]) -> int:
    stop = len(experiences[segment.source].token_ids) if segment.stop is None else segment.stop
    return stop - segment.start


def _size(plan: MicroBatchPlan, experiences: Sequence[Experience], limit: Amount) -> int:
    """Size of a micro-batch in the unit of the limit."""
    if limit.unit == "sequences":
        return sum(segment.experience >= 0 for segment in plan)
    return sum(_tokens(segment, experiences) for segment in plan)
