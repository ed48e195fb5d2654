"""Environments of OpenEnv as workflows: a server over its WebSocket, and factories of sessions."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from pathlib import Path

import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.types import SamplingParams
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.openenv_session import LocalServer
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import call, trained_texts

FAKE = Path(__file__).with_name("openenv_server.py")
REAL = Path(__file__).parents[2] / "examples" / "environments" / "higher_lower.py"
needs_openenv = pytest.mark.skipif(
    importlib.util.find_spec("openenv") is None, reason="openenv is not installed: make environments"
)


def server(script: Path, *options: str) -> dict[str, object]:
    return {"command": [sys.executable, str(script), "--port", "{port}", *options]}


@pytest.fixture(params=[FAKE, pytest.param(REAL, marks=needs_openenv)], ids=["fake", "real"])
def script(request):
    return request.param


def test_replies_are_actions_and_observations_are_turns(world, script):
    task = world.task("Let us play.", extra={"reset": {"number": 7}})
    args = server(script) | {"observation": "hint"}
    rollout = world.run(world.says("what?", "3", "8", "7"), "openenv", args, task=task)
    assert (rollout.error, rollout.status, rollout.reward) == (None, "ok", 1.0)
    assert [m["content"] for m in rollout.messages if m["role"] == "user"] == [
        "Let us play.\n\nGuess a number from 0 to 9.",
        "That is no number.",
        "Higher.",
        "Lower.",
    ]
    assert trained_texts(world, rollout) == ["what?<|end|>3<|end|>8<|end|>7<|end|>"]


def test_tools_of_the_server_are_called(tool_world, script):
    task = tool_world.task(extra={"reset": {"number": 7}})
    says = tool_world.says(
        call("guess", number=3) + call("shout"), call("guess", number="x"), call("guess", number=7)
    )
    rollout = tool_world.run(says, "openenv", server(script, "--tools"), task=task)
    assert (rollout.error, rollout.status, rollout.reward) == (None, "ok", 1.0)
    first, unknown, wrong = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert (
        first == "Higher." and "there is no tool 'shout'; the tools are guess" in unknown and "error" in wrong
    )
    assert '"name": "guess"' in tool_world.tokenizer.decode(says.requests[0].prompt_ids)


def test_rewards_of_turns_are_summed(world):
    args = server(FAKE, "--step-reward", "0.25") | {"reward": "sum", "max_turns": 3, "reset": {"number": 9}}
    rollout = world.run(world.says("1", "2"), "openenv", args)
    assert (rollout.error, rollout.reward, rollout.turn_rewards) == (None, 0.75, (0.25, 0.25, 0.25))
    assert len(rollout_to_experiences(rollout, "")) == 1


def test_a_server_with_one_session_serves_rollouts_one_after_the_other(world):
    runner = world.runner(world.says("1"), "openenv", server(FAKE, "--sessions", "1") | {"max_turns": 1})

    async def all_of_them():
        sampling = SamplingParams(max_tokens=50)
        return await asyncio.gather(*(runner.run(world.task(), f"g{n}", 0, sampling, n) for n in range(3)))

    assert [(r.error, r.reward) for r in asyncio.run(all_of_them())] == [(None, 0.0)] * 3


def test_an_action_of_several_fields_is_a_tool(tool_world):
    says = tool_world.says(call("step", row="one"), call("step", row=2))
    rollout = tool_world.run(says, "openenv", server(FAKE, "--fault", "fields"))
    assert (rollout.error, rollout.reward) == (None, 2.0)
    (refused,) = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert "Invalid message" in refused


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("exit", "has closed the connection (step)"),
        ("hang", "took longer than 2 s"),
        ("garbage", "does not speak OpenEnv: 'garbage'"),
        ("error", "the board is broken"),
        ("endless", "has closed the connection (step)"),
        ("nan", "the environment's reward is nan"),
    ],
)
def test_a_fault_of_the_server_fails_the_rollout(world, fault, error):
    limit = 2 if fault == "hang" else 100
    runner = world.runner(world.says("1"), "openenv", server(FAKE, "--fault", fault), timeout_seconds=limit)
    rollout = asyncio.run(runner.run(world.task(), "g", 0, SamplingParams(max_tokens=50), 7))
    assert error in rollout.error


def test_a_server_that_has_ended_starts_again():
    started = LocalServer([sys.executable, str(FAKE), "--port", "{port}"], "here")
    first = started.url()
    started._process.terminate()
    started._process.wait()
    restart = threading.Thread(target=started.url)
    restart.start()
    restart.join()
    again = started.url()
    assert again != first and started._answers() and started.url() == again, "it outlives the thread"
    started.close()


WITHOUT_REUSE = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

with open(sys.argv[2], "a") as starts:
    starts.write("start ")
HTTPServer.allow_reuse_address = False
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def test_the_port_is_reserved_and_a_server_that_refuses_that_starts_again(user_file, tmp_path):
    starts = tmp_path / "starts"
    started = LocalServer([sys.executable, str(user_file(WITHOUT_REUSE)), "{port}", str(starts)], "here")
    assert started.url() and starts.read_text() == "start start "
    started.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "exactly one of `url`, `command` and `factory`"),
        ({"url": "localhost:8000"}, "write an address such as http://host:8000"),
        ({"url": "http://127.0.0.1:1"}, "does not answer as a server of OpenEnv"),
        ({"command": ["none-such", "{port}"]}, "none-such cannot be started: No such file or directory"),
        (
            {"command": [sys.executable, "-c", "exit('no board')", "{port}"]},
            "ended with exit code 1. .*no board",
        ),
        ({"command": [sys.executable, "server.py"]}, r"the command has no \{port\}"),
        ({"command": "python server.py {port}"}, "write the command as a list"),
        (server(FAKE, "--fault", "schema"), "does not answer as a server of OpenEnv"),
        (server(FAKE) | {"action": "guess"}, "no field 'guess'; its fields are metadata, text"),
        (server(FAKE) | {"api_key_env": "STROP_NONE_SUCH"}, "STROP_NONE_SUCH of api_key_env is not set"),
        (server(FAKE) | {"reward": "first"}, "write last or sum"),
        ({"factory": "json.dumps", "args": {"obj": 1}}, "has no method `create`"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(ConfigError, match=message):
        load_workflow(WorkflowConfig(name="openenv", args=args))


FACTORY = """
from types import SimpleNamespace

