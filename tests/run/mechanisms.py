"""Mechanisms of a run that have a state, as changes of a small run, and the comparison of two ends of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.files import digest

from .results import checkpoint, rows_of

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with a state, as changes of a small run."""

    changes: dict[str, Any] = field(default_factory=dict)
    keeps: str = ""
    """A key of `state.json`, or a file of the checkpoint, that has the mechanism's state after the second step."""
    shows: Callable[[Rows, dict[str, Any]], bool] = lambda rows, state: True
    """Whether rows and last state of the whole run show the mechanism."""
    kind: str = ""
    """The algorithm of a run on answers; empty for a run on rollouts."""


def algorithm(type: str, **section: Any) -> dict[str, Any]:
    return {"algorithm": {"type": type, "rollouts_per_task": 2, **section}}


def warm_up(steps: str) -> dict[str, Any]:
    return {"type": "warmup", "steps": steps, "demonstrations_per_update": 6}


COSINE = {"type": "cosine", "warmup": "1 steps"}
PLATEAU = {
    "type": "reduce_lr_on_plateau",
    "patience": 0,
    "factor": 0.5,
    "threshold": 10.0,
    "threshold_mode": "abs",
}
"""No evaluation improves by 10, so each evaluation after the first reduces the rate."""
TEACHERS = [{"path": "teacher", "dtype": "float32"}]
JSD = {"teachers": TEACHERS, "loss": {"divergence": {"type": "jsd", "top_k": 20}}, "reward": {}}
ANSWERS = {"data__demonstrations": [{"path": "pairs.jsonl", "response": "better"}]}
CURRICULUM = {"type": "curriculum", "target": [0.1, 0.9], "success_reward": 0.2}
DIFFICULTY = {"type": "difficulty", "columns": ["weak", "strong"], "success_reward": 0.2}
MANY = {"path": "tasks.jsonl", "weight": 1}
FEW = {"path": "minimum.jsonl", "prompt": "question", "weight": 3}
IMAGES = {"path": "images.parquet", "images": "images"}
STEPS = {"path": "steps.jsonl", "steps": "steps", "label": "labels"}
ECHO = {"name": "environment", "args": {"environment": f"{Path(__file__).parent / 'workflows.py'}:Echo"}}
SHORTEST = {"metric": "eval/held-out/response_tokens", "mode": "min"}

