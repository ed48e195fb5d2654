"""Algorithm sections: the functions they select, and refused options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from strop.algorithms import advantages as of_answers
from strop.algorithms import registry, requirements
from strop.algorithms import token_advantages as of_tokens
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import AlgorithmConfig

ADAPTER: TypeAdapter[AlgorithmConfig] = TypeAdapter(AlgorithmConfig)
REWARDS, GROUP = torch.tensor([1.0, 0, 0.5, 2]), torch.tensor([0, 0, 0, 1])
SCORED = RolloutBatch(
    rewards=REWARDS,
    group=GROUP,
    tokens=torch.tensor([1, 3, 2, 2]),
    baselines=torch.tensor([0.5, 0.5, 0.5, 1]),
    sequences=torch.tensor([1, 3, 2, 1]),
)


def section(**values: Any) -> AlgorithmConfig:
    return ADAPTER.validate_python(values)


def found(scored: RolloutBatch = SCORED, **values: Any) -> torch.Tensor:
    return registry.compute_advantages(section(**values), scored, max_response_tokens=4)


@pytest.mark.parametrize(
    ("values", "per_rollout"),
    [
        ({"type": "grpo"}, of_answers.grpo(REWARDS, GROUP)),
        ({"type": "grpo", "std_epsilon": 0.5}, of_answers.grpo(REWARDS, GROUP, epsilon=0.5)),
        ({"type": "grpo", "divide_by_std": False}, of_answers.grpo(REWARDS, GROUP, divide_by_std=False)),
        (
            {"type": "grpo", "divide_by_sequences": True},
            of_answers.grpo(REWARDS, GROUP) / torch.tensor([1, 3, 2, 1]),
        ),
        ({"type": "grpo_passk"}, of_answers.grpo_passk(REWARDS, GROUP, k=8)),
        ({"type": "grpo_passk", "k": 2}, of_answers.grpo_passk(REWARDS, GROUP, k=2)),
        ({"type": "rloo"}, of_answers.rloo(REWARDS, GROUP)),
        ({"type": "opo"}, of_answers.opo(REWARDS, GROUP, SCORED.tokens)),
        ({"type": "gpg"}, of_answers.gpg(REWARDS, GROUP)),
        ({"type": "opmd"}, of_answers.grpo(REWARDS, GROUP, divide_by_std=False)),
        (
            {"type": "opmd", "baseline": {"type": "log_avg_exp", "tau": 0.5}},
            of_answers.opmd_log_avg_exp(REWARDS, GROUP, tau=0.5),
        ),
    ],
    ids=str,
)
def test_rollout_advantages_are_equal_for_all_tokens(
    values: dict[str, Any], per_rollout: torch.Tensor
) -> None:
    torch.testing.assert_close(found(**values), SCORED.expand_to_tokens(per_rollout).float())


def test_token_advantages() -> None:
    expected = of_tokens.reinforce_plus_plus(SCORED, gamma=0.5).float()
    torch.testing.assert_close(found(type="reinforce_plus_plus", gamma=0.5), expected)
    expected = of_tokens.reinforce_plus_plus_baseline(SCORED).float()
    torch.testing.assert_close(found(type="reinforce_plus_plus_baseline"), expected)
    torch.testing.assert_close(found(type="remax"), of_tokens.remax(SCORED).float())


def test_the_overlong_penalty_is_subtracted_from_the_reward() -> None:
    # A limit of 4 with a buffer of 2 and a factor of 2: lengths 1, 3, 2, 2 lose 0, 1, 0, 0.
    values = {"type": "rloo", "overlong_penalty": {"buffer_tokens": 2, "factor": 2.0}}
    expected = of_answers.rloo(REWARDS - torch.tensor([0.0, 1, 0, 0]), GROUP)
    torch.testing.assert_close(found(**values), SCORED.expand_to_tokens(expected).float())


def test_which_inputs_an_algorithm_needs() -> None:
    plain = section(type="grpo")
    assert not requirements.needs_reference_model(plain)
    assert requirements.needs_entropy(plain)
    assert not requirements.needs_greedy_baseline(plain)
    assert requirements.needs_reference_model(section(type="rloo", kl_loss={}))
    assert requirements.needs_reference_model(section(type="rloo", kl_reward={}))
    for key in ("kl_loss", "kl_reward"):
        full = section(type="rloo", **{key: {"estimator": "full"}})
        assert requirements.needs_reference_model(full) and not requirements.needs_reference_logprobs(full)
        assert requirements.needs_reference_logprobs(section(type="rloo", **{key: {}}))
        assert requirements.needs_divergence(full) == (key == "kl_loss")
    assert requirements.needs_greedy_baseline(section(type="remax"))


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("grpo", "clip"), ("gpg", "gpg"), ("opmd", "opmd"), ("remax", "clip"), ("reinforce_plus_plus", "clip")],
)
def test_default_policy_losses(kind: str, loss: str) -> None:
    assert section(type=kind).policy_loss.type == loss
    assert section(type=kind, policy_loss={}).policy_loss.type == loss
    assert section(type=kind, policy_loss="cispo").policy_loss.type == "cispo"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"type": "grpo", "rollouts_per_task": 1}, "leaves nothing to compare it with"),
        ({"type": "rloo", "rollouts_per_task": 1}, "leaves nothing to compare it with"),
        ({"type": "grpo_passk", "rollouts_per_task": 4, "k": 5}, "above rollouts_per_task"),
        ({"type": "grpo_passk", "k": 1}, "greater than or equal to 2"),
        ({"type": "remax", "dynamic_sampling": {}}, "every group of one response"),
        ({"type": "sft", "dynamic_sampling": {}}, "Extra inputs"),
        ({"type": "rloo", "divide_by_std": True}, "Extra inputs"),
        ({"type": "grpo", "policy_loss": {"type": "gpg", "clip_low": 0.1}}, "Extra inputs"),
        ({"type": "grpo", "kl_reward": {"estimator": "k4"}}, "estimator"),
        ({"type": "grpo", "overlong_penalty": {}}, "buffer_tokens"),
        ({"type": "nonesuch"}, "'grpo', 'grpo_passk'"),
    ],
    ids=str,
)
def test_options_without_effect_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        section(**values)


def test_one_rollout_per_task_is_enough_without_a_group_baseline() -> None:
    assert section(type="remax").rollouts_per_task == 1
    assert section(type="reinforce_plus_plus", rollouts_per_task=1).rollouts_per_task == 1