class Session:
    def __init__(self, task, seed, number):
        self.task, self.number, self.calls = task, number, []
    def initial_messages(self):
        return [{"role": "system", "content": "Play."}, {"role": "user", "content": self.task}]
    def list_tools(self):
        return [SimpleNamespace(name="guess", description="Guess.", input_schema={"type": "object", "properties": {}})]
    def call_tool(self, name, arguments):
        self.calls.append(arguments["number"])
        done = self.calls[-1] == self.number
        return SimpleNamespace(data={"right": done}, done=done, metadata={}, error=None)
    def verify(self, transcript, final_state=None):
        if self.number < 0:
            raise RuntimeError("no judge")
        metrics = {"calls": len(self.calls), "messages": len(transcript), "by": "judge"}
        return SimpleNamespace(env_reward=1.0 / len(self.calls), done=True, metrics=metrics, artifacts={})
    def close(self):
        print("closed")

class Factory:
    def __init__(self, number):
        self.number = number
    def create(self, task, seed=None, episode_id=None):
        return Session(task, seed, self.number)
"""


def test_a_factory_of_sessions_verifies(tool_world, user_file, capsys):
    args = {"factory": f"{user_file(FACTORY)}:Factory", "args": {"number": 7}}
    task = tool_world.task(prompt_value="Find it.")
    says = tool_world.says(call("guess", number=1), call("guess", number=7))
    rollout = tool_world.run(says, "openenv", args, task=task)
    assert (rollout.error, rollout.reward) == (None, 0.5)
    assert rollout.reward_parts == {"workflow": 0.5, "workflow/calls": 2.0, "workflow/messages": 6.0}
    assert "Find it." in tool_world.tokenizer.decode(says.requests[0].prompt_ids)
    args["args"] = {"number": -1}
    rollout = tool_world.run(says, "openenv", args | {"max_turns": 1}, task=task)
    assert "no judge" in rollout.error
    assert capsys.readouterr().out == "closed\nclosed\n"
