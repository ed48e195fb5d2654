"""Rollouts without a gradient are not computed, and the weights are those of the full computation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strop.models.tiny import make_model
from strop.protocols import TokenQuantity
from strop.run.optimize.minibatches import Minibatch, make_minibatches
from strop.training.engine import PolicyEngine
from strop.training.ranks.rank import SingleRank
from strop.training.specs import PolicySpec
from strop.types import Experience, FloatArray, ImageReference
from tests.models.models import experience
from tests.run.zero_advantages import ZERO_ADVANTAGES, update_on_groups
from tests.training.test_local_engine import make_run, same, weights

LOSSES: dict[str, dict[str, Any]] = {
    "clip": {},
    "gspo, per sequence": {"policy_loss": "gspo", "aggregation": "seq-mean-token-mean"},
    "clip_cov": {"policy_loss": {"type": "clip_cov", "token_fraction": 0.2, "covariance_low": -1}},
    "m2po": {"policy_loss": {"type": "m2po", "max_second_moment": 1e-4}},
    "weights and rejection": {
        "importance_correction": {"normalize": True},
        "rejection": [{"low": 0.7, "high": 1.4}],
        "aggregation": "seq-mean-token-mean",
    },
    "gpg by the sampler": {
        "policy_loss": "gpg",
        "old_policy": "sampler",
        "importance_correction": {"normalize": True, "level": "sequence"},
    },
}
COMPUTED = {
    "kl loss": {"kl_loss": {"coef": 0.1}},
    "kl loss, gspo": {
        "kl_loss": {"coef": 0.1},
        "policy_loss": "gspo",
        "aggregation": "seq-mean-token-mean",
        "importance_correction": {},
    },
    "full kl loss": {"kl_loss": {"coef": 0.1, "estimator": "full"}},
    "entropy bonus": {"entropy_coef": 0.1},
}
RATIOS_READ = {
    "kl loss by the ratio": {"kl_loss": {"coef": 0.1, "weight_by_ratio": True}},
    "regularizer": {"policy_loss": {"type": "dro"}},
    "kl loss and rejection": {"kl_loss": {"coef": 0.1}, "rejection": [{"low": 0.7, "high": 1.4}]},
}
OF_OLD_POLICY = ("ratio/", "approx_kl", "clip_fraction", "logprob_diff/", "importance/")
"""Metrics that are means over the targets that are compared with the old policy."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


class CountingEngine(PolicyEngine):
    """Counts the sequences of its passes."""

    trained = scored = of_reference = 0

    def forward_backward(self, batch: Any, *args: Any) -> Mapping[str, float]:
        self.trained += len(batch.experiences)
        return super().forward_backward(batch, *args)

    def token_values(
        self, experiences: Sequence[Experience], quantity: TokenQuantity, **keywords: Any
    ) -> list[FloatArray]:
        if quantity == "reference_logprobs":
            self.of_reference += len(experiences)
        elif quantity == "logprobs":
            self.scored += len(experiences)
        return super().token_values(experiences, quantity, **keywords)


def updated(
    folder: Path,
    algorithm: dict[str, Any],
    *,
    skip: bool,
    microbatch: str = "60 tokens",
    epochs: int = 2,
    known: bool = True,
) -> tuple[CountingEngine, Mapping[str, float]]:
    trainer = {
        "optimizer": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1},
        "engine": {"device": "cpu"},
        "microbatch": microbatch,
        "epochs_per_step": epochs,
    }
    run = make_run(folder, algorithm={"type": "grpo", "rollouts_per_task": 4, **algorithm}, trainer=trainer)
    engine = CountingEngine(SingleRank(torch.device("cpu")), PolicySpec.of(run), "")
    return engine, update_on_groups(engine, run, skip=skip, known=known)