MECHANISMS = {
    "grpo": Mechanism(
        algorithm("grpo", kl_loss={"coef": 0.01})
        | {"trainer__epochs_per_step": 2, "trainer__shuffle_each_epoch": True},
    ),
    "ppo": Mechanism(
        algorithm("ppo", kl_reward={"coef": 0.01}, critic={"optimizer": {"lr": 3e-3}, "schedule": COSINE})
        | {"trainer__epochs_per_step": 2},
        keeps="critic/optimizer.safetensors",
    ),
    "an adaptive penalty": Mechanism(
        algorithm("reinforce_plus_plus", kl_reward={"coef": 0.01, "adaptive": {"horizon": 20}}),
        keeps="kl_coef",
        shows=lambda rows, state: state["kl_coef"] != 0.01,
    ),
    "a warm-up of the critic": Mechanism(
        algorithm("ppo", critic={"warmup_steps": 2}), keeps="critic/weights.safetensors"
    ),
    "prime": Mechanism(
        algorithm("prime", process_reward={"optimizer": {"lr": 1e-3}, "schedule": COSINE}, oversampling={"factor": 2}),
        keeps="process_reward/optimizer.safetensors",
        shows=lambda rows, state: all(
            (row["rollouts/count"], row["groups/filtered"], row["updates"]) == (32, 8, 2)
            and row["process_reward/grad_norm"] > 0
            for row in rows[1:]
        ),
    ),
    "distillation": Mechanism(algorithm("distillation", distillation=JSD)),
    "distillation of a dataset": Mechanism(
        algorithm("distillation", distillation=JSD | {"reward": None}, demonstration_fraction=0.5) | ANSWERS,
        keeps="expert_position",
    ),
    "mix": Mechanism(algorithm("mix") | ANSWERS, keeps="expert_position"),
    "online dpo": Mechanism(algorithm("online_dpo") | {"trainer__tasks_per_update": None}),
    "self-play": Mechanism(algorithm("self_play")),
    "sft": Mechanism(kind="sft"),
    "dpo": Mechanism(kind="dpo"),
    "kto": Mechanism(kind="kto", shows=lambda rows, state: rows[-1]["labels/reference_point"] > 0),
    "bco": Mechanism(
        kind="bco",
        keeps="mean_log_ratio",
        shows=lambda rows, state: state["mean_log_ratio"]["count"] == 32 and state["mean_log_ratio"]["mean"] != 0,
    ),
    "a reference that changes": Mechanism(
        {"algorithm__reference_sync": {"every_updates": 3}}, keeps="reference.safetensors", kind="dpo"
    ),
    "a reward model": Mechanism({"algorithm__centering_coef": 0.01}, kind="reward_model"),
    "labels of steps": Mechanism(
        {
            "algorithm__loss": "cross_entropy",
            "data__train": STEPS,
            "data__eval": [STEPS | {"name": "held-out"}],
            "data__max_response_tokens": 64,
        },
        kind="reward_model",
        shows=lambda rows, state: rows[-1]["reward_model/step_accuracy"] > 0,
    ),
    "a curriculum": Mechanism(
        {"data__order": CURRICULUM},
        keeps="task_order",
        shows=lambda rows, state: (
            len(state["task_order"]["rates"]) >= 8
            and rows[-1]["curriculum/explored_fraction"] < 1  # some tasks were drawn by priority
            and 0 < rows[-1]["curriculum/seen_fraction"] <= 24 / 100
        ),
    ),
    "an order by difficulty": Mechanism(
        {"data__train__path": "rated.jsonl", "data__order": DIFFICULTY},
        keeps="task_order",
        shows=lambda rows, state: (
            len(state["task_order"]["alphas"]) == 100
            and max(state["task_order"]["alphas"]) > 1
            and rows[-1]["difficulty/observed_rate"] >= 0
            and rows[-1]["difficulty/drawn_rate"] != rows[-1]["difficulty/rate"]
        ),
    ),
    "a mixture": Mechanism(
        {
            "data__train": [MANY | {"few_shot": {"path": "tasks.jsonl", "count": 1}}, FEW | {"answer": "smaller"}],
            "data__max_prompt_tokens": 64,
        }
    ),
    "a mixture of answers": Mechanism(
        {"data__train": [MANY | {"response": "answer"}, FEW | {"response": "smaller", "answer": None}]}, kind="sft"
    ),
    "replaced groups": Mechanism(algorithm("grpo", dynamic_sampling={"max_tries": 3})),
    "a cosine": Mechanism({"trainer__schedule": COSINE}),
    "an increasing weight decay": Mechanism(
        {"trainer__weight_decay_increase": {"start": 0.0}, "trainer__optimizer__weight_decay": 0.4}
    ),
    "momentum": Mechanism({"trainer__optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9}}),
    "a schedule-free optimizer": Mechanism({"trainer__optimizer": {"type": "schedule_free_sgd", "lr": 0.05}}),
    "a plateau": Mechanism(
        {"trainer__schedule": PLATEAU, "evaluate": {"every": "1 steps"}},
        keeps="plateau",
        # The evaluation after each step but the first halves the rate of the following ones.
        shows=lambda rows, state: [row["lr"] for row in rows[1:]] == [1e-3, 1e-3, 5e-4, 2.5e-4],
    ),
    "the best checkpoint": Mechanism({"checkpoint": {"every": "2 steps", "best": SHORTEST}}, keeps="best"),
    "an early end": Mechanism(
        {"evaluate": {"every": "1 steps", "stop_when": {"value": 2.0, "patience": 9}}},
        keeps="evaluations",
        shows=lambda rows, state: state["evaluations"]["without_improvement"] > 0,
    ),
    "a warm-up on answers": Mechanism(
        ANSWERS | {"trainer__batch_selection": warm_up("2 steps")},
        shows=lambda rows, state: ["sft_loss" in row for row in rows[1:]] == [True, True, False, False],
    ),
    "a background save": Mechanism({"checkpoint": {"every": "1 steps", "async_save": True, "keep": None}}),
    "several turns": Mechanism({"rollout": {"workflow": ECHO, "max_sequence_tokens": 96}}),
    "images": Mechanism(
        {
            "model": {"path": "vision"},
            "data__train": IMAGES,
            "data__eval": [IMAGES | {"name": "held-out", "limit_tasks": 4}],
            "data__max_prompt_tokens": 80,
        }
    ),
    "a longer warm-up on answers": Mechanism(
        ANSWERS | {"trainer__batch_selection": warm_up("3 steps")},
        shows=lambda rows, state: ["sft_loss" in row for row in rows[1:]] == [True, True, True, False],
    ),
    "a mirror": Mechanism({"checkpoint": {"every": "1 steps", "mirror": "mirror"}}),
    "local workers": Mechanism(
        {"trainer__engine": {"type": "local", "workers": 2}}, keeps="optimizer-00002-of-00002.safetensors"
    ),
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {"full": {}, "lora": {"model__lora": {"rank": 4, "dropout": 0.1}}}


def assert_same_end(again: Path, whole: Path) -> None:
    """Rows, rollouts, the model and the last checkpoint are equal; the run may begin at a later step."""
    (first, *_), expected = rows_of(again), rows_of(whole)
    found, wanted = rows_of(again), [row for row in expected if row["step"] >= first["step"]]
    assert [list(row.items()) for row in found] == [list(row.items()) for row in wanted]
    for file in (again / "rollouts").glob("*.parquet"):
        assert pq.read_table(file) == pq.read_table(whole / "rollouts" / file.name), file.name
    names_of_the_run = ("run.yaml", "manifest.json")
    for folder in (checkpoint(whole, 4), whole / "model"):
        for file in (path.relative_to(whole) for path in folder.rglob("*") if path.is_file()):
            if file.name not in names_of_the_run:
                assert digest(again / file) == digest(whole / file), file
