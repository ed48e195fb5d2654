"""Algorithm sections: the functions they select, and refused options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from strop.algorithms import advantages as of_answers
from strop.algorithms import advantages as of_tokens
from strop.algorithms import registry
from strop.algorithms.advantages import gigpo
from strop.algorithms.algorithm import RolloutBatch
from strop.algorithms.process_rewards import prime
from strop.config.load.loader import load_values
from strop.config.schema.algorithm import AlgorithmConfig, OfflineAlgorithmConfig
from strop.errors import ConfigError
from tests.algorithms.objectives import config_of, members

TAUGHT = "type: distillation, distillation: {teachers: [{path: t}], %s}"
MIXED = TAUGHT + ", demonstration_fraction: 0.5"
REWARDS, GROUP = torch.tensor([1.0, 0, 0.5, 2]), torch.tensor([0, 0, 0, 1])
SCORED = RolloutBatch(
    rewards=REWARDS,
    group=GROUP,
    tokens=torch.tensor([1, 3, 2, 2]),
    baselines=torch.tensor([0.5, 0.5, 0.5, 1]),
    sequences=torch.tensor([1, 3, 2, 1]),
    reward_parts=torch.tensor([[1.0, 0], [0, 3], [0, 0], [2, 1]]),
    gradient_norms=torch.arange(1.0, 9),
    process_rewards=torch.linspace(-1, 1, 8),
    turns=torch.tensor([0, 1, 1, 2, 3, 3, 4, 4]),
    turn_states=torch.tensor([0, 0, 1, 1, 0]),
)


def section(text: str) -> Any:
    """An `algorithm` section, as the run file has it between braces."""
    return config_of(yaml.safe_load(f"{{{text}}}"))


def found(text: str) -> torch.Tensor:
    return registry.compute_advantages(section(text), SCORED, max_response_tokens=4).advantages


@pytest.mark.parametrize(
    ("text", "per_rollout"),
    [
        ("type: grpo", of_answers.grpo(REWARDS, GROUP)),
        ("type: grpo, std_epsilon: 0.5", of_answers.grpo(REWARDS, GROUP, epsilon=0.5)),
        ("type: grpo, divide_by_std: false", of_answers.grpo(REWARDS, GROUP, divide_by_std=False)),
        ("type: grpo, std_over: step", of_answers.grpo(REWARDS, GROUP, std_over="step")),
        ("type: grpo, divide_by_sequences: true", of_answers.grpo(REWARDS, GROUP) / SCORED.sequences),
        ("type: mix, std_epsilon: 0.5", of_answers.grpo(REWARDS, GROUP, epsilon=0.5)),
        ("type: custom, loss: file.py:loss", of_answers.grpo(REWARDS, GROUP)),
        ("type: grpo_passk", of_answers.grpo_passk(REWARDS, GROUP, k=8)),
        ("type: grpo_passk, k: 2", of_answers.grpo_passk(REWARDS, GROUP, k=2)),
        ("type: rloo", of_answers.rloo(REWARDS, GROUP)),
        # A limit of 4 with a buffer of 2 and a factor of 2: lengths 1, 3, 2, 2 lose 0, 1, 0, 0.
        (
            "type: rloo, overlong_penalty: {buffer_tokens: 2, factor: 2.0}",
            of_answers.rloo(REWARDS - torch.tensor([0.0, 1, 0, 0]), GROUP),
        ),
        ("type: opo", of_answers.opo(REWARDS, GROUP, SCORED.tokens)),
        ("type: gpg", of_answers.gpg(REWARDS, GROUP)),
        ("type: gpg, scale: none", of_answers.gpg(REWARDS, GROUP, scale="none")),
        ("type: opmd", of_answers.grpo(REWARDS, GROUP, divide_by_std=False)),
        (
            "type: opmd, baseline: {type: log_avg_exp, tau: 0.5}",
            of_answers.opmd_log_avg_exp(REWARDS, GROUP, tau=0.5),
        ),
        ("type: reinforce", REWARDS),
        ("type: raft, min_reward: 1", torch.tensor([1, 0, 0, 1])),
        ("type: asymre", of_answers.asymre(REWARDS, GROUP, baseline_shift=-0.1)),
        (
            "type: online_dpo, beta: 0.5, train_ties: true",
            of_answers.preferred(REWARDS, GROUP, beta=0.5, train_ties=True),
        ),
        ("type: distillation, distillation: {teachers: [{path: t}], reward: {}}", torch.zeros(4)),
    ],
)
def test_rollout_advantages_are_equal_for_all_tokens(text: str, per_rollout: torch.Tensor) -> None:
    torch.testing.assert_close(found(text), SCORED.expand_to_tokens(per_rollout).float())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type: reinforce_plus_plus, gamma: 0.5", of_tokens.reinforce_plus_plus(SCORED, gamma=0.5)),
        ("type: reinforce_plus_plus_baseline", of_tokens.reinforce_plus_plus_baseline(SCORED)),
        ("type: remax", of_tokens.remax(SCORED)),
        ("type: optimal_token_baseline", of_tokens.optimal_token_baseline(SCORED)),
        (
            "type: gdpo, part_weights: [1, 2], divide_by_std: false, reward_parts: [a, b]",
            of_tokens.gdpo(SCORED, weights=[1, 2], divide_by_std=False),
        ),
        (
            "type: gigpo, turn_weight: 0.5, gamma: 0.9, states_over: step, divide_by_std: true",
            gigpo(SCORED, turn_weight=0.5, gamma=0.9, divide_by_std=True, states_over="step"),
        ),
        ("type: prime, outcome_coef: 1, process_coef: 2", prime(SCORED, outcome_coef=1, process_coef=2)),
    ],
)
def test_token_advantages(text: str, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found(text), expected.float())


QUERIES = {
    "reference": "needs_reference_model",
    "initial log-probs": "needs_initial_logprobs",
    "reference log-probs": "needs_reference_logprobs",
    "start log-probs": "needs_start_logprobs",
    "divergence": "needs_divergence",
    "teacher log-probs": "needs_teacher_logprobs",
    "teacher divergence": "teacher_divergence",
    "reward from log-probs": "reward_reads_logprobs",
    "greedy baseline": "needs_greedy_baseline",
    "turn states": "needs_turn_states",
    "gradient norms": "needs_gradient_norms",
    "entropy": "needs_entropy",
}
OF_ROLLOUTS = ("reference log-probs", "start log-probs", "teacher log-probs", "reward from log-probs")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("type: sft", ""),
        ("type: dpo", "initial log-probs"),
        ("type: dpo, reference_sync: {}", "reference"),
        ("type: kto", "reference, initial log-probs"),
        ("type: kto, loss: apo_zero_unpaired", "initial log-probs"),
        ("type: bco", "initial log-probs"),
        ("type: reward_model", ""),
        ("type: cpo", ""),
        ("type: orpo", ""),
        ("type: grpo", "entropy"),
        ("type: rloo, kl_loss: {}", "reference, reference log-probs, entropy"),
        ("type: rloo, kl_reward: {}", "reference, reference log-probs, reward from log-probs, entropy"),
        ("type: rloo, kl_loss: {estimator: full}", "reference, divergence, entropy"),
        ("type: rloo, kl_reward: {estimator: full}", "reference, entropy"),
        ("type: custom, loss: a.py:f, ref_logprobs: true", "reference, reference log-probs, entropy"),
        ("type: remax", "greedy baseline, entropy"),
        ("type: grpo, policy_loss: clip_cov", "start log-probs, entropy"),
        ("type: grpo, policy_loss: kl_cov", "start log-probs, entropy"),
        ("type: grpo, policy_loss: m2po", "entropy"),
        ("type: grpo, entropy_filter: {}", "start log-probs, entropy"),
        ("type: optimal_token_baseline", "start log-probs, gradient norms, entropy"),
        ("type: gigpo", "turn states, entropy"),
        ("type: grpo, importance_correction: {}", "entropy"),
        ("type: grpo, importance_correction: {normalize: true}", "start log-probs, entropy"),
        ("type: grpo, rejection: [{high: 2}]", "start log-probs, entropy"),
        ("type: grpo, rejection: [{high: 2}], old_policy: sampler", "entropy"),
        (TAUGHT % "reward: {}", "teacher log-probs, reward from log-probs, entropy"),
        (TAUGHT % "loss: {divergence: sampled_kl}", "teacher log-probs, entropy"),
        (TAUGHT % "loss: {}", "teacher divergence, entropy"),
        (
            TAUGHT % "loss: {}, reward: {}",
            "teacher log-probs, teacher divergence, reward from log-probs, entropy",
        ),
    ],
)
def test_which_inputs_an_algorithm_needs(text: str, needs: str) -> None:
    config = section(text)
    asked = [name for name in QUERIES if not (config.is_offline and name in OF_ROLLOUTS)]
    assert ", ".join(name for name in asked if getattr(config, QUERIES[name])) == needs


@pytest.mark.parametrize(
    ("kind", "loss"),
    [("grpo", "clip"), ("gpg", "gpg"), ("opmd", "opmd"), ("remax", "clip"), ("reinforce_plus_plus", "clip")],
)
def test_default_policy_losses(kind: str, loss: str) -> None:
    assert section(f"type: {kind}").policy_loss.type == loss
    assert section(f"type: {kind}, policy_loss: {{}}").policy_loss.type == loss
    assert section(f"type: {kind}, policy_loss: cispo").policy_loss.type == "cispo"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("type: grpo, rollouts_per_task: 1", "leaves nothing to compare it with"),
        ("type: rloo, rollouts_per_task: 1", "leaves nothing to compare it with"),
        ("type: grpo_passk, rollouts_per_task: 4, k: 5", "above rollouts_per_task"),
        ("type: grpo_passk, k: 1", "greater than or equal to 2"),
        ("type: remax, dynamic_sampling: {}", "every group of one response"),
        ("type: sft, dynamic_sampling: {}", "Extra inputs"),
        ("type: rloo, divide_by_std: true", "Extra inputs"),
        ("type: grpo, policy_loss: {type: gpg, clip_low: 0.1}", "Extra inputs"),
        ("type: grpo, kl_reward: {estimator: k4}", "estimator"),
        ("type: grpo, overlong_penalty: {}", "buffer_tokens"),
        ("type: nonesuch", "'grpo', 'grpo_passk'"),
        (
            "type: grpo, policy_loss: {type: clip_cov, covariance_low: 5}",
            r"covariance_low \(5\.0\) is not below",
        ),
        (
            "type: grpo, kl_loss: {estimator: k3+, weight_by_ratio: true}",
            r"estimators k1 and k3, and estimator is k3\+",
        ),
        ("type: grpo, kl_loss: {max_ratio: 2}", "max_ratio has no effect"),
        ("type: grpo, kl_loss: {ratio_level: sequence}", "ratio_level has no effect"),
        ("type: grpo, rejection: [{}]", "no bound"),
        ("type: grpo, rejection: [{estimator: k3, low: 0.5, high: 1}]", "write only high"),
        ("type: grpo, rejection: [{low: 2, high: 1}]", "swap them"),
        ("type: dpo, loss: sft", "no term that compares the responses"),
        ("type: dpo, loss: {hinge: 0}", "greater than 0"),
        ("type: dpo, loss: hinge, label_smoothing: 0.1", "label_smoothing has no effect on hinge"),
        ("type: dpo, loss: exo_pair", "needs a label_smoothing above 0"),
        ("type: dpo, loss: {sigmoid: 1, bco_pair: 1}, divergence: jsd", "jsd is not defined for bco_pair"),
        ("type: dpo, divergence_alpha: 0.2", "divergence_alpha has no effect"),
        ("type: dpo, discopop_temperature: 0.1", "discopop_temperature has no effect"),
        ("type: cpo, margin: 1", "margin has no effect"),
        ("type: cpo, loss: ipo, label_smoothing: 0.1", "label_smoothing has no effect on ipo"),
        ("type: custom", "needs `advantages`, `loss`, or both"),
        ("type: custom, loss: a.py:f, entropy_coef: 0.1", "entropy_coef is an option of the built-in loss"),
        ("type: custom, advantages: a.py:f, ref_logprobs: true", "ref_logprobs is read by `loss` only"),
        (
            "type: custom, loss: a.py:f, distillation: {teachers: [{path: t}], loss: {}}",
            r"distillation\.loss is a term of the built-in loss",
        ),
        ("type: distillation, distillation: {teachers: [], reward: {}}", "at least 1"),
        (
            "type: distillation, distillation: {teachers: [{path: t}, {path: t}], reward: {}}",
            "two teachers have no `sources`",
        ),
        (
            "type: distillation, distillation: {teachers: [&t {path: t, sources: [a]}, *t], reward: {}}",
            "list the source 'a'",
        ),
        (
            "type: distillation, demonstration_fraction: 0.5, "
            "distillation: {teachers: [{path: t, sources: [math]}], loss: {}}",
            "demonstrations have no data source",
        ),
        ("type: distillation, distillation: {teachers: [{path: t}]}", "needs `loss`, `reward`, or both"),
        (TAUGHT % "loss: {divergence: {type: sampled_kl, estimator: k1}}", "'k2'"),
        (TAUGHT % "reward: {divergence: forward_kl}", "sampled_kl"),
        (f"{TAUGHT % 'reward: {}'}, kl_reward: {{}}", "the reward, which distillation does not train on"),
        (f"{TAUGHT % 'loss: {}'}, demonstrations: answers", "no effect with demonstration_fraction 0"),
        (f"{MIXED % 'loss: {}'}, aggregation: seq-mean-token-sum", "write token-mean"),
        (MIXED % "loss: {divergence: sampled_kl}", "vocabulary"),
    ],
)
def test_options_without_effect_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        section(text)


def test_one_rollout_per_task_is_enough_without_a_group_baseline() -> None:
    assert section("type: remax").rollouts_per_task == 1
    assert section("type: reinforce_plus_plus, rollouts_per_task: 1").rollouts_per_task == 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.tasks_per_update=4", "write one update per step"),
        ("trainer.epochs_per_step=2", "write one update per step"),
        ("algorithm.policy_loss=clip", "write policy_loss: gpg"),
        ("algorithm.aggregation=token-mean", "write policy_loss: gpg"),
        ("algorithm.rollouts_per_task=1", "nothing to compare"),
    ],
)
def test_online_dpo_refuses_other_settings(override: str, said: str) -> None:
    run = {
        "project": "p",
        "name": "n",
        "model": {"path": "m"},
        "data": {"train": {"path": "a.jsonl"}},
        "reward": "exact",
        "algorithm": {"type": "online_dpo"},
        "trainer": {"tasks_per_step": 8, "duration": "2 steps"},
    }
    load_values(run)
    with pytest.raises(ConfigError, match=said):
        load_values(run, [override])


def test_every_section_has_an_algorithm() -> None:
    kinds = [member.model_fields["type"].default for member in members(AlgorithmConfig)]
    assert kinds == [*registry.ROLLOUT_ALGORITHMS, *registry.OFFLINE_ALGORITHMS]
    offline = [member.model_fields["type"].default for member in members(OfflineAlgorithmConfig)]
    assert offline == [*registry.OFFLINE_ALGORITHMS]
