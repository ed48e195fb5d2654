"""GiGPO's advantages by hand, and their input from experiences."""

from __future__ import annotations

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
