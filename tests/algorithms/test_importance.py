"""Truncated importance sampling between sampler and trainer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.importance import ImportanceWeights, compute_importance_weights
from strop.config.schema.off_policy import ImportanceCorrectionConfig
from tests.algorithms.batches import make_batch

# Two answers of two tokens and one. The trainer's probability over the sampler's: 4, 1/2 and 3.
TARGETS = TargetTokens.of(make_batch([(1, 2), (2, 1)]))
SAMPLER = torch.tensor([0.2, 0.6, 0.1]).log()
TRAINER = torch.tensor([0.8, 0.3, 0.3]).log()


def run(level: str, cap: float) -> ImportanceWeights:
    config = ImportanceCorrectionConfig.model_validate({"level": level, "cap": cap})
    return compute_importance_weights(TRAINER, SAMPLER, TARGETS, config)


@pytest.mark.parametrize(
    ("level", "cap", "weights", "capped"),
    [
        ("token", 9.0, [4, 0.5, 3], [False, False, False]),
        ("token", 2.0, [2, 0.5, 2], [True, False, True]),
        # The first answer's weight is 4 * 1/2 = 2.
        ("sequence", 9.0, [2, 2, 3], [False, False, False]),
        ("sequence", 2.5, [2, 2, 2.5], [False, False, True]),
        ("geometric", 9.0, [2**0.5, 2**0.5, 3], [False, False, False]),
    ],
)
def test_by_hand(level: str, cap: float, weights: list[float], capped: list[bool]) -> None:
    found = run(level, cap)
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.capped.tolist() == capped


@pytest.mark.parametrize(
    ("level", "weights"), [("token", [0, 0, 3]), ("sequence", [2, 2, 3]), ("geometric", [0, 0, 3])]
)
def test_weights_outside_the_bounds_of_icepop_are_0(level: str, weights: list[float]) -> None:
    config = ImportanceCorrectionConfig.model_validate({"level": level, "floor": 1.5, "cap": 3.5})
    found = compute_importance_weights(TRAINER, SAMPLER, TARGETS, config)
    assert found.weights.tolist() == pytest.approx(weights)
    assert found.capped.tolist() == [weight == 0 for weight in weights]


@pytest.mark.parametrize(
    ("level", "mean"),
    [("token", (4 + 0.5 + 3) / 3), ("sequence", (2 + 3) / 2), ("geometric", (2**0.5 + 3) / 2)],
)
def test_the_mean_is_over_tokens_or_over_responses(level: str, mean: float) -> None:
    config = ImportanceCorrectionConfig.model_validate({"level": level, "cap": 9})
    found = compute_importance_weights(TRAINER, SAMPLER, TARGETS, config)
    assert found.mean(TARGETS, config) == pytest.approx(mean)


def test_weights_that_are_all_0_are_not_normalized() -> None:
    config = ImportanceCorrectionConfig(floor=10, cap=20, normalize=True)
    found = compute_importance_weights(TRAINER, SAMPLER, TARGETS, config)
    assert found.mean(TARGETS, config) == 1


def test_weights_have_no_gradient() -> None:
    trainer = TRAINER.clone().requires_grad_()
    assert not compute_importance_weights(
        trainer, SAMPLER, TARGETS, ImportanceCorrectionConfig()
    ).weights.requires_grad


@given(st.sampled_from(["token", "sequence"]), st.integers(0, 99))
def test_equal_policies_need_no_correction(level: str, seed: int) -> None:
    same = torch.randn(3, generator=torch.Generator().manual_seed(seed)) - 2
    config = ImportanceCorrectionConfig.model_validate({"level": level})
    assert compute_importance_weights(same, same, TARGETS, config).weights.tolist() == [1, 1, 1]


def test_sequence_weights_give_the_expectation_under_the_trainer() -> None:
    """Over all answers of two tokens from three: E under the sampler of w f is E under the trainer of f."""
    generator = torch.Generator().manual_seed(1)
    sampler, trainer = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    worth = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    batch = make_batch([(1, 2)] * 9)
    first, second = torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")
    drawn = torch.stack([first.flatten(), second.flatten()], 1)
    places = torch.arange(2).expand(9, 2)
    found = compute_importance_weights(
        trainer[places, drawn].flatten(),
        sampler[places, drawn].flatten(),
        TargetTokens.of(batch),
        ImportanceCorrectionConfig(level="sequence", cap=1e9),
    )
    weights = found.weights.view(9, 2)[:, 0]
    under_sampler = (sampler[places, drawn].sum(1).exp() * weights * worth.flatten()).sum()
    under_trainer = (trainer[places, drawn].sum(1).exp() * worth.flatten()).sum()
    torch.testing.assert_close(under_sampler, under_trainer)


def test_a_ratio_beyond_float32_counts_as_the_cap() -> None:
    found = compute_importance_weights(
        TRAINER + 200, replace_first(SAMPLER), TARGETS, ImportanceCorrectionConfig(level="sequence")
    )
    assert found.weights.tolist() == [2, 2, 2]


def replace_first(logprobs: torch.Tensor) -> torch.Tensor:
    """A sampled token with a probability near 0."""
    return torch.cat([torch.tensor([-150.0]), logprobs[1:]])
