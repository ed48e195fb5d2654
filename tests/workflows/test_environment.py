"""A conversation with an environment."""

from __future__ import annotations

import re

import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.types import SamplingParams
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow

GUESS = """
class Guess:
    "Says higher or lower, until the number is found."
    def __init__(self, reward=1.0):
        self.reward = reward
    def reset(self, task):
        self.number = int(task.answer)
        return "guess a number"
    def step(self, reply):
        guess = int(reply)
        if guess == self.number:
            return None, self.reward
        return ("higher" if guess < self.number else "lower"), -0.1

class Modern:
    async def reset(self, task):
        return None
    async def step(self, reply):
        return [{"role": "system", "content": "look"}, {"role": "user", "content": "again"}], 0.5

class Wrong(Guess):
    def step(self, reply):
        return "only words"

class Stateful(Guess):
    def state_key(self):
        return "the same"

class Lame:
    def reset(self, task):
        return None
"""


@pytest.fixture
def run(world, user_file):
    """One rollout with a class of `GUESS`; the number is 7."""
    file = user_file(GUESS)

    def rollout(engine, name, args=None, **section):
        task = world.task() if name == "Modern" else world.task(answer="7")
        environment = {"environment": f"{file}:{name}", **(args or {})}
        return world.run(engine, "environment", environment, task=task, **section)

    return rollout


def test_rewards_of_turns_and_rollout(world, run):
    rollout = run(world.says("5", "9", "7"), "Guess", {"args": {"reward": 2.0}})
    assert rollout.error is None
    assert rollout.turn_rewards == (-0.1, -0.1, 2.0)
    assert rollout.reward == pytest.approx(1.8)
    said = [m["content"] for m in rollout.response_messages]
    assert said == ["guess a number", "5", "higher", "9", "lower", "7"]
    (experience,) = rollout_to_experiences(rollout, "")
    assert experience.turn_rewards == rollout.turn_rewards
    ends = [world.tokenizer.decode([experience.token_ids[i]]) for i in experience.turn_ends]
    assert ends == ["<|end|>"] * 3


def test_states_are_the_messages_to_the_model_or_the_environments_own(world, run):
    rollout = run(world.says("9", "9", "7"), "Guess")
    first, second, third = rollout.turn_states
    assert first != second == third, "it says `lower` before the second turn and before the third"
    (experience,) = rollout_to_experiences(rollout, "")
    assert experience.turn_states == rollout.turn_states
    assert len(set(run(world.says("9", "9", "7"), "Stateful").turn_states)) == 1


def test_the_tasks_own_prompt_and_an_async_environment(world, run):
    engine = world.says("x")
    rollout = run(engine, "Modern", {"max_turns": 2})
    assert engine.requests[0].prompt_ids.tolist() == world.task().prompt_ids.tolist()
    assert rollout.turn_rewards == (0.5, 0.5)
    shown = world.tokenizer.decode(engine.requests[1].prompt_ids)
    assert shown.endswith("<|system|>\nlook<|end|>\n<|user|>\nagain<|end|>\n<|assistant|>\n")


def test_token_limit_ends_the_rollout_with_its_rewards(world, run):
    sampling = SamplingParams(max_tokens=8)
    rollout = run(world.native(), "Modern", max_sequence_tokens=80, sampling=sampling)
    assert rollout.status == "truncated"
    assert 1 < len(rollout.turns) == len(rollout.turn_rewards) < 16


@pytest.mark.parametrize(
    ("name", "said", "error"),
    [
        ("Wrong", "5", r"step returned 'only words'; it must return \(messages, reward\)"),
        ("Guess", "five", r"ValueError: invalid literal.*mine\.py:10"),
    ],
)
def test_errors_of_an_environment(world, run, name, said, error):
    assert re.search(error, run(world.says(said), name).error)


def test_class_without_step_is_rejected(user_file):
    args = {"environment": f"{user_file(GUESS)}:Lame"}
    with pytest.raises(ConfigError, match="the class has no method `step`"):
        load_workflow(WorkflowConfig(name="environment", args=args))
