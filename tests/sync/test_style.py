"""Which version a step is sampled with; and that explorer and trainer never wait for each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from strop.config.schema.parts import steps_ahead
from strop.config.schema.synchronizer import Fixed, Free, Style
from strop.sync.style import Window, asks, kept, publishes, window


def style(text: str, **steps: int) -> Style:
    values = {name: f"{count} steps" for name, count in steps.items()}
    return TypeAdapter(Style).validate_python({"type": text} | values)


def versions(chosen: Style, steps: int) -> list[int]:
    return [window(chosen, step).lowest for step in range(1, steps + 1)]


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
    chosen = style("fixed", every=every, ahead=ahead)
    assert versions(chosen, len(expected)) == expected
    assert all(window(chosen, s).highest == window(chosen, s).lowest for s in range(1, 9))


def test_fixed_is_trinitys_rule() -> None:
    for every in range(1, 6):
        for ahead in range(6):
            version, expected = 0, []
            for step in range(1, 40):
                expected.append(version)
                if step > ahead and (step - ahead) % every == 0:
                    version = step - ahead
            assert versions(style("fixed", every=every, ahead=ahead), 39) == expected


def test_free_takes_the_newest_that_is_not_too_old() -> None:
    chosen = style("free", max_staleness=2)
    assert versions(chosen, 6) == [0, 0, 0, 1, 2, 3]
    assert Window(2).newest([0, 1, 2, 5]) == 5
    assert Window(2).newest([0, 1]) is None
    assert Window(2, 2).newest([0, 2, 3]) == 2


@st.composite
def styles(draw: st.DrawFn) -> Style:
    kind = draw(st.sampled_from(["fixed", "trainer", "explorer", "free"]))
    every = draw(st.integers(1, 5))
    match kind:
        case "fixed":
            return style(kind, every=every, ahead=draw(st.integers(0, 5)))
        case "free":
            return style(kind, every=every, max_staleness=draw(st.integers(every - 1, 7)))
        case _:
            return style(kind, every=every)


@given(styles(), st.integers(1, 25), st.integers(0, 2**32))
def test_both_come_to_the_end_and_nothing_is_too_stale(chosen: Style, last: int, seed: int) -> None:
    """A run in small, in any order of events: the buffer holds as many steps as the style lets be ahead."""
    draw = random.Random(seed)
    capacity = steps_ahead(chosen) or draw.randint(1, 4)
    explored = trained = 0
    versions_there, asked, answered = {0}, 0, 0
    waiting: list[int] = []
    while trained < last:
        moves = []
        if explored < last and len(waiting) < capacity:
            step = explored + 1
            if asks(chosen, step) and asked < step:
                asked = step
            fits = window(chosen, step).newest(sorted(versions_there))
            if fits is not None and answered >= asked:
                moves.append("explore")
        if waiting:
            moves.append("train")
        if asked > answered:
            moves.append("answer")
        assert moves, "nobody can go on"
        match draw.choice(moves):
            case "explore":
                explored += 1
                waiting.append(window(chosen, explored).newest(sorted(versions_there)) or 0)
            case "train":
                version = waiting.pop(0)
                staleness = trained - version
                trained += 1
                if isinstance(chosen, Fixed):
                    assert staleness <= chosen.ahead.count + chosen.every.count - 1
                if isinstance(chosen, Free):
                    assert staleness <= chosen.max_staleness.count
                if publishes(chosen, trained, last):
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
        (style("free"), [3, 4, 5], 3, [3, 5]),
        (style("free"), [4, 5], 3, [5]),
        (style("trainer"), [2, 4], 4, [4]),
        (style("explorer"), [], 0, []),
    ],
)
def test_the_explorer_may_still_want(
    chosen: Style, there: list[int], taken: int, expected: list[int]
) -> None:
    assert kept(chosen, there, taken) == expected
