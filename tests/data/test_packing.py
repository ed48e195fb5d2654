"""Packing: every token once, shared prompts once, limits respected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.config.units import Amount
from strop.data.packing import pack, unpack
from strop.types import Experience, MicroBatch, TrainingBatch

MANY = Amount(10_000, "tokens")


def experience(prompt: list[int], answer: list[int], group: str = "g", **fields: object) -> Experience:
    tokens = np.array([*prompt, *answer], dtype=np.int32)
    numbers = np.arange(len(tokens), dtype=np.float32)
    plain = Experience(
        id="e",
        task_id="t",
        group=group,
        index=0,
        turn=0,
        token_ids=tokens,
        loss_mask=np.arange(len(tokens)) >= len(prompt),
        sampler_logprobs=-numbers,
        policy_logprobs=-numbers - 0.5,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(0,),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def packed(experiences: list[Experience], limit: Amount = MANY, *, share: bool = True) -> list[MicroBatch]:
    batch = TrainingBatch(experiences, [1.0] * len(experiences))
    return pack(batch, limit, share_prompts=share, device="cpu")


def test_a_group_of_two_by_hand():
    experiences = [experience([5, 6, 7], [8, 9]), experience([5, 6, 7], [10], temperature=0.5)]
    advantages = [2.0, np.array([9, 9, 9, -1], dtype=np.float32)]
    (batch,) = pack(TrainingBatch(experiences, advantages), MANY, share_prompts=True, device="cpu")
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 7, 10]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 2, 3]
    assert batch.cu_seqlens.tolist() == [0, 2, 5, 7]
    assert batch.prefix_of == (-1, 0, 0)
    assert batch.experience == (-1, 0, 1)
    assert batch.weight.tolist() == [0, 1, 1]
    assert batch.loss_mask.tolist() == [False, False, False, True, True, False, True]
    assert batch.advantages.tolist() == [0, 0, 0, 2, 2, 0, -1]
    assert batch.sampler_logprobs.tolist() == [0, 0, 0, -3, -4, 0, -3]
    assert batch.policy_logprobs.tolist() == [0, 0, 0, -3.5, -4.5, 0, -3.5]
    assert batch.temperature[batch.loss_mask].tolist() == [1, 1, 0.5]
    assert batch.old_logprobs is None
    assert batch.ref_logprobs is None


def test_policy_logprobs_are_left_out_unless_all_experiences_have_them():
    (batch,) = packed([experience([5, 6], [7]), experience([5, 6], [8], policy_logprobs=None)])
    assert batch.policy_logprobs is None


def test_without_sharing_prompts_are_repeated():
    (batch,) = packed([experience([5, 6], [8]), experience([5, 6], [9])], share=False)
    assert batch.token_ids.tolist() == [5, 6, 8, 5, 6, 9]
    assert batch.prefix_of == (-1, -1)


@pytest.mark.parametrize(
    "experiences",
    [
        [experience([5], [8]), experience([5], [9])],
        [experience([5, 6], [8])],
        [experience([5, 6], [8]), experience([5, 7], [9])],
        [experience([5, 6], [8], group="a"), experience([5, 6], [9], group="b")],
    ],
    ids=["a prompt of one token", "one alone", "other prompts", "other groups"],
)
def test_nothing_to_share(experiences):
    (batch,) = packed(experiences)
    assert set(batch.prefix_of) == {-1}
    assert min(batch.experience) == 0


def test_two_turns_share_the_first_prompt():
    later = experience([5, 6, 7], [8, 9, 10, 11], loss_mask=np.array([0, 0, 0, 1, 0, 0, 1], dtype=bool))
    (batch,) = packed([later, experience([5, 6, 7], [8])])
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 7, 8]
    assert batch.loss_mask.tolist() == [False, False, False, True, False, False, True, False, True]


def test_a_group_that_fits_is_not_split():
    experiences = [experience([n] * 4, [1, 2, 3], group=str(n)) for n in (3, 4, 5) for _ in range(3)]
    batches = packed(experiences, Amount(30, "tokens"))
    assert [[experiences[e].group for e in b.experience if e >= 0] for b in batches] == [
        ["3", "3", "3", "4", "4", "4"],
        ["5", "5", "5"],
    ]


def test_a_group_that_is_too_large_is_split_and_its_prompt_repeated():
    batches = packed([experience([3] * 5, [1, 2]) for _ in range(5)], Amount(11, "tokens"))
    assert [b.experience for b in batches] == [(-1, 0, 1), (-1, 2, 3), (4,)]
    assert [len(b.token_ids) for b in batches] == [10, 10, 7]


def test_a_sequence_that_is_too_long_has_its_own_micro_batch():
    batches = packed([experience([3] * 5, [1, 2]), experience([4] * 20, [1] * 20)], Amount(11, "tokens"))
    assert sorted(len(b.token_ids) for b in batches) == [7, 40]


def test_a_limit_in_sequences():
    batches = packed([experience([3] * 5, [1] * n) for n in range(1, 8)], Amount(3, "sequences"))
    assert [sum(e >= 0 for e in b.experience) for b in batches] == [3, 3, 1]


LENGTHS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=25
)


@given(
    lengths=LENGTHS,
    limit=st.integers(1, 40),
    unit=st.sampled_from(["tokens", "sequences"]),
    share=st.booleans(),
)
def test_every_token_is_packed_once(lengths, limit, unit, share):
    experiences = [experience([g] * p, list(range(a)), group=str(g)) for g, p, a in lengths]
    numbers = [np.random.default_rng(i).random(len(e.token_ids)) for i, e in enumerate(experiences)]
    whole = TrainingBatch(experiences, numbers, old_logprobs=numbers, ref_logprobs=numbers)
    batches = pack(whole, Amount(limit, unit), share_prompts=share, device="cpu")
    assert sorted(e for b in batches for e in b.experience if e >= 0) == list(range(len(experiences)))
    for batch in batches:
        sequences = sum(e >= 0 for e in batch.experience)
        assert sequences == 1 or (len(batch.token_ids) if unit == "tokens" else sequences) <= limit
        assert batch.old_logprobs is not None
        assert torch.equal(batch.old_logprobs, batch.advantages)
    for name in ("token_ids", "advantages", "position_ids"):
        values = [getattr(b, name) * b.loss_mask for b in batches]
        for i, found in enumerate(unpack(batches, values, experiences)):
            positions = np.arange(len(found))
            given_values = {"token_ids": experiences[i].token_ids, "advantages": numbers[i]}
            expected = given_values.get(name, positions) * experiences[i].loss_mask
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_same_input_gives_the_same_packing():
    random = np.random.default_rng(0)
    experiences = [experience([g] * 3, [1] * int(random.integers(1, 9)), group=str(g)) for g in range(9)]
    one, other = (packed(experiences, Amount(20, "tokens")) for _ in range(2))
    assert [b.experience for b in one] == [b.experience for b in other]


def pair(number: int, prompt: list[int], chosen: list[int], rejected: list[int]) -> list[Experience]:
    name = f"row-{number}"
    return [
        experience(prompt, answer, group=name, role=role, pair=name)
        for answer, role in ((chosen, "chosen"), (rejected, "rejected"))
    ]


def test_a_pair_by_hand():
    (batch,) = packed(pair(0, [5, 6, 7], [8, 9], [10]))
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 7, 10]
    assert batch.role == (None, "chosen", "rejected")
    assert batch.prefix_of == (-1, 0, 0)


def test_the_rejected_answer_is_second_in_any_input_order():
    (batch,) = packed(list(reversed(pair(0, [5, 6], [7], [8]))), share=False)
    assert batch.role == ("chosen", "rejected")
    assert batch.experience == (1, 0)


def test_a_pair_that_is_too_large_has_its_own_micro_batch():
    batches = packed([*pair(0, [1, 2], [3] * 9, [4] * 9), *pair(1, [1, 2], [5], [6])], Amount(8, "tokens"))
    assert sorted(len(batch.token_ids) for batch in batches) == [5, 21]
    assert all(batch.role == (None, "chosen", "rejected") for batch in batches)


@given(
    lengths=st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=8),
    limit=st.one_of(
        st.integers(1, 30).map(lambda n: Amount(n, "tokens")),
        st.integers(1, 5).map(lambda n: Amount(n, "sequences")),
        st.just(MANY),
    ),
    share=st.booleans(),
)
def test_no_pair_is_ever_split(lengths, limit, share):
    experiences = [
        one
        for number, (prompt, chosen, rejected) in enumerate(lengths)
        for one in pair(number, list(range(1, prompt + 1)), [8] * chosen, [9] * rejected)
    ]
    seen = []
    for batch in packed(experiences, limit, share=share):
        answers = [i for i in batch.experience if i >= 0]
        roles = [batch.role[batch.experience.index(i)] for i in answers]
        assert roles == ["chosen", "rejected"] * (len(answers) // 2)
        for better, worse in zip(answers[::2], answers[1::2], strict=True):
            assert experiences[better].pair == experiences[worse].pair
        seen += answers
    assert sorted(seen) == list(range(len(experiences)))
