"""The version that samples a step, and that explorer and trainer never deadlock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from strop.config.schema.buffer import BoundedStyleConfig, FixedStyleConfig, StyleConfig
from strop.sync.staleness_policy import (
    VersionWindow,
    publishes_after,
    requests_weights,
    retained_versions,
    version_window,
)


def style(text: str, **steps: int) -> StyleConfig:
    values = {name: f"{count} steps" for name, count in steps.items()}
    return TypeAdapter(StyleConfig).validate_python({"type": text} | values)


def versions(chosen: StyleConfig, steps: int) -> list[int]:
    return [version_window(chosen, step).lowest for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("every", "ahead", "expected"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (2, 0, [0, 0, 2, 2, 4, 4]),
        # Trinity's rule: after step e the explorer syncs when e > offset and (e - offset) % interval == 0.
        (3, 1, [0, 0, 0, 0, 3, 3, 3, 6]),
        (2, 3, [0, 0, 0, 0, 0, 2, 2, 4]),
    ],
)
def test_fixed_is_a_function_of_the_step(every: int, ahead: int, expected: list[int]) -> None:
    chosen = style("fixed", every=every, max_lead=ahead)
    assert versions(chosen, len(expected)) == expected
    assert all(version_window(chosen, s).highest == version_window(chosen, s).lowest for s in range(1, 9))


def test_fixed_equals_trinitys_rule() -> None:
    for every in range(1, 6):
        for ahead in range(6):
            version, expected = 0, []
            for step in range(1, 40):
                expected.append(version)
                if step > ahead and (step - ahead) % every == 0:
                    version = step - ahead
            assert versions(style("fixed", every=every, max_lead=ahead), 39) == expected


def test_bounded_selects_the_newest_version_that_is_fresh_enough() -> None:
    chosen = style("bounded", max_staleness=2)
    assert versions(chosen, 6) == [0, 0, 0, 1, 2, 3]
    assert VersionWindow(2).select_newest([0, 1, 2, 5]) == 5
    assert VersionWindow(2).select_newest([0, 1]) is None
    assert VersionWindow(2, 2).select_newest([0, 2, 3]) == 2


@st.composite
def styles(draw: st.DrawFn) -> StyleConfig:
    kind = draw(st.sampled_from(["fixed", "latest", "on_request", "bounded"]))
    every = draw(st.integers(1, 5))
    match kind:
        case "fixed":
            return style(kind, every=every, max_lead=draw(st.integers(0, 5)))
        case "bounded":
            return style(kind, every=every, max_staleness=draw(st.integers(every - 1, 7)))
        case _:
            return style(kind, every=every)


@given(styles(), st.integers(1, 25), st.integers(0, 2**32))
def test_no_deadlock_and_bounded_staleness(chosen: StyleConfig, last: int, seed: int) -> None:
    """A simulated run in a random order of events; the buffer holds as many steps as the style allows."""
    draw = random.Random(seed)
    capacity = chosen.max_buffered_steps or draw.randint(1, 4)
    explored = trained = 0
    versions_there, asked, answered = {0}, 0, 0
    waiting: list[int] = []
    while trained < last:
        moves = []
        if explored < last and len(waiting) < capacity:
            step = explored + 1
            if requests_weights(chosen, step) and asked < step:
                asked = step
            fits = version_window(chosen, step).select_newest(sorted(versions_there))
            if fits is not None and answered >= asked:
                moves.append("explore")
        if waiting:
            moves.append("train")
        if asked > answered:
            moves.append("answer")
        assert moves, "neither process can proceed"
        match draw.choice(moves):
            case "explore":
                explored += 1
                waiting.append(version_window(chosen, explored).select_newest(sorted(versions_there)) or 0)
            case "train":
                version = waiting.pop(0)
                staleness = trained - version
                trained += 1
                if isinstance(chosen, FixedStyleConfig):
                    assert staleness <= chosen.max_lead.count + chosen.every.count - 1
                if isinstance(chosen, BoundedStyleConfig):
                    assert staleness <= chosen.max_staleness.count
                if publishes_after(chosen, trained, last):
                    versions_there.add(trained)
            case "answer":
                versions_there.add(trained)
                answered = asked
    assert last in versions_there, "the last weights are always published"


@pytest.mark.parametrize(
    ("chosen", "there", "taken", "expected"),
    [
        (style("fixed"), [3, 4, 5], 4, [4, 5]),
        (style("fixed"), [1, 2], 0, [1, 2]),
        (style("bounded"), [3, 4, 5], 3, [3, 5]),
        (style("bounded"), [4, 5], 3, [5]),
        (style("latest"), [2, 4], 4, [4]),
        (style("on_request"), [], 0, []),
    ],
)
def test_retained_versions(chosen: StyleConfig, there: list[int], taken: int, expected: list[int]) -> None:
    assert retained_versions(chosen, there, taken) == expected
