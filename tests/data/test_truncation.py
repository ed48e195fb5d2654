"""Truncation and filtering of prompts that are too long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.encoding.truncation import fit_prompts, truncate_prompt
from strop.errors import DataError
from strop.types import IntArray


def prompts_of(lengths: list[int]) -> list[IntArray]:
    return [np.arange(length, dtype=np.int32) for length in lengths]


def where(row: int) -> str:
    return f"a.jsonl line {row + 1}"


@pytest.mark.parametrize(
    ("rule", "limit", "kept"),
    [
        ("left", 4, [6, 7, 8, 9]),
        ("right", 4, [0, 1, 2, 3]),
        ("middle", 4, [0, 1, 8, 9]),
        ("middle", 5, [0, 1, 7, 8, 9]),
        ("left", 1, [9]),
        ("right", 1, [0]),
        ("middle", 1, [9]),
    ],
)
def test_truncation_by_hand(rule, limit, kept):
    assert truncate_prompt(np.arange(10, dtype=np.int32), rule, limit).tolist() == kept


@given(
    st.lists(st.integers(1, 20), min_size=1), st.integers(1, 20), st.sampled_from(["left", "right", "middle"])
)
def test_truncation_keeps_every_row_and_changes_only_long_prompts(lengths, limit, rule):
    prompts = prompts_of(lengths)
    fitted = fit_prompts(prompts, rule, limit, where)
    assert fitted.rows == tuple(range(len(lengths)))
    assert [len(p) for p in fitted.prompts] == [min(length, limit) for length in lengths]
    assert fitted.num_overlong == sum(length > limit for length in lengths)
    for before, after in zip(prompts, fitted.prompts, strict=True):
        assert after.dtype == np.int32
        assert len(before) > limit or after.tolist() == before.tolist()


@given(st.lists(st.integers(1, 20), min_size=1), st.integers(1, 20))
def test_filter_counts(lengths, limit):
    short = [row for row, length in enumerate(lengths) if length <= limit]
    if not short:
        with pytest.raises(DataError, match=f"{len(lengths)} of {len(lengths)} prompts are too long"):
            fit_prompts(prompts_of(lengths), "filter", limit, where)
        return
    fitted = fit_prompts(prompts_of(lengths), "filter", limit, where)
    assert list(fitted.rows) == short
    assert [len(p) for p in fitted.prompts] == [lengths[row] for row in short]
    assert fitted.num_overlong == len(lengths) - len(short)


def test_error_names_the_first_row_and_the_longest():
    with pytest.raises(DataError) as error:
        fit_prompts(prompts_of([3, 12, 4, 30]), "error", 10, where)
    message = str(error.value)
    assert message.startswith(
        "a.jsonl line 2: the prompt has 12 tokens, more than data.max_prompt_tokens (10). "
        "2 of 4 prompts are too long; the longest has 30 tokens."
    )
    assert "filter" in message


def test_nothing_is_too_long_at_the_limit():
    fitted = fit_prompts(prompts_of([10, 10]), "error", 10, where)
    assert (fitted.rows, fitted.num_overlong) == ((0, 1), 0)
