"""Conversion of rollouts to training sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.types import Experience, ExperienceGroup, FloatArray, IntArray, Rollout, RolloutGroup, Turn


def group_to_experiences(group: RolloutGroup, baseline: float | None = None) -> ExperienceGroup:
    """Experiences of a group; failed rollouts and empty responses give none.

    `baseline` is the reward of the task's greedy rollout, for algorithms that compare with it.
    """
    experiences = [
        experience
        for rollout in group.rollouts
        if rollout.status != "error"
        for experience in rollout_to_experiences(rollout, group.task.source)
    ]
    return ExperienceGroup(group.id, tuple(experiences), baseline)


def rollout_to_experiences(rollout: Rollout, source: str) -> list[Experience]:
    """Training sequences of a rollout.

    A turn whose prompt continues an earlier turn is joined to that turn's sequence, in which only the model's
    own tokens are targets; any other turn begins a new sequence. With `sequence_per: turn` every turn does.
    """
    if rollout.reward is None:
        raise ValueError(f"rollout {rollout.id} has no reward yet")
    chains: list[list[int]] = []
    for number, turn in enumerate(rollout.turns):
        if len(turn.completion_ids) == 0:
            continue
        chain = None if rollout.sequence_per == "turn" else _chain_to_extend(turn, chains, rollout.turns)
        if chain is None:
            chains.append([number])
        else:
            chain.append(number)
    return [_experience(rollout, source, number, chain) for number, chain in enumerate(chains)]


def _chain_to_extend(turn: Turn, chains: Sequence[list[int]], turns: Sequence[Turn]) -> list[int] | None:
    """Chain that a turn continues: the latest one if there are several."""
    return next((chain for chain in reversed(chains) if _continues(turns[chain[-1]], turn)), None)


def _continues(before: Turn, turn: Turn) -> bool:
    prefix = np.concatenate([before.prompt_ids, before.completion_ids])
    same_images = turn.media[: len(before.media)] == before.media
    return same_images and np.array_equal(turn.prompt_ids[: len(prefix)], prefix)


def _experience(rollout: Rollout, source: str, number: int, chain: Sequence[int]) -> Experience:
    assert rollout.reward is not None
    turns = [rollout.turns[i] for i in chain]
    last = turns[-1]
    token_ids = np.concatenate([last.prompt_ids, last.completion_ids]).astype(np.int32)
    loss_mask = np.zeros(len(token_ids), dtype=np.bool_)
    sampler_logprobs = np.zeros(len(token_ids), dtype=np.float32)
    for turn in turns:
        completion = _completion_slice(turn)
        loss_mask[completion] = True
        sampler_logprobs[completion] = turn.sampler_logprobs
    rewards = states = None
    if rollout.turn_rewards is not None:
        rewards = _rewards_by_target_run(turns, [rollout.turn_rewards[i] for i in chain])
    if rollout.turn_states is not None:
        states = _states_by_target_run(turns, [rollout.turn_states[i] for i in chain])
    return Experience(
        id=f"{rollout.id}.{number}",
        task_id=rollout.task_id,
        group=rollout.group,
        index=rollout.index,
        turn=number,
        token_ids=token_ids,
        loss_mask=loss_mask,
        sampler_logprobs=sampler_logprobs,
        policy_logprobs=_policy_logprobs(turns, len(token_ids)),
        reward=rollout.reward,
        status=rollout.status,
        temperature=rollout.sampling.temperature or 1.0,  # of the policy; 0 is greedy and divides no logits
        versions=tuple(turn.version for turn in turns),
        token_versions=_token_versions(turns, len(token_ids)),
        source=source,
        turn_rewards=rewards,
        turn_states=states,
        reward_parts={name: float(value) for name, value in rollout.reward_parts.items()},
        media=last.media,
    )


def _completion_slice(turn: Turn) -> slice:
    return slice(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids))


def _policy_logprobs(turns: Sequence[Turn], tokens: int) -> FloatArray | None:
    """[L]; None if a turn has none."""
    found = np.zeros(tokens, dtype=np.float32)
    for turn in turns:
        if turn.policy_logprobs is None:
            return None
        found[_completion_slice(turn)] = turn.policy_logprobs
    return found


def _token_versions(turns: Sequence[Turn], tokens: int) -> IntArray | None:
    """[L]; None if one version sampled all targets."""
    if len({turn.version for turn in turns}) == 1 and all(turn.token_versions is None for turn in turns):
        return None
    found = np.zeros(tokens, dtype=np.int32)
    for turn in turns:
        found[_completion_slice(turn)] = turn.version if turn.token_versions is None else turn.token_versions
    return found


def _rewards_by_target_run(turns: Sequence[Turn], rewards: Sequence[float]) -> tuple[float, ...]:
    """Rewards by contiguous run of targets: adjacent turns with no tokens between them form one run."""
    return tuple(sum(rewards[i] for i in run) for run in _target_runs(turns))


def _states_by_target_run(turns: Sequence[Turn], states: Sequence[str]) -> tuple[str, ...]:
    """State before the first turn of each contiguous run of targets."""
    return tuple(states[run[0]] for run in _target_runs(turns))


def _target_runs(turns: Sequence[Turn]) -> list[list[int]]:
    """Numbers of the turns of each contiguous run of targets."""
    runs: list[list[int]] = []
    end = -1
    for number, turn in enumerate(turns):
        if len(turn.prompt_ids) == end:
            runs[-1].append(number)
        else:
            runs.append([number])
        end = len(turn.prompt_ids) + len(turn.completion_ids)
    return runs
