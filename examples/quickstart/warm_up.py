"""A short supervised stage, with the packed batches and the training engine that GRPO uses too."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from strop.algorithms.registry import LossSpec
from strop.config.load.loader import LoadedRun
from strop.config.schema.algorithm import SftConfig
from strop.data.offline_dataset import load_offline_dataset
from strop.models.loading import load_tokenizer
from strop.run.drivers.evaluation import evaluate
from strop.run.rollout.inference_engines import ColocatedPolicy, open_colocated_policy
from strop.run.rollout.rollout_services import reward_sources
from strop.run.rollout.tasks import load_eval_tasks
from strop.training.backend import open_training_engines
from strop.types import Experience, TrainingBatch

TASKS_PER_UPDATE = 128
LEARNING_RATE = 2e-3
WARMUP_UPDATES = 20
UPDATES_BETWEEN_LOOKS = 5
LOSS_OF_A_LOOK = 0.85
"""Mean loss of an update above which a look, which takes as long as two updates, would tell nothing: at most a tenth of
the held-out answers is right."""
MOST_UPDATES = 1000
ENOUGH = 0.3
"""Held-out accuracy at which the stage ends: enough for GRPO to find right answers to learn from."""


def warm_up(loaded: LoadedRun, to: Path) -> None:
    """Train on right answers until `ENOUGH` held-out ones are right, and export the model to `to`."""
    run = loaded.run
    tokenizer = load_tokenizer(run.model)
    tasks = load_eval_tasks(run, tokenizer, run.data.eval)
    section = run.data.train.model_copy(update={"response": run.data.train.answer})
    answers = load_offline_dataset(section, run.data, tokenizer, name="train", seed=run.seed, shuffle=True)
    columns = (TextColumn("warming up"), BarColumn(), TextColumn("{task.fields[shown]}"), TimeElapsedColumn())
    with (
        open_training_engines(run) as engines,
        open_colocated_policy(run, engines, tokenizer, reward_sources(run, None)) as policy,
        Progress(*columns) as progress,
    ):
        bar, seen = progress.add_task("", total=ENOUGH, shown=""), ""
        for update in range(1, MOST_UPDATES + 1):
            batch = [group.experiences[0] for group in answers.take(TASKS_PER_UPDATE)]
            policy.engine.set_lr(LEARNING_RATE * min(1.0, update / WARMUP_UPDATES))
            loss = train_on(policy, batch, loaded)
            shown = f"update {update}  loss {loss:.2f}"
            if loss > LOSS_OF_A_LOOK or update % UPDATES_BETWEEN_LOOKS:
                progress.update(bar, shown=f"{shown}{seen}")
                continue
            policy.publisher.publish(update)
            measured = evaluate(run, policy.explorer, tasks, step=update)
            accuracy = measured.metrics["eval/held-out/reward"]
            seen = f"  held-out accuracy {accuracy:.2f}"
            progress.update(bar, completed=accuracy, shown=f"{shown}{seen}")
            if accuracy >= ENOUGH:
                break
        policy.engine.export(to, tokenizer.save_pretrained)


def train_on(policy: ColocatedPolicy, batch: list[Experience], loaded: LoadedRun) -> float:
    """One update on the mean cross-entropy of all target tokens; returns the loss."""
    metrics = policy.engine.forward_backward(
        TrainingBatch(batch), LossSpec(SftConfig(), loaded.run.data.max_response_tokens)
    )
    policy.engine.step()
    return metrics["loss"]
