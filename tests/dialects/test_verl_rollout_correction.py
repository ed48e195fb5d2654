"""Tests of verl's corrections for the difference between sampler and trainer, in all spellings."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.schema.off_policy import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.verl.ppo_trainer import LEDGER, read_verl
from strop.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
AT = "algorithm.rollout_correction"
BASE = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "data.val_files=null")


def algorithm(*overrides: str) -> Any:
    return read_verl([*BASE, *overrides], here=True).run.algorithm


def rule(over: str, low: float | None = None, high: float | None = None, estimator: str = "k1") -> Any:
    return RejectionRuleConfig.model_validate(
        {"estimator": estimator, "over": over, "low": low, "high": high}
    )


@pytest.mark.parametrize(
    ("overrides", "level", "cap", "floor", "normalize"),
    [
        ([f"{AT}.rollout_is=token"], "token", 2, None, False),
        ([f"{AT}.rollout_is=sequence", f"{AT}.rollout_is_threshold='3.5'"], "sequence", 3.5, None, False),
        ([f"{AT}.rollout_is=token", f"{AT}.rollout_is_threshold='0.5_5.0'"], "token", 5, 0.5, False),
        (
            [f"{AT}.rollout_is=sequence", f"{AT}.rollout_is_batch_normalize=True"],
            "sequence",
            2,
            None,
            True,
        ),
        (["actor_rollout_ref.actor.tis_imp_ratio_cap=3"], "token", 3, None, False),
        (
            [
                "algorithm.rollout_is=True",
                "algorithm.rollout_is_threshold=4",
                "algorithm.rollout_is_level=geometric",
                "algorithm.rollout_is_mode=mask",
            ],
            "geometric",
            4,
            0.25,
            False,
        ),
    ],
)
def test_importance_weights(
    overrides: list[str], level: Any, cap: float, floor: float | None, normalize: bool
) -> None:
    expected = ImportanceCorrectionConfig(level=level, cap=cap, floor=floor, normalize=normalize)
    assert algorithm(*overrides).importance_correction == expected


@pytest.mark.parametrize(
    ("overrides", "rules"),
    [
        # A single threshold means the ratios between 1 / threshold and threshold.
        (["rollout_rs=token_k1", "rollout_rs_threshold=2"], [rule("token", 0.5, 2.0)]),
        # verl compares -log(trainer / sampler), so that the bounds are those of the inverse ratio.
        (
            ["rollout_rs='token_k1,seq_max_k2'", "rollout_rs_threshold='0.5_1.6,2.5'"],
            [rule("token", 0.625, 2.0), rule("max", high=2.5, estimator="k2")],
        ),
        (
            ["rollout_rs='seq_sum_k3,seq_mean_k3'", "rollout_rs_threshold=0.01"],
            [rule("sum", high=0.01, estimator="k3"), rule("mean", high=0.01, estimator="k3")],
        ),
        # Modes of 0.6.1 and 0.7.0.
        (
            ["rollout_rs=geometric", "rollout_rs_threshold=1.01", "rollout_rs_threshold_lower=0.98"],
            [rule("mean", 0.98, 1.01)],
        ),
        (["rollout_rs=sequence", "rollout_rs_threshold=4"], [rule("sum", 0.25, 4.0)]),
        (["rollout_token_veto_threshold=1e-4"], [rule("max", 1e-4)]),
        (["rollout_rs=null", "rollout_token_veto_threshold=null"], []),
    ],
)
def test_rejection(overrides: list[str], rules: list[RejectionRuleConfig]) -> None:
    assert list(algorithm(*(f"{AT}.{word}" for word in overrides)).rejection) == rules


def test_a_veto_of_verl_0_6_0_is_on_by_default() -> None:
    found = algorithm("algorithm.rollout_is=True", "algorithm.rollout_is_threshold=2")
    assert list(found.rejection) == [rule("max", 1e-4)]
    assert algorithm("algorithm.rollout_is_threshold=2").importance_correction is None, "metrics only"


def test_bypass_mode_clips_the_ratio_to_the_sampler_and_applies_no_weights() -> None:
    found = algorithm(f"{AT}.bypass_mode=True", f"{AT}.rollout_is=token")
    assert (found.old_policy, found.policy_loss.type, found.importance_correction) == (
        "sampler",
        "clip",
        None,
    )


@pytest.mark.parametrize("word", ["loss_type=reinforce", "use_policy_gradient=True"])
def test_bypass_mode_without_clipping_weighs_the_plain_gradient(word: str) -> None:
    found = algorithm(f"{AT}.bypass_mode=True", f"{AT}.{word}", f"{AT}.rollout_is=sequence")
    assert (found.old_policy, found.policy_loss.type) == ("sampler", "gpg")
    assert found.importance_correction.level == "sequence"


def test_without_the_samplers_logprobs_nothing_is_corrected() -> None:
    found = algorithm(
        f"{AT}.rollout_is=token",
        f"{AT}.rollout_rs=token_k2",
        f"{AT}.rollout_rs_threshold=1",
        "actor_rollout_ref.rollout.calculate_log_probs=False",
    )
    assert (found.importance_correction, found.rejection) == (None, ())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{AT}.rollout_rs=token_k4", f"{AT}.rollout_rs_threshold=1"], "has the mode token_k4; verl has"),
        ([f"{AT}.rollout_rs=token_k1"], "needs rollout_rs_threshold"),
        ([f"{AT}.rollout_rs='token_k1,token_k2'", f"{AT}.rollout_rs_threshold='1,2,3'"], "3 thresholds"),
        ([f"{AT}.rollout_rs=token_k2", f"{AT}.rollout_rs_threshold='1_2.5'"], "single upper bound"),
        ([f"{AT}.rollout_is=token", f"{AT}.rollout_is_threshold=high"], "not a number"),
        (
            [f"{AT}.rollout_is=token", "actor_rollout_ref.actor.tis_imp_ratio_cap=2"],
            "write only algorithm.rollout_correction.rollout_is",
        ),
    ],
)
def test_refused_with_a_reason(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{AT}.rollout_is=token", f"{AT}.rollout_is_threshold='0.5_5.0'"],
        [
            f"{AT}.rollout_is=sequence",
            f"{AT}.rollout_is_batch_normalize=True",
            f"{AT}.rollout_rs='token_k1,seq_mean_k3'",
            f"{AT}.rollout_rs_threshold='0.6_1.7,0.02'",
        ],
        [f"{AT}.bypass_mode=True", f"{AT}.loss_type=reinforce", f"{AT}.rollout_is=token"],
    ],
)
def test_written_keys_are_read_as_the_same_algorithm(overrides: list[str]) -> None:
    run = read_verl([*BASE, *overrides], here=True).run
    written = write_dialect(LEDGER, run)
    assert not [difference for difference in written.unsupported if difference.field.startswith("algorithm.")]
    values = written.values.items()
    words = [f"{key}={value!r}" for key, value in values if key.startswith((AT, f"{ACTOR}.policy_loss"))]
    assert algorithm(*words) == run.algorithm
