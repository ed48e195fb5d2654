"""Run folders written by the recorder, without a run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from strop.config.load.loader import load_values
from strop.config.save import save_resolved
from strop.run.recording.recorder import Recorder
from strop.run.state.horizon import Horizon
from strop.run.state.resume import StartPoint
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder
from strop.types import Rollout, RolloutGroup, SamplingParams, Task, Turn


def open_recorder(path: Path, *, after: int = 0, console: TextIO | None = None) -> Recorder:
    """Construct a recorder of a run of 10 steps; `console` receives what the console shows."""
    path.mkdir(parents=True, exist_ok=True)
    loaded = load_values(
        {
            "model": {"path": "model"},
            "data": {"train": {"path": "tasks.jsonl"}},
            "reward": {"function": "gsm8k", "args": {"api_key": "hunter2"}},
            "record": {"monitors": [] if console is None else ["console"]},
        }
    )
    folder = RunFolder(path)
    save_resolved(loaded.run, folder.run_file)
    start = StartPoint(RunState(step=after), None, ())
    return Recorder(folder, loaded, Horizon(10, 10, 5, 1), start, console or io.StringIO())


def group(
    number: int, texts: Sequence[str], rewards: Sequence[float | None], prompt: str = "2+2?"
) -> RolloutGroup:
    """Make a group with one rollout per text; a reward of None marks a failed rollout."""
    empty = np.zeros(2, dtype=np.int32)
    turn = Turn(empty, empty, empty.astype(np.float32), empty.astype(np.float32), "stop", 0)
    name = f"t{number}"
    rollouts = tuple(
        Rollout(
            id=f"{name}-{index}",
            task_id=name,
            group=name,
            index=index,
            turns=(turn,),
            text=text,
            status="error" if reward is None else "ok",
            sampling=SamplingParams(),
            reward=reward,
            reward_parts={} if reward is None else {"gsm8k": reward},
            error="it failed" if reward is None else None,
        )
        for index, (text, reward) in enumerate(zip(texts, rewards, strict=True))
    )
    return RolloutGroup(name, Task(name, ({"role": "user", "content": prompt},), empty, "4"), rollouts)


def metrics(step: int) -> Mapping[str, float]:
    """Return a selection of the metrics that a step of a real run measures."""
    return {
        "reward/mean": step / 10,
        "reward/part/gsm8k": step / 10,
        "kl/ref": 0.01 * step,
        "entropy": 1 - 0.05 * step,
        "response_tokens/mean": 20.0,
        "logprob_diff/mean_abs": 2e-6,
        "tokens_per_second": 100.0,
        "sampled_tokens": 640.0,
        "time/step_seconds": 3.0,
        "time/sample_seconds": 1.0,
        "time/update_seconds": 2.0,
    }
