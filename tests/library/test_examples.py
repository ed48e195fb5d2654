"""The loops of examples/ learn a small task, and fit on a page."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import strop
from tests.library.rewards import digits

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("grpo_in_one_file", "ppo_in_one_file", "distillation_in_one_file", "agent_in_one_file")
ROWS = [{"prompt": f"{a}", "answer": f"{a}"} for a in range(8)]


@pytest.fixture(autouse=True, scope="module")
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(EXAMPLES)
        yield


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


def tasks() -> Iterator[dict[str, str]]:
    return itertools.cycle(ROWS)


def rise(history: list[float]) -> float:
    return float(np.mean(history[-3:]) - np.mean(history[:3]))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_imports_strop_alone_and_fits_on_a_page(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert "from strop" not in text and "import strop." not in text
    assert len(text.splitlines()) <= 100


@pytest.fixture(scope="module")
def teacher(folder: Path) -> Iterator[strop.Policy]:
    """A policy that GRPO has taught to write digits."""
    with strop.Policy(folder) as policy:
        history = example("grpo_in_one_file").train(
            policy, tasks(), digits, steps=12, tasks_per_step=8, max_tokens=4, lr=1e-2
        )
        assert rise(history) > 0.2
        yield policy


@pytest.mark.slow
def test_ppo_learns(folder: Path) -> None:
    with strop.Policy(folder) as policy:
        history = example("ppo_in_one_file").train(
            policy, strop.Critic(folder), tasks(), digits, steps=12, tasks_per_step=64, max_tokens=4, lr=5e-3
        )
    assert rise(history) > 0.2


def test_advantages_of_ppo_without_discount_are_the_reward_minus_the_value(still: strop.Policy) -> None:
    ppo = example("ppo_in_one_file")
    groups = strop.score(still.sample(["1"], max_tokens=4), lambda completion: 1.0)
    (experience,) = strop.make_batch(groups, [[0.0]]).experiences
    values = np.where(experience.loss_mask, 0.25, 0).astype(np.float32)
    advantages, returns = ppo.advantages_and_returns(experience, values)
    steps = np.arange(experience.response_tokens)[::-1]
    np.testing.assert_allclose(advantages[experience.loss_mask], 0.75 * ppo.LAMBDA**steps, rtol=1e-5)
    np.testing.assert_allclose((returns - advantages)[experience.loss_mask], 0.25, rtol=1e-5)


@pytest.mark.slow
def test_grpo_learns_and_a_student_learns_its_teacher(folder: Path, teacher: strop.Policy) -> None:
    with strop.Policy(folder) as student:
        history = example("distillation_in_one_file").train(
            student, teacher, tasks(), steps=12, tasks_per_step=16, max_tokens=4, lr=1e-2
        )
    assert np.mean(history[-3:]) < history[0] / 2


@pytest.mark.slow
def test_an_agent_takes_two_turns(folder: Path) -> None:
    with strop.Policy(folder) as policy:
        assert len(example("agent_in_one_file").train(policy, tasks(), steps=1, tasks_per_step=2)) == 1
