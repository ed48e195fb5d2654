"""GiGPO's advantages by hand, and their input from experiences."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from strop.algorithms.rollout_batch import RolloutBatch
from strop.algorithms.turn_advantages import gigpo
from strop.run.optimize.advantage_inputs import make_rollout_batch
from strop.types import Experience

# Two rollouts of one task with two turns each, of 2 + 1 and 1 + 2 tokens, and one rollout of another task.
# Both begin in state 0; then the first is in state 1, the second in state 0 again. The third's state is 0, too.
SCORED = RolloutBatch(
    rewards=torch.tensor([3.0, 1.0, 8.0]),
    group=torch.tensor([0, 0, 1]),
    tokens=torch.tensor([3, 3, 1]),
    intermediate_rewards=torch.tensor([0.0, 1, 0, 0, 0, 0, 0]),
    turns=torch.tensor([0, 0, 1, 2, 3, 3, 4]),
    turn_states=torch.tensor([0, 1, 0, 0, 0]),
)


def test_gigpo_by_hand() -> None:
    """Rollouts: 3 - 2 = 1 and 1 - 2 = -1, and 0 for the one that is alone. Turn rewards 1, 2 | 0, 1 | 8 give, with
    gamma 0.5, the returns 2, 2 | 0.5, 1 | 8. In state 0 of the first task are 2, 0.5 and 1, with the mean 7/6."""
    found = gigpo(SCORED, turn_weight=0.5, gamma=0.5, divide_by_std=False)
    first, third, fourth = (1 + (2 - 7 / 6) / 2, -1 + (0.5 - 7 / 6) / 2, -1 + (1 - 7 / 6) / 2)
    assert found.tolist() == pytest.approx([first, first, 1, third, fourth, fourth, 0])


def test_states_of_the_whole_step_by_hand() -> None:
    """In state 0 are then 2, 0.5, 1 and 8, with the mean 23/8 and the standard deviation sqrt(37.0625 / 3)."""
    found = gigpo(SCORED, turn_weight=1.0, gamma=0.5, divide_by_std=True, epsilon=1e-12, states_over="step")
    std = (((2 - 2.875) ** 2 + (0.5 - 2.875) ** 2 + (1 - 2.875) ** 2 + (8 - 2.875) ** 2) / 3) ** 0.5
    rollout = 1 / 2**0.5
    turns = [(each - 2.875) / std for each in (2, 0.5, 1, 8)]
    expected = (
        [rollout + turns[0]] * 2 + [rollout, turns[1] - rollout] + [turns[2] - rollout] * 2 + [turns[3]]
    )
    assert found.tolist() == pytest.approx(expected)


def test_without_states_it_raises() -> None:
    with pytest.raises(ValueError, match="needs RolloutBatch"):
        gigpo(replace(SCORED, turns=None), turn_weight=1.0, gamma=1.0, divide_by_std=False)


def make_experience(index: int, mask: str, states: tuple[str, ...] | None) -> Experience:
    targets = np.array([letter == "x" for letter in mask])
    zeros = np.zeros(len(mask), dtype=np.float32)
    return Experience(
        id=f"{index}",
        task_id="t",
        group="g",
        index=index,
        turn=0,
        token_ids=np.zeros(len(mask), dtype=np.int32),
        loss_mask=targets,
        sampler_logprobs=zeros,
        policy_logprobs=None,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(0,),
        turn_states=states,
    )


def test_turns_and_states_of_experiences() -> None:
    both = [make_experience(0, ".xx.x", ("a", "b")), make_experience(1, "..x", ("b",))]
    scored = make_rollout_batch(both)
    assert scored.turns is not None and scored.turn_states is not None
    assert scored.turns.tolist() == [0, 0, 1, 2]
    assert scored.turn_states.tolist() == [0, 1, 1]
    assert make_rollout_batch([both[0], replace(both[1], turn_states=None)]).turns is None


def test_a_state_for_each_run_of_targets() -> None:
    with pytest.raises(ValueError, match="1 turn_states for 2 contiguous runs"):
        make_experience(0, ".x.x", ("a",))


def of_the_paper(
    episodes: dict[str, list[list[tuple[str, float]]]],
    omega: float,
    gamma: float,
    divide_by_std: bool,
    whole: bool,
) -> list[float]:
    """Equations 3 to 9 of arXiv 2505.10978, turn by turn: `episodes` has the (state, reward) of each turn of each
    trajectory of each task. `whole` compares the states of all tasks."""

    def normalized(value: float, others: list[float]) -> float:
        mean = sum(others) / len(others)
        if not divide_by_std or len(others) == 1:
            return value - mean
        return (value - mean) / (math.sqrt(sum((x - mean) ** 2 for x in others) / (len(others) - 1)) + 1e-6)

    def anchor(task: str, state: str) -> tuple[str, str]:
        return ("" if whole else task, state)

    discounted = {
        (task, i, t): sum(gamma ** (k - t) * reward for k, (_, reward) in enumerate(episode) if k >= t)
        for task, group in episodes.items()
        for i, episode in enumerate(group)
        for t in range(len(episode))
    }
    anchors: dict[tuple[str, str], list[float]] = {}
    for (task, i, t), value in discounted.items():
        anchors.setdefault(anchor(task, episodes[task][i][t][0]), []).append(value)
    totals = {task: [sum(r for _, r in episode) for episode in group] for task, group in episodes.items()}
    return [
        normalized(totals[task][i], totals[task])
        + omega * normalized(value, anchors[anchor(task, episodes[task][i][t][0])])
        for (task, i, t), value in discounted.items()
    ]


@pytest.mark.parametrize("seed", range(8))
def test_random_groups_as_in_the_paper(seed: int) -> None:
    draw = random.Random(seed)
    omega, gamma, by_std, whole = (
        draw.choice([0.3, 1.0]),
        draw.choice([0.5, 0.95, 1.0]),
        seed % 2 == 0,
        seed > 3,
    )
    episodes = {
        task: [
            [(draw.choice("pqr"), draw.choice([0.0, 0.5, 1.0, -1.0])) for _ in range(draw.randint(1, 5))]
            for _ in range(draw.randint(1, 4))
        ]
        for task in "abc"
    }
    rewards, group, tokens, intermediate, turns, states, lengths = [], [], [], [], [], [], []
    for number, trajectories in enumerate(episodes.values()):
        for episode in trajectories:
            length = [draw.randint(1, 3) for _ in episode]
            rewards.append(sum(reward for _, reward in episode))
            group.append(number)
            tokens.append(sum(length))
            for t, ((state, reward), count) in enumerate(zip(episode, length, strict=True)):
                last = t == len(episode) - 1
                intermediate += [0.0] * (count - 1) + [0.0 if last else reward]
                turns += [len(states)] * count
                states.append("pqr".index(state))
                lengths.append(count)
    scored = RolloutBatch(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group=torch.tensor(group),
        tokens=torch.tensor(tokens),
        intermediate_rewards=torch.tensor(intermediate, dtype=torch.float64),
        turns=torch.tensor(turns),
        turn_states=torch.tensor(states),
    )
    over = "step" if whole else "group"
    found = gigpo(scored, turn_weight=omega, gamma=gamma, divide_by_std=by_std, states_over=over)
    expected = of_the_paper(episodes, omega, gamma, by_std, whole)
    repeated = [value for value, count in zip(expected, lengths, strict=True) for _ in range(count)]
    assert found.tolist() == pytest.approx(repeated, abs=1e-5)
