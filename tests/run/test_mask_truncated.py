"""Responses and tokens without a loss: `algorithm.mask_truncated` and `algorithm.entropy_filter`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from strop.algorithms.registry import LossSpec
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.policy_gradient import Aggregation, EntropyFilterConfig
from strop.config.schema.trainer import TrainerConfig
from strop.config.units import Amount
from strop.data.packing import pack
from strop.protocols import TokenQuantity
from strop.run.optimize.policy_optimizer import StepBatch
from strop.types import Experience, ExperienceGroup, FloatArray, GlobalCounts, TokenOutputs, TrainingBatch
from tests.run.test_advantage_inputs import experience
from tests.run.zero_advantages import rollout_updater


class RecordingEngine:
    """Keeps what it is asked to train on; every log-prob is 0."""

    def __init__(self) -> None:
        self.batches: list[TrainingBatch] = []
        self.losses: list[float] = []

    def set_lr(self, lr: float) -> None:
        """Nothing to set."""

    def forward_backward(
        self, batch: TrainingBatch, loss: LossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        assert counts is not None
        (micro_batch,) = pack(batch, Amount(9, "sequences"), share_prompts=False, device="cpu")
        nothing = micro_batch.advantages * 0
        result = loss.build()(micro_batch, TokenOutputs(nothing, entropy=nothing), counts)
        self.batches.append(batch)
        self.losses.append(float(result.loss))
        return {"loss": self.losses[-1]}

    def token_values(self, experiences: Sequence[Experience], quantity: TokenQuantity) -> list[FloatArray]:
        """The first target of each response is unlikely; all have the same entropy."""
        found = []
        for each in experiences:
            common = 0.3 if quantity == "entropies" else math.log(0.9)
            values = np.full(len(each.token_ids), common, dtype=np.float32)
            if quantity != "entropies":
                values[each.prompt_tokens] = math.log(0.1)
            found.append(values)
        return found

    def step(self) -> float:
        return 1.0


# Rewards 1, 0 and 1/2 of responses with 2, 1 and 3 targets; the last one is cut off.
GROUP = ExperienceGroup(
    "a",
    (
        experience("a", 0, [0, 1, 1], 1.0),
        experience("a", 1, [0, 1], 0.0),
        replace(experience("a", 2, [0, 1, 1, 1], 0.5), status="truncated"),
    ),
)
CUT_OFF = ExperienceGroup("b", tuple(replace(e, group="b", status="truncated") for e in GROUP.experiences))


def trained(
    algorithm: GrpoConfig, *groups: ExperienceGroup, per_update: int | None = None
) -> tuple[RecordingEngine, int]:
    engine = RecordingEngine()
    trainer = TrainerConfig(
        tasks_per_step=len(groups), tasks_per_update=per_update, skip_zero_advantages=False
    )
    updater = rollout_updater(cast(Any, engine), algorithm, trainer)
    return engine, updater.update(StepBatch(groups), step=1, updates_done=0).updates


@pytest.mark.parametrize(
    ("aggregation", "loss"),
    [
        # Advantages 1/2, -1/2, 0 with the ratio 1, so each token's loss is -1/2 or 1/2.
        ("token-mean", -0.5 / 3),
        ("seq-mean-token-mean", 0.0),
        ("seq-mean-token-sum", -0.5 / 3),
        ("seq-mean-token-sum-norm", -0.5 / 48),
    ],
)
def test_a_truncated_response_counts_in_the_baseline_and_has_no_loss(
    aggregation: Aggregation, loss: float
) -> None:
    algorithm = GrpoConfig(divide_by_std=False, mask_truncated=True, aggregation=aggregation)
    engine, updates = trained(algorithm, GROUP)
    assert updates == 1
    (batch,) = engine.batches
    assert [e.index for e in batch.experiences] == [0, 1]
    assert batch.advantages is not None
    assert [float(cast(Any, each)[-1]) for each in batch.advantages] == [0.5, -0.5]
    assert engine.losses == [pytest.approx(loss)]


def test_it_is_trained_on_by_default() -> None:
    engine, _ = trained(GrpoConfig(divide_by_std=False), GROUP)
    assert [e.index for e in engine.batches[0].experiences] == [0, 1, 2]
    assert engine.losses == [pytest.approx(-0.5 / 6)]


def test_an_entropy_filter_leaves_tokens_out() -> None:
    """The only token of the second response has a negative advantage and is unlikely."""
    algorithm = GrpoConfig(divide_by_std=False, entropy_filter=EntropyFilterConfig(deviations=0.5))
    engine, _ = trained(algorithm, GROUP)
    (batch,) = engine.batches
    assert [(e.index, e.response_tokens) for e in batch.experiences] == [(0, 2), (2, 3)]


def test_an_update_of_truncated_responses_only_is_left_out() -> None:
    engine, updates = trained(GrpoConfig(mask_truncated=True), CUT_OFF, GROUP, per_update=1)
    assert updates == len(engine.batches) == 1
    assert trained(GrpoConfig(mask_truncated=True), CUT_OFF)[1] == 0
