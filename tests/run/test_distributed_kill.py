"""Explorer, trainer and buffer, killed at random moments and restarted: the result is that of an undisturbed run.

Under the style `fixed` metrics and weights equal those of the undisturbed run bit for bit, so each group was
trained on exactly once, in its order; under `bounded` the groups' ids show it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.files import digest
from tests.further_cases import further_cases
from tests.kill_log import kills, record_kill

from .groups_by_id import assert_each_once
from .groups_by_id import states as states_of
from .test_distributed import rows_of, run_distributed
from .test_launch import kill_one, start

KILLS = kills(2, sources=4)
STEPS = 12
TASKS = 8


def settings(values, name, transport, style, buffer="sql"):
    return values(
        name=name,
        buffer=buffer,
        synchronizer={"type": transport, "style": style, "max_restarts": 2 * KILLS},
        trainer__duration=f"{STEPS} steps",
        checkpoint__every="3 steps",
        evaluate__every="4 steps",
        algorithm__rollouts_per_task=8,
        data__max_response_tokens=16,
    )


def run_killed(
    tmp_path: Path, run: dict, seed: int, victims: Sequence[str] = ("explorer", "trainer")
) -> tuple[Path, int, str]:
    """Kill these roles in turns; returns the run's folder, the number of kills and the output."""
    draw = random.Random(seed)
    process = start(tmp_path, run)
    folder = tmp_path / "runs" / "strop" / run["name"]
    metrics, killed = folder / "metrics.jsonl", 0
    for number in range(KILLS):
        wanted = draw.randrange(1, max(2, STEPS * (number + 1) // (KILLS + 1)))
        deadline = time.monotonic() + 900
        while process.poll() is None and time.monotonic() < deadline:
            if metrics.exists() and metrics.read_text().count("\n") > wanted:
                break
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.5))
        if process.poll() is None:
            name = victims[number % len(victims)]
            if kill_one(process, name):
                record_kill(f"distributed run, {name}")
                killed += 1
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.count("It is restarted") == killed
    return folder, killed, output


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("transport", "style"),
    [
        ("checkpoint", {"type": "fixed", "max_lead": "1 steps"}),
        ("collective", {"type": "bounded", "max_staleness": "2 steps"}),
        *further_cases(
            ("checkpoint", {"type": "bounded", "max_staleness": "2 steps"}),
            ("collective", {"type": "fixed", "every": "2 steps", "max_lead": "1 steps"}),
            ("collective", {"type": "on_request", "every": "2 steps"}),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_each_group_is_trained_on_once_after_any_kill(values, tmp_path, transport, style):
    folder, killed, output = run_killed(tmp_path, settings(values, "killed", transport, style), seed=KILLS)
    assert killed > 0, output
    everything = {f"train-{s:06d}-{n:05d}" for s in range(1, STEPS + 1) for n in range(TASKS)}
    assert_each_once(folder, everything)
    assert set(states_of(folder).values()) == {"done"}
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert all("loss" in row and "reward/mean" in row for row in rows[1:])
    if style["type"] == "bounded":
        assert max(row["staleness/max"] for row in rows[1:]) <= 2
    if style["type"] != "fixed":
        return
    assert_same(folder, run_distributed(settings(values, "reference", "checkpoint", style)))


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("buffer", "style"),
    [
        ("queue", {"type": "fixed", "max_lead": "1 steps"}),
        ("priority", {"type": "bounded", "max_staleness": "2 steps"}),
    ],
    ids=["queue", "priority"],
)
def test_a_killed_buffer_process_returns_each_group_once(values, tmp_path, buffer, style):
    run = settings(values, "killed", "checkpoint", style, buffer)
    folder, killed, output = run_killed(tmp_path, run, KILLS, victims=["buffer"])
    assert killed > 0, output
    everything = {f"train-{s:06d}-{n:05d}" for s in range(1, STEPS + 1) for n in range(TASKS)}
    assert states_of(folder) == dict.fromkeys(everything, "done")
    assert_each_once(folder, everything)
    if style["type"] == "fixed":
        assert_same(folder, run_distributed(settings(values, "reference", "checkpoint", style)))


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_killed_explorer_continues_its_curriculum(values, tmp_path):
    """The success rates that later draws depend on are part of the explorer's state."""
    style = {"type": "fixed", "max_lead": "1 steps"}

    def run(name):
        found = settings(values, name, "checkpoint", style)
        order = {"type": "curriculum", "target": [0.1, 0.9], "success_reward": 0.2, "exploration": 0.25}
        return found | {
            "data": found["data"] | {"order": order},
            "record": found["record"] | {"rollouts_every": "1 steps"},
        }

    folder, killed, output = run_killed(tmp_path, run("killed"), KILLS, victims=["explorer"])
    assert killed > 0, output
    reference = run_distributed(run("reference"))
    assert_same(folder, reference)
    drawn, expected = ((read_tasks(each)) for each in (folder, reference))
    assert drawn == expected and sorted(drawn) == list(range(1, STEPS + 1))
    rows = [json.loads(line) for line in (folder / "explorer" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["curriculum/explored_fraction"] < 1, "some tasks were drawn by their success rates"


def read_tasks(folder: Path) -> dict[int, list[str]]:
    """The drawn tasks of each step."""
    files = (folder / "explorer" / "rollouts").glob("step-*.parquet")
    return {int(file.stem[-6:]): pq.read_table(file)["task_id"].to_pylist() for file in files}


def assert_same(folder: Path, reference: Path) -> None:
    """Metrics and weights are equal bit for bit."""
    assert rows_of(folder) == rows_of(reference)
    weights = Path("model") / "model.safetensors"
    assert digest(folder / weights) == digest(reference / weights)
