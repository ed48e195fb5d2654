"""The gradients of two processes with half of the micro-batches each add up to that of one, for every loss."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from strop.models.tiny import make_model
from tests.training.gradient_sum_worker import cases, gradients

pytestmark = pytest.mark.slow
NAMES = [*cases(), "value"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients of one process, and of two processes, for all cases."""
    folder = tmp_path_factory.mktemp("two")
    model = make_model(folder / "model", ["one and one is two"], vocab_size=280, hidden_size=32)
    command = [
        sys.executable,
        "-m",
        "tests.training.gradient_sum_worker",
        model,
        folder / "sums",
        folder / "meet",
    ]
    both = [
        subprocess.Popen(
            [*command, str(rank), "2"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    alone = gradients(model, 0, 1)
    for process in both:
        _, said = process.communicate()
        assert process.returncode == 0, said
    return alone, load_file(folder / "sums")


@pytest.mark.parametrize("name", NAMES)
def test_the_sum_over_two_processes_is_the_gradient_of_one(
    found: tuple[dict[str, Tensor], dict[str, Tensor]], name: str
) -> None:
    alone, together = found
    expected = alone[f"{name}: gradient"]
    assert expected.norm() > 1e-4
    assert (together[f"{name}: gradient"] - expected).norm() < 1e-5 * expected.norm()
    torch.testing.assert_close(together[f"{name}: metrics"], alone[f"{name}: metrics"], rtol=1e-4, atol=1e-6)


def test_all_cases_have_different_gradients(found: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    """Every option has an effect."""
    alone, _ = found
    norms = sorted(float(alone[f"{name}: gradient"].norm()) for name in NAMES)
    assert all(high > low * (1 + 1e-6) for low, high in pairwise(norms))
