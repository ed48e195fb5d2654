"""Fixtures that exist once: the model of these tests, and groups of rank processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strop.errors import StropError
from strop.models.tiny import make_model
from strop.training.ranks.group import RankGroup
from strop.training.ranks.rank import Rank

CORPUS = ("one and one is two",)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with 4 attention heads."""
    return make_model(tmp_path_factory.mktemp("model") / "model", CORPUS, vocab_size=280, hidden_size=32)


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger model with the same tokenizer."""
    path = tmp_path_factory.mktemp("teacher") / "model"
    return make_model(path, CORPUS, vocab_size=280, hidden_size=64, layers=3, seed=1)


def answer(rank: Rank) -> None:
    """An operation without an effect."""


class RankPool:
    """Groups of ranks whose processes all tests use that want this number of ranks, one group at a time."""

    def __init__(self) -> None:
        self._group: RankGroup | None = None

    def __call__(self, count: int) -> RankGroup:
        """The group that runs, if it has as many ranks and all of them answer, or a new one."""
        if self._group is not None and not (self._group.ranks == count and self._answers(self._group)):
            self.close()
        if self._group is None:
            self._group = RankGroup(count, "cpu")
        return self._group

    def close(self) -> None:
        """End the group that runs."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _answers(self, group: RankGroup) -> bool:
        try:
            group.run(answer)
        except StropError:
            return False
        return True


@pytest.fixture(scope="package")
def ranks() -> Iterator[RankPool]:
    """The ranks of this folder's tests. A process joins one group at a time, so they end with the folder."""
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def pair(ranks: RankPool) -> RankGroup:
    """Two ranks."""
    return ranks(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of this folder that use ranks last, in the order of their `xdist_group`."""
    here = Path(__file__).parent
    places = [number for number, item in enumerate(items) if here in item.path.parents]
    ordered = sorted((items[number] for number in places), key=_group_name)
    for number, item in zip(places, ordered, strict=True):
        items[number] = item


def _group_name(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    return "" if marker is None else str(marker.args[0])
