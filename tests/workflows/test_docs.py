"""The code of docs/workflows.md and examples/workflows/ runs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

import strop

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "workflows"
PAGE, _, _ = (ROOT / "docs" / "workflows.md").read_text().partition("\n## An agent with a tool")
SMALL = ("trainer.duration=1 steps", "trainer.tasks_per_step=2", "algorithm.rollouts_per_task=2")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workflows")
    spec = importlib.util.spec_from_file_location("make_workflows", EXAMPLES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent", "environment", "tools"])
def test_an_example_runs(made, tmp_path, monkeypatch, name):
    monkeypatch.setenv("WORKFLOWS", str(made))
    monkeypatch.setenv("EXAMPLES", str(EXAMPLES))
    run = strop.load(EXAMPLES / f"{name}.yaml", [f"output={tmp_path}", "record.report=false", *SMALL])
    folder = strop.train(run).folder
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["rollouts/error_fraction"] == 0
    assert rows[-1]["rollouts/turns"] >= (2 if name == "agent" else 1)


def test_the_workflow_of_the_page(world, user_file):
    function, environment, _, _, agent = blocks("python")
    file = user_file(function + environment + agent)
    task = world.task(answer="4")
    rollout = world.run(world.says("5", "4"), f"{file}:second_thoughts", task=task)
    assert (rollout.error, rollout.reward) == (None, 1.0)
    args = {"environment": f"{file}:Higher"}
    rollout = world.run(world.says("9", "2", "4"), "environment", args, task=task)
    assert (rollout.error, rollout.turn_rewards) == (None, (0.0, 0.0, 1.0))


def test_the_tool_class_and_the_simulated_user_of_the_page(tool_world, user_file, tmp_path):
    _, _, counter, teacher, _ = blocks("python")
    user_file(counter + teacher)
    files = {}
    for name, start in {"tool_config": "tools:", "interaction_config": "interaction:"}.items():
        text = next(text for text in configuration_files() if text.startswith(start))
        files[name] = str(tmp_path / f"{name}.yaml")
        Path(files[name]).write_text(text.replace("mine.py", str(tmp_path / "mine.py")))
    extra_info = {
        "tools_kwargs": {"count": {"create_kwargs": {"start": 3}}},
        "interaction_kwargs": {"name": "teacher", "wanted": "7"},
    }
    task = tool_world.task(extra={"extra_info": extra_info})
    call = '<tool_call>{"name": "count", "arguments": {"n": 2}}</tool_call>'
    args = {**files, "scored": "response"}
    rollout = tool_world.run(tool_world.says("4", call, "7"), "tools", args, task=task)
    assert rollout.error is None
    said = [message["content"] for message in rollout.response_messages]
    assert said == ["4", "Try again.", call, "The counter is 7.", "7"]
    assert rollout.info["rollout_reward_scores"] == {"count": 7.0, "user_turn_rewards": [0.0, 1.0]}


def configuration_files():
    return [text for text in blocks("yaml") if text.startswith(("tools:", "interaction:"))]
