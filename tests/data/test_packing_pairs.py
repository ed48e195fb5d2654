"""A chosen and its rejected answer stay in one micro-batch, with one copy of their prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strop.config.units import Amount
from strop.types import Experience
from tests.data.test_packing import MANY, experience, packed


def pair(number: int, prompt: list[int], chosen: list[int], rejected: list[int]) -> list[Experience]:
    name = f"row-{number}"
    return [
        experience(prompt, answer, group=name, role=role, pair=name)
        for answer, role in ((chosen, "chosen"), (rejected, "rejected"))
    ]


def test_by_hand() -> None:
    (batch,) = packed(pair(0, [5, 6, 7], [8, 9], [10]))
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 9, 7, 10]
    assert batch.role == (None, "chosen", "rejected")
    assert batch.prefix_of == (-1, 0, 0)


def test_the_rejected_answer_is_second_in_any_input_order() -> None:
    (batch,) = packed(list(reversed(pair(0, [5, 6], [7], [8]))), share=False)
    assert batch.role == ("chosen", "rejected")
    assert batch.experience == (1, 0)


def test_a_pair_that_is_too_large_has_its_own_micro_batch() -> None:
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
def test_no_pair_is_ever_split(lengths: list[tuple[int, int, int]], limit: Amount, share: bool) -> None:
    experiences = [
        one
        for number, (prompt, chosen, rejected) in enumerate(lengths)
        for one in pair(number, list(range(1, prompt + 1)), [8] * chosen, [9] * rejected)
    ]
    seen = []
    for batch in packed(experiences, limit, share=share):
        answers = [i for i in batch.experience if i >= 0]
        assert [batch.role[batch.experience.index(i)] for i in answers] == ["chosen", "rejected"] * (
            len(answers) // 2
        )
        for better, worse in zip(answers[::2], answers[1::2], strict=True):
            assert experiences[better].pair == experiences[worse].pair
        seen += answers
    assert sorted(seen) == list(range(len(experiences)))
