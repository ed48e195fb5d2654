"""Conversion of rollouts to training sequences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strop.types import ImageReference, Rollout, RolloutGroup, SamplingParams, Task, Turn
from strop.workflows.experiences import group_to_experiences, rollout_to_experiences


def ints(*values):
    return np.array(values, dtype=np.int32)


def turn(prompt, completion, version=0):
    logprobs = -np.arange(1, len(completion) + 1, dtype=np.float32)
    return Turn(ints(*prompt), ints(*completion), logprobs, logprobs * 2, "stop", version)


def rollout(*turns, reward=1.0, status="ok", error=None, index=0):
    sampling = SamplingParams(temperature=0.7)
    return Rollout(f"g-{index}", "t", "g", index, turns, "", status, sampling, reward=reward, error=error)


def test_only_the_completion_of_a_turn_is_a_target():
    (experience,) = rollout_to_experiences(rollout(turn([1, 2, 3], [4, 5], version=7)), "gsm8k")
    assert experience.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert experience.loss_mask.tolist() == [False, False, False, True, True]
    assert experience.sampler_logprobs.tolist() == [0, 0, 0, -1, -2]
    assert experience.policy_logprobs.tolist() == [0, 0, 0, -2, -4]
    assert (experience.temperature, experience.versions, experience.source) == (0.7, (7,), "gsm8k")
    assert (experience.prompt_tokens, experience.response_tokens) == (3, 2)


def test_a_greedy_response_is_trained_at_the_temperature_of_the_policy():
    greedy = replace(rollout(turn([1, 2], [3])), sampling=SamplingParams(temperature=0.0))
    (experience,) = rollout_to_experiences(greedy, "")
    assert experience.temperature == 1.0


def test_continued_turns_are_one_sequence_and_environment_tokens_are_not_targets():
    (experience,) = rollout_to_experiences(rollout(turn([1, 2], [3]), turn([1, 2, 3, 9, 9], [4, 5])), "")
    assert experience.token_ids.tolist() == [1, 2, 3, 9, 9, 4, 5]
    assert experience.loss_mask.tolist() == [False, False, True, False, False, True, True]
    assert experience.policy_logprobs.tolist() == [0, 0, -2, 0, 0, -2, -4]


def test_targets_of_several_versions_have_a_version_each():
    first, second = turn([1, 2], [3], version=4), turn([1, 2, 3, 9], [5, 6, 7], version=4)
    (same,) = rollout_to_experiences(rollout(first, second), "")
    assert same.token_versions is None
    (between,) = rollout_to_experiences(rollout(first, replace(second, version=5)), "")
    assert between.token_versions.tolist() == [0, 0, 4, 0, 5, 5, 5]
    within = replace(second, token_versions=ints(4, 4, 6))
    (mixed,) = rollout_to_experiences(rollout(first, within), "")
    assert mixed.token_versions.tolist() == [0, 0, 4, 0, 4, 4, 6]
    assert mixed.versions == (4, 4)


def test_a_sequence_has_the_images_of_its_last_turn():
    first, second, other = (ImageReference(digest, Path(f"{digest}.png"), 4, 4) for digest in "abc")
    question = replace(turn([1, 2], [3]), media=(first,))
    answered = replace(turn([1, 2, 3, 9], [4]), media=(first, second))
    (experience,) = rollout_to_experiences(rollout(question, answered), "")
    assert experience.media == (first, second)

    same_tokens = replace(answered, media=(other, second))
    several = rollout_to_experiences(rollout(question, same_tokens), "")
    assert [one.media for one in several] == [(first,), (other, second)]


def test_a_sequence_has_policy_logprobs_only_if_all_of_its_turns_have_them():
    filtered = replace(turn([1, 2, 3, 9], [4]), policy_logprobs=None)
    (experience,) = rollout_to_experiences(rollout(turn([1, 2], [3]), filtered), "")
    assert experience.policy_logprobs is None
    assert experience.sampler_logprobs.tolist() == [0, 0, -1, 0, -1]


def test_turn_with_another_prompt_begins_a_new_sequence():
    first, second = rollout_to_experiences(rollout(turn([1, 2], [3]), turn([7, 8], [4])), "")
    assert first.token_ids.tolist() == [1, 2, 3]
    assert second.token_ids.tolist() == [7, 8, 4]
    assert (first.turn, second.turn) == (0, 1)
    assert first.reward == second.reward == 1.0


def test_failed_rollouts_and_empty_completions_give_no_experience():
    task = Task(id="t", messages=(), prompt_ids=ints(1, 2))
    broken = rollout(turn([1, 2], [3]), reward=None, status="error", error="boom", index=1)
    empty = rollout(turn([1, 2], []), index=2)
    group = group_to_experiences(RolloutGroup("g", task, (rollout(turn([1, 2], [3])), broken, empty)))
    assert [experience.index for experience in group.experiences] == [0]


def test_unscored_rollout_raises():
    with pytest.raises(ValueError, match="no reward"):
        rollout_to_experiences(rollout(turn([1, 2], [3]), reward=None), "")
