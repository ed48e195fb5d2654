"""Several teachers of one micro-batch: each target has the distribution of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from strop.models.chunked_head import FrozenStates
from strop.training.trained_models import RoutedStates
from strop.transfers import Positions


def test_each_position_has_the_log_probs_of_its_teacher() -> None:
    """The second teacher has a larger vocabulary, of which the first tokens count; the last position has no teacher."""
    torch.manual_seed(0)
    teachers = tuple(
        FrozenStates(torch.randn(6, 4), nn.Linear(4, vocabulary, bias=False)) for vocabulary in (7, 9)
    )
    rows = Positions.of(np.array([0, 1, 3, 5]), "cpu")
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0])
    found = RoutedStates(teachers, np.array([1, 0, 0, 1, 0, -1])).logprobs(rows, temperature)
    alone = [each.logprobs(rows, temperature)[:, :7] for each in teachers]
    torch.testing.assert_close(found[:3], torch.stack([alone[1][0], alone[0][1], alone[1][2]]))
    assert not found[3].any()
