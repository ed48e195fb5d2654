"""Algorithms whose learning runs take a second: a model of one layer learns which digit is rewarded.

Supervised fine-tuning on random answers makes the model that each run begins with: one of five digits, or the
same digit twice, which the token limit cuts off. Of ten digits, some seeds saw the right one too rarely to learn it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.models.tiny import make_model
from tests.learning.curves import column
from tests.learning.rewards import hidden, right

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LENGTHS = {"max_prompt_tokens": 32, "max_response_tokens": 2}
ENVIRONMENT = f"{Path(__file__).parent / 'two_digits.py'}:TwoDigits"
TWO_DIGITS = f"{Path(__file__).parent / 'two_digits.py'}:two_digits"


def write_rows(path: Path, answers: Sequence[str], question: str = "digit") -> None:
    rows = [
        {"prompt": f"{question} {number % 8}?", "answer": answer} for number, answer in enumerate(answers)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(folder: Path, name: str, model: Path, reward: Any = None, **sections: Any) -> tuple[Path, Path]:
    """Folders of the finished run and of its model."""
    run = {
        "name": name,
        "output": str(folder / "runs"),
        "model": {"path": str(model)},
        "record": {"monitors": [], "report": False},
        **sections,
    }
    result = strop.train(strop.load(run), reward=reward)
    assert result.model is not None
    return result.folder, result.model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tasks, as `tasks.jsonl`, and of the model of random answers, as `model`."""
    folder = tmp_path_factory.mktemp("short runs")
    draws = random.Random(0)
    write_rows(folder / "tasks.jsonl", ["7"] * 8)
    write_rows(folder / "demonstrations.jsonl", ["3"] * 8, "another one, please")
    write_rows(
        folder / "random.jsonl", [draws.choice("13579") * draws.choice((1, 1, 1, 2)) for _ in range(320)]
    )
    make_model(folder / "initial", ["digit 1? 2"], vocab_size=270, hidden_size=32, layers=1)
    imitate(folder, "random", tasks_per_step=80).rename(folder / "model")
    return folder


def imitate(folder: Path, rows: str, tasks_per_step: int) -> Path:
    """The model that supervised fine-tuning on these answers makes of the initial one."""
    data = {"train": {"path": str(folder / f"{rows}.jsonl"), "response": "answer"}, "eval": []}
    optimizer = {"type": "adamw", "lr": 1e-2}
    trainer = {"tasks_per_step": tasks_per_step, "duration": "40 steps", "optimizer": optimizer}
    initial = folder / "initial"
    return train(folder, f"on-{rows}", initial, algorithm="sft", data=data | LENGTHS, trainer=trainer)[1]


CASES: dict[str, dict[str, Any]] = {
    "gdpo": {
        "type": "gdpo",
        "reward_parts": ["hidden/right", "hidden/two_digits"],
        "part_weights": [1.0, 0.2],
    },
    "optimal_token_baseline": {"type": "optimal_token_baseline"},
    "pf_ppo": {
        "type": "ppo",
        "resampling": {"method": "pow", "power": 2.0},
        "critic": {"optimizer": {"type": "adamw", "lr": 1e-2}},
    },
    "rejection": {"type": "grpo", "rejection": [{"over": "token", "low": 0.99, "high": 1.01}]},
    "k3+": {"type": "grpo", "kl_loss": {"estimator": "k3+", "coef": 0.02}},
    "dapo": {
        "type": "grpo",
        "policy_loss": {"type": "clip", "clip_high": 0.28, "dual_clip": None},
        "overlong_penalty": {"buffer_tokens": 1, "factor": 0.1},
        "dynamic_sampling": {"max_tries": 2},
    },
    "std_over_step": {"type": "grpo", "std_over": "step"},
    "mask_truncated": {"type": "grpo", "mask_truncated": True},
    "multi_step_grpo": {"type": "grpo", "divide_by_sequences": True},
    "gigpo": {"type": "gigpo"},
    "mix_chord": {
        "type": "mix",
        "mu": 0.9,
        "mu_schedule": {"warmup_steps": 2, "decay_steps": 8, "final": 0.6},
        "expert_weight": "p_one_minus_p",
        "expert_fraction": 0.1,  # 8 demonstrations in each update
    },
}
"""Section `algorithm` of each run."""
ROLLOUT: dict[str, dict[str, Any]] = {
    "rejection": {"engine": {"type": "native", "dtype": "bfloat16"}},
    "multi_step_grpo": {"workflow": TWO_DIGITS, "sequence_per": "turn", "max_sequence_tokens": 64},
    "gigpo": {
        "workflow": {"name": "environment", "args": {"environment": ENVIRONMENT}},
        "max_sequence_tokens": 64,
    },
}


