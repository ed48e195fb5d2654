"""A short supervised stage, with the packed batches and the training engine that GRPO uses too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from strop.algorithms.supervised import supervised_loss
from strop.config.load import Loaded
from strop.data.answers import load_answers
from strop.data.pack import pack
from strop.models.load import load_tokenizer
from strop.run.evaluate import evaluate
from strop.run.policy import Policy, open_policy
from strop.run.tasks import load_eval_tasks
from strop.training.table import open_engines
from strop.types import Experience, GlobalCounts

TASKS_PER_UPDATE = 128
LEARNING_RATE = 2e-3
WARMUP_UPDATES = 20
UPDATES_BETWEEN_LOOKS = 5
MOST_UPDATES = 1000
ENOUGH = 0.3
"""Held-out accuracy at which the stage ends: enough for GRPO to find right answers to learn from."""


def warm_up(loaded: Loaded, to: Path) -> None:
    """Train on right answers until `ENOUGH` held-out ones are right, and export the model to `to`."""
    run = loaded.run
    tokenizer = load_tokenizer(run.model)
    tasks = load_eval_tasks(run, tokenizer, run.data.eval)
    section = run.data.train.model_copy(update={"response": run.data.train.answer})
    answers = load_answers(section, run.data, tokenizer, name="train", seed=run.seed, shuffle=True)
    columns = (TextColumn("warming up"), BarColumn(), TextColumn("{task.fields[shown]}"), TimeElapsedColumn())
    with (
        open_engines(run) as engines,
        open_policy(run, engines, tokenizer) as policy,
        Progress(*columns) as progress,
    ):
        bar = progress.add_task("", total=ENOUGH, shown="")
        for update in range(1, MOST_UPDATES + 1):
            batch = [group.experiences[0] for group in answers.take(TASKS_PER_UPDATE)]
            policy.engine.set_lr(LEARNING_RATE * min(1.0, update / WARMUP_UPDATES))
            loss = train_on(policy, batch, loaded)
            if update % UPDATES_BETWEEN_LOOKS == 0:
                policy.synchronizer.publish(update)
                measured = evaluate(run, policy.explorer, tasks, step=update)
                accuracy = measured.metrics["eval/held-out/reward"]
                shown = f"update {update}  loss {loss:.2f}  held-out accuracy {accuracy:.2f}"
                progress.update(bar, completed=accuracy, shown=shown)
                if accuracy >= ENOUGH:
                    break
        policy.engine.export(tokenizer, to)


def train_on(policy: Policy, batch: list[Experience], loaded: Loaded) -> float:
    """One update of the mean cross-entropy over all answers' tokens; returns it."""
    counts = GlobalCounts(tokens=sum(e.response_tokens for e in batch), sequences=len(batch))
    micro_batches = pack(
        batch,
        np.zeros(len(batch), dtype=np.float32),
        loaded.run.trainer.microbatch,
        share_prompts=policy.engine.shares_prompts,
        device=policy.engine.device,
    )
    metrics = policy.engine.forward_backward(micro_batches, supervised_loss, counts, entropy=False)
    policy.engine.step()
    return metrics["loss"]
