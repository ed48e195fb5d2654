"""Micro-batches of several ranks: predicted cost, and its even distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.config.units import Amount
from strop.data.packing import BundledBatch, plan_micro_batches, plan_of_bundles, planned_experiences
from strop.training.ranks.share import (
    RankPlan,
    _cost,
    plan_for_ranks,
    plan_for_workers,
    predicted_cost,
    predicted_time,
    rank_costs,
)
from strop.types import Experience
from tests.models.models import experience

HIDDEN = 8


def groups(sizes: list[list[int]], prompt: int = 3) -> list[Experience]:
    """Groups of responses of these lengths, each with a prompt of its own."""
    return [
        experience([number + 3] * prompt, [3] * length, group=str(number), index=index)
        for number, lengths in enumerate(sizes)
        for index, length in enumerate(lengths)
    ]


def test_the_cost_counts_a_shared_prompt_once() -> None:
    """A prompt of 3 tokens, of which 2 are shared, and responses of 2 and 1 tokens behind its last one."""
    (plan,) = plan_micro_batches(groups([[2, 1]]), Amount(99, "tokens"), share_prompts=True)
    tokens = 2 + 3 + 2
    pairs = (1 + 2) + (3 + 4 + 5) + (3 + 4)
    assert predicted_cost(plan, groups([[2, 1]]), HIDDEN) == tokens + pairs / (6 * HIDDEN)


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), max_size=8),
    st.integers(1, 9),
    st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_the_cost_of_bundles_is_that_of_their_segments(
    sizes: list[list[int]], prompt: int, share: bool
) -> None:
    members = groups(sizes, prompt)
    for bundles in BundledBatch(members, share_prompts=share).contents(Amount(70, "tokens")):
        assert _cost(bundles, HIDDEN) == predicted_cost(plan_of_bundles(bundles), members, HIDDEN)


def test_one_group_is_divided_over_the_ranks() -> None:
    """Its four responses fit into one micro-batch, which would leave a rank idle."""
    members = groups([[50, 50, 50, 50]])
    plan = plan_for_ranks(members, Amount(1000, "tokens"), ranks=2, hidden_size=HIDDEN, share_prompts=True)
    assert [None if each is None else len(planned_experiences([each])) for each in plan] == [2, 2]


def test_a_single_rank_has_the_plan_of_one_process() -> None:
    members = groups([[5, 9], [30, 2], [7]])
    limit = Amount(20, "tokens")
    assert plan_for_ranks(
        members, limit, ranks=1, hidden_size=HIDDEN, share_prompts=True
    ) == plan_micro_batches(members, limit, share_prompts=True)


def test_without_experiences_there_is_no_micro_batch() -> None:
    assert plan_for_ranks([], Amount(9, "tokens"), ranks=2, hidden_size=HIDDEN, share_prompts=True) == []


def assert_whole(plan: RankPlan, members: list[Experience], amount: Amount) -> None:
    """Every experience is in one micro-batch, and none is above the limit."""
    segments = [segment for each in plan if each is not None for segment in each]
    assert sorted(s.experience for s in segments if s.experience >= 0) == list(range(len(members)))
    for each in filter(None, plan):
        if amount.unit == "sequences":
            assert sum(segment.experience >= 0 for segment in each) <= amount.count
        else:
            ends = [len(members[s.source].token_ids) if s.stop is None else s.stop for s in each]
            assert sum(end - s.start for end, s in zip(ends, each, strict=True)) <= amount.count


LENGTHS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=6), min_size=1, max_size=8)


@given(LENGTHS, st.integers(1, 5), st.sampled_from([(70, "tokens"), (200, "tokens"), (3, "sequences")]))
@settings(deadline=None, max_examples=100)
def test_every_experience_is_computed_once_within_the_limit_and_no_slower_than_in_turn(
    sizes: list[list[int]], ranks: int, limit: tuple[int, str]
) -> None:
    members = groups(sizes)
    amount = Amount(*limit)  # type: ignore[arg-type]
    in_turn = plan_micro_batches(members, amount, share_prompts=True)
    plan = plan_for_ranks(members, amount, ranks=ranks, hidden_size=HIDDEN, share_prompts=True)
    assert len(plan) % ranks == 0
    assert len(plan) <= -(-len(in_turn) // ranks) * ranks
    assert_whole(plan, members, amount)

    def time(plans: object) -> float:
        return predicted_time(plans, members, ranks=ranks, hidden_size=HIDDEN)  # type: ignore[arg-type]

    assert time(plan) <= time(in_turn) + 1e-9


@given(LENGTHS, st.integers(2, 5), st.sampled_from([(70, "tokens"), (200, "tokens"), (3, "sequences")]))
@settings(deadline=None, max_examples=100)
def test_workers_have_all_experiences_within_the_limit(
    sizes: list[list[int]], workers: int, limit: tuple[int, str]
) -> None:
    members, amount = groups(sizes), Amount(*limit)  # type: ignore[arg-type]
    plan = plan_for_workers(members, amount, ranks=workers, hidden_size=HIDDEN, share_prompts=True)
    assert_whole(plan, members, amount)


def test_groups_are_cut_where_workers_would_have_unequal_numbers_of_them() -> None:
    members = groups([[50, 50, 50, 50]] * 3)
    plan = plan_for_workers(members, Amount(4096, "tokens"), ranks=2, hidden_size=896, share_prompts=True)
    costs = rank_costs(plan, members, ranks=2, hidden_size=896)
    assert max(costs) < 1.05 * min(costs)


def test_lengths_of_real_reasoning_spread_evenly() -> None:
    """Log-normal lengths: the largest rank's cost is at most 5 % above the mean."""
    lengths = np.random.default_rng(0).lognormal(5, 0.5, (32, 8)).astype(int).tolist()
    members = groups(lengths, prompt=90)
    plan = plan_for_ranks(members, Amount(4096, "tokens"), ranks=4, hidden_size=896, share_prompts=True)
    costs = rank_costs(plan, members, ranks=4, hidden_size=896)
    assert max(costs) <= 1.05 * np.mean(costs)
    in_turn = plan_micro_batches(members, Amount(4096, "tokens"), share_prompts=True)
    assert max(costs) < max(rank_costs(in_turn, members, ranks=4, hidden_size=896))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_pair_is_never_separated(ranks: int) -> None:
    members = [
        replace(experience([3, 4], [5] * n, group=str(n)), role=role, pair=str(n))
        for n in (3, 9, 4)
        for role in ("chosen", "rejected")
    ]
    plan = plan_for_ranks(members, Amount(99, "tokens"), ranks=ranks, hidden_size=HIDDEN, share_prompts=True)
    for each in filter(None, plan):
        assert len(planned_experiences([each])) % 2 == 0
