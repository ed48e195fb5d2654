"""Groups for buffers, and their exact comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields

import numpy as np

from strop.types import Experience, ExperienceGroup, ImageReference


def make_group(id: str, *, version: int = 0, experiences: int = 2, tokens: int = 6) -> ExperienceGroup:
    """A small group whose numbers depend on its id."""
    draw = np.random.default_rng(list(id.encode()))
    return ExperienceGroup(id, tuple(_experience(id, i, version, tokens, draw) for i in range(experiences)))


def make_groups(count: int, *, prefix: str = "g", version: int = 0) -> list[ExperienceGroup]:
    """Groups `g0`, `g1`, ..."""
    return [make_group(f"{prefix}{i}", version=version) for i in range(count)]


def ids(groups: Iterable[ExperienceGroup]) -> list[str]:
    """Their ids."""
    return [group.id for group in groups]


def assert_same(found: Sequence[ExperienceGroup], expected: Sequence[ExperienceGroup]) -> None:
    """Every field of every experience is equal bit for bit (any NaN equals any other), and of the same type."""
    assert ids(found) == ids(expected)
    for one, other in zip(found, expected, strict=True):
        assert len(one.experiences) == len(other.experiences)
        for mine, theirs in zip(one.experiences, other.experiences, strict=True):
            for name in (field.name for field in fields(Experience)):
                assert_equal(getattr(mine, name), getattr(theirs, name), name)


def assert_equal(found: object, expected: object, where: str) -> None:
    """Like ==, but NaN equals NaN, -0.0 is not 0.0, and types count, inside containers too."""
    assert type(found) is type(expected), where
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert _bits(found) == _bits(expected), where
    elif isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for mine, theirs in zip(found, expected, strict=True):
            assert_equal(mine, theirs, where)
    elif isinstance(found, dict) and isinstance(expected, dict):
        assert_equal(list(found.items()), list(expected.items()), where)
    elif isinstance(found, ImageReference) and isinstance(expected, ImageReference):
        assert astuple(found) == astuple(expected), where  # == compares digests alone
    elif isinstance(found, float) and isinstance(expected, float):
        assert _bits(np.array(found)) == _bits(np.array(expected)), where
    else:
        assert found == expected, where


def _bits(array: np.ndarray) -> bytes:
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()


def _experience(group: str, index: int, version: int, tokens: int, draw: np.random.Generator) -> Experience:
    mask = np.arange(tokens) >= tokens // 2
    return Experience(
        id=f"{group}-{index}.0",
        task_id=f"task of {group}",
        group=group,
        index=index,
        turn=0,
        token_ids=draw.integers(0, 32000, tokens).astype(np.int32),
        loss_mask=mask,
        sampler_logprobs=np.where(mask, -draw.random(tokens), 0).astype(np.float32),
        policy_logprobs=np.where(mask, -draw.random(tokens), 0).astype(np.float32),
        reward=float(draw.random()),
        status="ok",
        temperature=1.0,
        versions=(version,),
        source="test",
    )
