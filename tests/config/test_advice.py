"""Values that are allowed and almost certainly mistakes."""

from __future__ import annotations

import pytest

from strop.config.checks.advice import unusual_values
from strop.config.load.loader import load_values


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        ({"type": "adamw", "lr": 3}, ["trainer.optimizer.lr"]),
        ({"type": "sgd", "lr": 3}, []),
        ({"type": "adamw", "lr": 1e-2}, []),
    ],
)
def test_learning_rates(optimizer: dict[str, object], keys: list[str]) -> None:
    values = {"model": {"path": "m"}, "data": {"train": {"path": "d"}}, "reward": "exact"}
    run = load_values({**values, "trainer": {"optimizer": optimizer}}).run
    advice = list(unusual_values(run))
    assert len(advice) == len(keys) and all(key in text for key, text in zip(keys, advice, strict=True))
    assert not keys or "Was 3e-6 meant?" in advice[0]
