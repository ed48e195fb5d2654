"""reduce_lr_on_plateau against torch's scheduler."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.plateau import PlateauState, update_plateau
from strop.config.schema.schedule import ReduceOnPlateauScheduleConfig

LR = 0.5


@given(
    values=st.lists(st.sampled_from([-1.0, -0.95, 0.0, 0.2, 0.21, 0.5, 0.9, 1.0]), min_size=1, max_size=40),
    mode=st.sampled_from(["max", "min"]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    threshold=st.sampled_from([0.0, 1e-4, 0.06]),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    min_ratio=st.sampled_from([0.0, 0.2]),
)
def test_it_matches_torch(values: list[float], min_ratio: float, **settings: object) -> None:
    schedule = ReduceOnPlateauScheduleConfig.model_validate(
        {**settings, "factor": 0.4, "min_ratio": min_ratio}
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        factor=0.4,
        min_lr=min_ratio * LR,
        eps=0,
        **settings,  # type: ignore[arg-type]
    )
    plateau = PlateauState()
    for value in values:
        theirs.step(value)
        plateau = update_plateau(schedule, plateau, value)
        assert LR * plateau.ratio == pytest.approx(optimizer.param_groups[0]["lr"])


def test_by_hand() -> None:
    """Patience 1: the second evaluation in a row that is no better cuts; the best value stays."""
    schedule = ReduceOnPlateauScheduleConfig(patience=1, factor=0.5)
    plateau = PlateauState()
    ratios = []
    for value in (0.3, 0.3, 0.2, 0.4, 0.4, 0.4):
        plateau = update_plateau(schedule, plateau, value)
        ratios.append(plateau.ratio)
    assert ratios == [1, 1, 0.5, 0.5, 0.5, 0.25]
    assert plateau.best == 0.4
