"""A killed run resumes to the same end, bit for bit: a kill in each mechanism, and kills at random moments.

CI kills a process in chosen calls; the nightly run has `STROP_KILLS` kills from outside, at random moments.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import strop
from tests.kill_log import kills, record_kill

from .killed import export_killed_at, train_killed_at
from .mechanisms import assert_same_end
from .results import WEIGHTS, rows_of, train, weights
from .test_launch import start, wait_for

CHECKPOINTS = "strop.training.checkpoints.checkpoint"
MOMENTS = {
    "in a step": ("grpo", "strop.training.engine:PolicyEngine.step", 10),
    "after a step": ("mix", "strop.run.recording.recorder:Recorder.log_step", 3),
    "in an evaluation": ("sft", "strop.run.drivers.evaluation:Evaluator.evaluate", 3),
    "before the first checkpoint": ("ppo", f"{CHECKPOINTS}:_seal", 1),
    "in a save": ("prime", f"{CHECKPOINTS}:_seal", 2),
    "in a background save": ("a background save", f"{CHECKPOINTS}:_seal", 3),
    "after a save": ("a curriculum", f"{CHECKPOINTS}:_prune", 2),
    "in the copy to the mirror": ("a mirror", "strop.run.state.checkpoint_mirror:CheckpointMirror._put", 12),
    "among the reference's log-probs": ("dpo", "strop.run.optimize.logprobs:_write", 1),
    "in the export of the model": ("images", "strop.workers.files:replace_folder", 1),
}
"""Mechanism, function and number of the call that is not completed."""


@pytest.mark.slow
@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize(("mechanism", "place", "call"), MOMENTS.values(), ids=MOMENTS)
def test_a_run_killed_at_a_chosen_moment_resumes_to_the_same_end(
    values_of: Any, whole_of: Any, tmp_path: Path, mechanism: str, place: str, call: int
) -> None:
    whole, run = whole_of(mechanism, "full"), values_of("killed", mechanism, "full")
    train_killed_at(place, call, run)
    record_kill("one process, at a chosen moment")
    folder = train(run).folder
    assert_same_end(folder, whole)
    assert not list(folder.rglob(".*.tmp")), "what was unfinished is removed"


@pytest.mark.slow
def test_a_killed_export_leaves_no_half_written_model(finished: dict[str, Any], tmp_path: Path) -> None:
    folder = strop.load(finished).run.folder_path
    target = tmp_path / "exported"
    export_killed_at("strop.workers.files:replace_folder", 1, folder, target)
    record_kill("in an export")
    assert not target.exists()
    strop.export(folder, target)
    assert (target / WEIGHTS).read_bytes() == weights(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]


RANKS = {"engine": {"type": "fsdp2", "ranks": 2, "device": "cpu"}}
VICTIMS = [("grpo", "lora", "it", 2), ("sft", "lora", "it", 1), ("dpo", "lora", "it", 1)]
OF_RANKS = [("grpo", "full", "a rank of two", 1), ("grpo", "full", "the controller of two ranks", 1)]
"""Mechanism, model and killed process, and the number of kills."""
STEPS = 12


def ended(folder: Path, run: dict[str, Any]) -> Path:
    """The folder of a run that ended in a process of its own."""
    start(folder, run, f"trainer.duration={STEPS} steps").finish()
    return Path(run["output"]) / "strop" / run["name"]


@pytest.mark.nightly
@pytest.mark.usefixtures("in_files")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("mechanism", "model", "victim", "default"), [*VICTIMS, *OF_RANKS])
def test_a_run_killed_at_random_moments_resumes_to_the_same_end(
    values_of: Any, tmp_path: Path, mechanism: str, model: str, victim: str, default: int
) -> None:
    run = values_of("whole", mechanism, model)
    run["trainer"] |= {"tasks_per_step": 24, "tasks_per_update": 8} | (RANKS if victim != "it" else {})
    run["checkpoint"] = {"every": "1 steps", "keep": 2}
    whole = ended(tmp_path, run)
    for number in range(kills(default)):
        draw = random.Random(f"{mechanism} {victim} {number}")
        folder = whole.with_name(f"killed-{number}")
        process = start(tmp_path, run | {"name": folder.name}, f"trainer.duration={STEPS} steps")
        if number % 2:
            # Before its first step: among what is computed once, such as a reference's log-probs.
            time.sleep(draw.uniform(2, 6))
        else:
            wait_for(folder / "metrics.jsonl", lines=1 + draw.randrange(STEPS - 1), process=process)
            time.sleep(draw.uniform(0, 0.5))
        doomed = next(rank_1_of(process.pid), process) if victim == "a rank of two" else process
        doomed.kill()
        output, _ = process.communicate()
        assert process.returncode != 0, output
        record_kill(f"{victim}, {mechanism}")
        ended(tmp_path, run | {"name": folder.name})
        assert rows_of(folder) == rows_of(whole)
        assert weights(folder) == weights(whole)


def rank_1_of(controller: int) -> Iterator[psutil.Process]:
    for child in psutil.Process(controller).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # another child, which has just ended
            if "rank-1" in child.cmdline():
                yield child


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_process_saves_its_state_and_resumes_to_the_same_end(
    values: Any, tmp_path: Path, number: int
) -> None:
    run = values(name="stopped", data__eval=[], evaluate={})
    process = start(tmp_path, run, f"trainer.duration={STEPS} steps")
    wait_for(tmp_path / "runs" / "strop" / "stopped" / "metrics.jsonl", lines=3, process=process)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number, output
    assert f"Stopped by {signal.Signals(number).name}" in output
    assert "Traceback" not in output
    folder, whole = ended(tmp_path, run), ended(tmp_path, run | {"name": "whole"})
    assert rows_of(folder) == rows_of(whole)
    assert weights(folder) == weights(whole)