def sample_and_train(folder: Path, name: str, algorithm: dict[str, Any]) -> Path:
    """Folder of a run with 8 tasks with 8 rollouts each."""
    data: dict[str, Any] = {"train": {"path": str(folder / "tasks.jsonl")}, **LENGTHS}
    if algorithm["type"] == "mix":
        shown = {"name": "shown", "path": str(folder / "demonstrations.jsonl")}
        data |= {"demonstrations": [shown | {"response": "answer"}], "eval": [shown]}
    reward = {"multi_step_grpo": None, "gigpo": None, "gdpo": hidden}.get(name, right)
    return train(
        folder,
        name,
        folder / "model",
        reward,
        algorithm={"rollouts_per_task": 8} | algorithm,
        data=data,
        rollout=ROLLOUT.get(name, {}),
        trainer={"tasks_per_step": 8, "duration": "20 steps", "optimizer": {"type": "adamw", "lr": 5e-3}},
    )[0]


def check_rise(fractions: list[float]) -> None:
    """The fraction of right answers rises from a sixth by 0.5, as the mean of the last three of 20 steps."""
    assert len(fractions) == 20
    assert fractions[0] < 0.3
    assert sum(fractions[-3:]) / 3 > fractions[0] + 0.5, fractions


@pytest.mark.parametrize("name", CASES)
def test_it_learns(name: str, folder: Path) -> None:
    run = sample_and_train(folder, name, CASES[name])
    parts = {"gdpo": "reward/part/hidden/right", "multi_step_grpo": "reward/mean", "gigpo": "reward/mean"}
    check_rise(column(run, parts.get(name, "reward/part/right")))
    if name == "rejection":
        assert 0 < column(run, "rejection/token_fraction")[0] < 0.5
    if name == "mask_truncated":
        assert column(run, "rollouts/truncated_fraction")[0] > 0.1
    if name in ("multi_step_grpo", "gigpo"):
        assert column(run, "rollouts/turns")[0] == 2
    if name == "mix_chord":
        shown = column(run, "eval/shown/reward")
        assert (shown[0], shown[-1]) == (0.0, 1.0)


def test_a_student_approaches_its_teacher_on_its_own_rollouts(folder: Path) -> None:
    """The teacher gives the right answer; the student sees no reward."""
    teacher = {"path": str(imitate(folder, "tasks", tasks_per_step=8)), "dtype": "float32"}
    section = {"teachers": [teacher], "loss": {"divergence": "forward_kl"}}
    run = sample_and_train(folder, "student", {"type": "distillation", "distillation": section})
    check_rise(column(run, "reward/part/right"))
    divergence = column(run, "distillation_loss/divergence")
    assert divergence[-1] < divergence[0] / 4, divergence


def test_a_large_coefficient_of_k3_plus_holds_the_policy_at_the_reference(folder: Path) -> None:
    """Fails if the penalty's gradient is 0 or of the opposite sign."""
    held = CASES["k3+"] | {"kl_loss": {"estimator": "k3+", "coef": 5.0}}
    rewards = column(sample_and_train(folder, "held", held), "reward/mean")
    assert sum(rewards[-3:]) / 3 < 0.4, rewards