def close(first: PolicyEngine, second: PolicyEngine) -> None:
    """Up to rounding: AdamW divides a gradient near zero by its own size, and processors add in other orders."""
    torch.testing.assert_close(weights(first.policy), weights(second.policy), rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("algorithm", LOSSES.values(), ids=LOSSES)
def test_the_weights_are_those_of_the_full_computation(folder: Path, algorithm: dict[str, Any]) -> None:
    """Two of the six updates of a step have no gradient at all: they move the weights by momentum and decay."""
    full, expected = updated(folder, algorithm, skip=False)
    engine, metrics = updated(folder, algorithm, skip=True)
    close(engine, full)
    assert full.trained == 2 * 2 * 12
    # In the update without a gradient, one sequence is computed.
    assert engine.trained == full.trained - 2 * 2 * (ZERO_ADVANTAGES - 1)
    assert engine.scored <= full.scored
    assert metrics["skipped_sequences"] == pytest.approx((ZERO_ADVANTAGES - 1) / 3)
    assert expected["skipped_sequences"] == 0
    for name in ("loss", "policy_loss", "grad_norm", "advantages/mean", "updates"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5)


def test_the_size_of_micro_batches_changes_nothing(folder: Path) -> None:
    full, _ = updated(folder, {}, skip=False)
    for microbatch in ("1 sequences", "10000 tokens"):
        close(updated(folder, {}, skip=True, microbatch=microbatch)[0], full)


def test_old_logprobs_are_those_of_computed_rollouts_only(folder: Path) -> None:
    """The first of the three updates of an epoch needs none; in it every ratio is 1, so that the mean over too many
    targets would be below 1."""
    engine, metrics = updated(folder, {}, skip=True, epochs=1)
    assert engine.scored == 2 * (1 + 4)
    assert updated(folder, {}, skip=False, epochs=1)[0].scored == 2 * (4 + 4)
    assert metrics["ratio/mean"] == pytest.approx(1, abs=0.1)
    assert metrics["entropy"] == pytest.approx(math.log(280), rel=0.1)


def without(metrics: Mapping[str, float], *prefixes: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", *prefixes))}


@pytest.mark.parametrize("name", [*COMPUTED, *RATIOS_READ])
def test_another_term_of_the_loss_computes_everything_but_old_logprobs_that_it_does_not_read(
    folder: Path, name: str
) -> None:
    """The second and third of a step's three updates compare 1 and 4 of their sequences with the old policy, and the
    weights are equal bit for bit."""
    algorithm = (COMPUTED | RATIOS_READ)[name]
    full, expected = updated(folder, algorithm, skip=False, epochs=1)
    engine, metrics = updated(folder, algorithm, skip=True, epochs=1)
    assert same(weights(engine.policy), weights(full.policy))
    assert (engine.trained, engine.of_reference) == (full.trained, full.of_reference)
    if name in COMPUTED:
        assert (engine.scored, full.scored) == (2 * (1 + 4), 2 * (4 + 4))
        assert without(metrics, *OF_OLD_POLICY) == without(expected, *OF_OLD_POLICY)
    else:
        assert engine.scored == full.scored
        assert without(metrics) == without(expected)
    assert metrics["skipped_sequences"] == 0
    assert metrics.keys() == expected.keys()


def test_the_reference_computes_what_updates_compute(folder: Path) -> None:
    """Groups that are dropped for equal rewards need no reference; a penalty in the reward needs it of all."""
    dropping = {"kl_loss": {"coef": 0.1}, "min_reward_std": 0.1}
    assert updated(folder, dropping, skip=True, epochs=1)[0].of_reference == 2 * 8
    in_reward = {"kl_reward": {"coef": 0.1}, "min_reward_std": 0.1}
    assert updated(folder, in_reward, skip=True, epochs=1)[0].of_reference == 2 * 12


def test_an_unknown_old_policy_is_computed_where_it_is_compared(folder: Path) -> None:
    """Under `old_policy: sampler` the first update is compared, too, where the sampler gave no log-probs."""
    algorithm = {"old_policy": "sampler"}
    full, expected = updated(folder, algorithm, skip=False, epochs=1, known=False)
    engine, metrics = updated(folder, algorithm, skip=True, epochs=1, known=False)
    close(engine, full)
    assert full.scored == 2 * 12
    assert engine.scored == 2 * (2 + 1 + 4)
    assert metrics["policy_loss"] == pytest.approx(expected["policy_loss"], rel=1e-3, abs=1e-6)


def planned(advantages: Sequence[Sequence[float]], *experiences: Experience | None) -> Minibatch:
    (found,) = make_minibatches(
        [list(range(len(experiences)))],
        experiences,
        [np.array(each, dtype=np.float32) for each in advantages],
        skip_zero_advantages=True,
        skip_zero_ratios=True,
    )
    return found


SHORT, LONG = experience([3], [4]), experience([3], [4, 5])
WITH_IMAGE = replace(LONG, media=(ImageReference("digest", Path("image.png"), 8, 8),))


def test_members_count_and_only_a_gradient_is_computed() -> None:
    found = planned([[0, 0], [0, 0, -0.0], [0, 0, 0.5]], SHORT, None, LONG)
    assert found == Minibatch(members=(0, 1, 2), trained=(0, 2), computed=(2,), compared=(2,))


@pytest.mark.parametrize(
    ("advantages", "experiences", "computed"),
    [
        # An advantage outside the loss mask gives no gradient.
        ([[0, 1], [1, 0, 0]], (SHORT, LONG), (0,)),
        # The shortest sequence is computed where none has a gradient.
        ([[0, 0, 0], [0, 0], [0, 0]], (LONG, SHORT, SHORT), (1,)),
        # So is one with images: otherwise the vision tower would have no gradient, and the optimizer would skip it.
        ([[0, 1], [0, 0, 0]], (SHORT, WITH_IMAGE), (0, 1)),
        ([[0, 0], [0, 0, 0]], (SHORT, WITH_IMAGE), (0, 1)),
        ([[0, 0], [0, 1, 0]], (SHORT, WITH_IMAGE), (1,)),
    ],
)
def test_which_sequences_are_computed(advantages: Any, experiences: Any, computed: tuple[int, ...]) -> None:
    assert planned(advantages, *experiences).computed == computed


def test_an_update_without_a_target_is_left_out_and_what_is_computed_need_not_be_compared() -> None:
    ones = [np.ones(2, dtype=np.float32)]
    assert make_minibatches([[0]], [None], ones, skip_zero_advantages=True, skip_zero_ratios=True) == []
    advantages = [np.array(each, dtype=np.float32) for each in ([0, 0], [0, 0, 0.5])]
    skips = {"skip_zero_advantages": False, "skip_zero_ratios": True}
    (found,) = make_minibatches([[0, 1]], [SHORT, LONG], advantages, **skips)
    assert (found.computed, found.compared) == ((0, 1), (1,))
