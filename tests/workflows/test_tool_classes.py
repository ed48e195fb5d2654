"""Tool classes and interactions with verl's interface, from configuration files, without verl."""

from __future__ import annotations

import asyncio
import sys

import pytest
import yaml

from strop.compat.verl.interface.tool_files import ClassTool, check_classes, verl_result
from strop.compat.verl.interface.tools import Gsm8kTool, OpenAIFunctionToolSchema, ToolResponse
from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow
from strop.workflows.result import InvalidWorkflowResult
from strop.workflows.tool import AgentData, OutputLimit
from tests.workflows.conftest import call


def schema(name, **properties):
    described = {key: {"type": kind, "description": key} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": described, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": f"{name} something", "parameters": parameters},
    }


ADDER = """
from typing import Any, Optional, Tuple
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op

LOG = []

class Adder(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.sums = {}

    async def create(self, instance_id: Optional[str] = None, start: int = 0, **kwargs) -> Any:
        instance_id = instance_id or str(uuid4())
        self.sums[instance_id] = start or kwargs.get("create_kwargs", {}).get("start", 0)
        LOG.append("create")
        return (instance_id, ToolResponse()) if self.config.get("pair") else instance_id

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> Tuple[Any, float, dict]:
        LOG.append("execute")
        if parameters["n"] < 0:
            raise ValueError("only positive numbers")
        self.sums[instance_id] += parameters["n"] * kwargs.get("times", 1)
        text = f"sum {self.sums[instance_id]}"
        return ToolResponse(text=text) if self.config.get("pair") else text, 0.5, {}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        LOG.append("calc_reward")
        return float(self.sums[instance_id] + kwargs.get("bonus", 0))

    async def release(self, instance_id: str, **kwargs) -> None:
        LOG.append("release")
        del self.sums[instance_id]
"""


ADD = schema("add", n="integer")


@pytest.fixture
def tools_yaml(tmp_path):
    """Writes a file of one tool class, or of one interaction."""

    def write(entry, section="tools"):
        path = tmp_path / f"{section}.yaml"
        path.write_text(yaml.safe_dump({section: [entry]}))
        return str(path)

    return write


@pytest.fixture
def tool_file(tools_yaml, user_file):
    """Writes a configuration file of the user's `Adder`."""

    def write(code=ADDER, **config):
        config = {"type": "native", **config}
        entry = {"class_name": f"{user_file(code)}:Adder", "config": config, "tool_schema": ADD}
        return tools_yaml(entry)

    return write


def run(world, texts, args, extra_info=None, **section):
    engine = world.says(*texts)
    task = world.task(extra={"extra_info": extra_info}) if extra_info is not None else None
    return world.run(engine, "tools", args, task=task, **section), engine


def tool_messages(rollout):
    return [m["content"] for m in rollout.response_messages if m["role"] == "tool"]


def log():
    return sys.modules["strop_user_mine"].LOG


@pytest.mark.parametrize("pair", [False, True])
def test_an_instance_of_the_rollout_keeps_its_state(tool_world, tool_file, pair):
    kwargs = {
        "create_kwargs": {"start": 10},
        "execute_kwargs": {"times": 2},
        "calc_reward_kwargs": {"bonus": 100},
        "release_kwargs": None,
    }
    extra_info = {"tools_kwargs": {"add": kwargs, "other": None}}
    texts = [call("add", n=1) + call("add", n=2), call("add", n=-1), "done"]
    args = {"tool_config": tool_file(pair=pair), "scored": "response"}
    rollout, _ = run(tool_world, texts, args, extra_info)
    assert rollout.error is None
    assert tool_messages(rollout) == ["sum 12", "sum 16", '{"error": "ValueError: only positive numbers"}']
    assert log() == ["create", "execute", "execute", "execute", "calc_reward", "release"]
    assert rollout.reward_parts == {"workflow/tool/add": 116.0}
    assert rollout.info == {
        "num_turns": 6,
        "tool_rewards": [0.5, 0.5],
        "turn_scores": [],
        "rollout_reward_scores": {"add": 116.0, "user_turn_rewards": []},
    }
    assert "sum 12" in rollout.text and rollout.text.endswith("done")


def test_an_instance_of_a_call_is_new_for_each(tool_world, tool_file):
    extra_info = {"tools_kwargs": {"add": {"create_kwargs": {"start": 5}}}}
    args = {"tool_config": tool_file(pair=True), "lifetime": "call"}
    rollout, _ = run(tool_world, [call("add", n=1), call("add", n=-1), "done"], args, extra_info)
    assert tool_messages(rollout) == ["sum 6", '{"error": "ValueError: only positive numbers"}']
    assert log() == ["create", "execute", "release"] * 2
    assert rollout.text == "done"


@pytest.mark.parametrize(("value", "error"), [("[1]", None), ("object()", "is not JSON")])
def test_values_for_reward_functions_must_be_json(tool_world, tool_file, value, error):
    code = ADDER.replace('LOG.append("execute")', f'kwargs["agent_data"].extra_fields["x"] = {value}')
    args = {"lifetime": "call", "scored": "response", "tool_config": tool_file(code)}
    rollout, _ = run(tool_world, [call("add", n=1), "done"], args)
    assert error in rollout.error if error else rollout.info["x"] == [1]


def test_a_failed_rollout_releases_its_instances(tool_world, tool_file):
    code = ADDER.replace('LOG.append("calc_reward")', 'raise KeyError("no reward")')
    rollout, _ = run(tool_world, ["done"], {"tool_config": tool_file(code)})
    assert "no reward" in rollout.error
    assert log() == ["create", "release"]


NAMED = {"tools_kwargs": {"calculator": {"create_kwargs": {}}}}


@pytest.mark.parametrize(
    ("extra_info", "lifetime", "shown"),
    [
        (NAMED, "rollout", {"calculator"}),
        (NAMED, "call", {"calculator", "add"}),
        ({"tool_selection": ["add"]}, "call", {"add"}),
        ({}, "rollout", {"calculator", "add"}),
    ],
)
def test_the_task_selects_its_tools(tool_world, tool_file, extra_info, lifetime, shown):
    args = {"tool_config": tool_file(), "tools": ["calculator"], "lifetime": lifetime}
    _, engine = run(tool_world, ["done"], args, extra_info)
    prompt = tool_world.tokenizer.decode(engine.requests[0].prompt_ids)
    assert {name for name in ("calculator", "add") if f'"name": "{name}"' in prompt} == shown


@pytest.mark.parametrize(
    ("texts", "limits"),
    [
        ([call("add", n=1) + call("add", n=2), "done"], {}),
        ([call("add", n=1)], {"max_turns": 2}),
        ([call("add", n=1)], {"max_user_turns": 1, "max_turns": None}),
    ],
)
def test_limits_on_calls_and_turns(tool_world, tool_file, texts, limits):
    rollout, engine = run(tool_world, texts, {"tool_config": tool_file(), "max_calls": 1, **limits})
    assert (tool_messages(rollout), len(engine.requests)) == (["sum 1"], 2)


def test_tokens_after_the_prompt_are_limited(tool_world, tool_file):
    args = {"tool_config": tool_file(), "max_turns": None, "max_new_tokens": 300}
    rollout, _ = run(tool_world, [call("add", n=1)], args)
    prompt, last = len(rollout.turns[0].prompt_ids), rollout.turns[-1]
    assert len(last.prompt_ids) + len(last.completion_ids) - prompt <= 300
    assert rollout.status == "truncated"
    assert len(rollout.turns) > 1


def test_a_call_that_cannot_be_parsed_may_be_text(tool_world, tool_file):
    args = {"tool_config": tool_file(), "malformed": "ignore"}
    rollout, engine = run(tool_world, ["<tool_call>{no}</tool_call>"], args)
    assert (tool_messages(rollout), len(engine.requests)) == ([], 1)


@pytest.mark.parametrize(
    ("side", "mark", "text"),
    [
        ("left", True, "(truncated)...6789"),
        ("right", True, "0123...(truncated)"),
        ("middle", True, "01...(truncated)...89"),
        ("left", False, "6789"),
        ("right", False, "0123"),
        ("middle", False, "0189"),
    ],
)
def test_truncation(side, mark, text):
    limit = OutputLimit(4, side, mark)
    assert limit.apply("0123456789") == text
    assert limit.apply("0123") == "0123"
    assert OutputLimit(None, side, mark).apply("0123456789") == "0123456789"


def test_calls_of_one_reply_run_concurrently(tool_world, tool_file):
    """The first call waits for the second one."""
    code = ADDER.replace("LOG = []", "import asyncio\nLOG = []\nSECOND = asyncio.Event()").replace(
        'LOG.append("execute")',
        "n = parameters['n']; LOG.append(f'start {n}'); "
        "SECOND.set() if n == 4 else await SECOND.wait(); LOG.append(f'end {n}')",
    )
    texts = [call("add", n=1) + call("add", n=4), "done"]
    rollout, _ = run(tool_world, texts, {"tool_config": tool_file(code)})
    assert log()[1:5] == ["start 1", "start 4", "end 4", "end 1"]
    assert tool_messages(rollout) == ["sum 5", "sum 4"]  # in the order of the calls


def test_results_of_tools():
    assert verl_result("text").text == "text"
    assert verl_result({"a": 1}).text == '{"a": 1}'
    assert verl_result(("text", None, None)).reward is None
    assert verl_result((ToolResponse(text="text"), 2, {})).reward == 2.0
    assert verl_result(ToolResponse()).text == ""
    assert verl_result(ToolResponse(text="see", image=[1])).images == (1,)
    with pytest.raises(InvalidWorkflowResult, match="returned video"):
        verl_result(ToolResponse(video=[1]))


def test_the_gsm8k_tool_by_hand():
    described = OpenAIFunctionToolSchema.model_validate(schema("calc_gsm8k_reward", answer="string"))
    data = AgentData("r", tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}})

    async def use(lifetime):
        instance = ClassTool(Gsm8kTool({}, described), lifetime).start(data)
        await instance.open()
        results = [await instance.call({"answer": answer}) for answer in ("7", "#### 72", 72)]
        return [result.reward for result in results], await instance.close(), results[1].text

    # A call without improvement costs 0.05; the tool's reward is that of the last answer.
    assert asyncio.run(use("rollout")) == (
        [-0.05, 0.0, -0.05],
        1.0,
        "Current parsed answer='#### 72' reward=1.0",
    )
    assert asyncio.run(use("call"))[:2] == ([-0.05, 0.0, 0.0], None)


def test_the_sandbox_tool_runs_programs(tool_world, tools_yaml):
    entry = {
        "class_name": "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
        "config": {"type": "native", "default_timeout": 60, "num_workers": 2, "rate_limit": 2},
        "tool_schema": schema("code_interpreter", code="string"),
    }
    texts = [call("code_interpreter", code="print(6 * 7)"), call("code_interpreter", code="1 / 0"), "42"]
    rollout, _ = run(tool_world, texts, {"tool_config": tools_yaml(entry)})
    first, second = tool_messages(rollout)
    assert first == "42\n" and "ZeroDivisionError" in second


FUNCTIONS = '''
from verl.tools.function_tool import function_tool

@function_tool("double")
def twice(n: int):
    """Twice a number.

    Args:
        n: The number.
    """
    return f"{2 * n}", 0.25

def helper():
    pass
'''


def test_functions_marked_for_verl(tool_world, user_file):
    args = {"function_file": str(user_file(FUNCTIONS)), "scored": "response"}
    rollout, _ = run(tool_world, [call("double", n=4), "done"], args)
    assert tool_messages(rollout) == ["8"]
    assert rollout.info["tool_rewards"] == [0.25]


USERS = """
from verl.interactions.base import BaseInteraction

class Teacher(BaseInteraction):
    async def start_interaction(self, instance_id=None, wanted=None, **kwargs):
        self.wanted = {**getattr(self, "wanted", {}), instance_id: wanted}
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        said = messages[-1]["content"]
        right = self.wanted[instance_id] in said
        return right, self.config["retry"], float(right), {}

    async def finalize_interaction(self):
        self.finalized = True
"""


def test_an_interaction_of_several_turns(tool_world, user_file, tools_yaml):
    entry = {"class_name": f"{user_file(USERS)}:Teacher", "config": {"retry": "Try again."}}
    args = {"interaction_config": tools_yaml(entry, "interaction"), "scored": "response"}
    extra_info = {"interaction_kwargs": {"name": "teacher", "wanted": "four"}}
    rollout, _ = run(tool_world, ["two", "three", "four"], args, extra_info)
    assert rollout.error is None
    roles = [message["role"] for message in rollout.response_messages]
    assert roles == ["assistant", "user", "assistant", "user", "assistant"]
    assert rollout.response_messages[1]["content"] == "Try again."
    assert rollout.info["turn_scores"] == [0.0, 0.0, 1.0]
    rollout, _ = run(tool_world, ["two"], {**args, "max_user_turns": 2}, extra_info)
    assert len(rollout.turns) == 3
    rollout, _ = run(tool_world, ["two"], args)  # a task without interaction_kwargs
    assert len(rollout.turns) == 1
    rollout, _ = run(tool_world, ["two"], args, {"interaction_kwargs": {"name": "pupil"}})
    assert "'pupil'; the interactions are teacher" in rollout.error


def test_the_gsm8k_interaction(tool_world, tools_yaml):
    class_name = "verl.interactions.gsm8k_interaction.Gsm8kInteraction"
    file = tools_yaml({"name": "gsm8k", "class_name": class_name, "config": {}}, "interaction")
    extra_info = {"interaction_kwargs": {"name": "gsm8k", "query": "?", "ground_truth": "4"}}
    rollout, _ = run(tool_world, ["#### 5", "#### 4"], {"interaction_config": file}, extra_info)
    assert len(rollout.turns) == 2
    assert rollout.response_messages[1]["content"].startswith("Your response is incorrect!")


WRONG = (
    ({"class_name": "verl.tools.search_tool.SearchTool"}, "a class of verl, which is not installed"),
    ({"class_name": "mine.py:T", "mcp": {}}, "the section mcp is for config.type mcp"),
    ({"class_name": "mine.py:T", "config": {"type": "other"}}, "write native"),
    ({"class_name": "mine.py:T", "schema": {}}, "unknown key 'schema'"),
    ({"config": {}}, "needs a class_name"),
    ({"class_name": "mine.py:T", "config": [1]}, "config: expected a mapping"),
    ({"class_name": "mine.py:T", "mcp": "servers.json"}, "mcp: expected a mapping"),
    ({"class_name": "verl.tools.gsm8k_tool.Gsm8kTool"}, "has no schema"),
    ({"class_name": "json.JSONDecoder", "tool_schema": {"type": "function"}}, "tool_schema.function"),
    ({"class_name": "none.such.Tool"}, "there is no module 'none'"),
)


@pytest.mark.parametrize(("entry", "told"), WRONG)
def test_wrong_configuration_files(tools_yaml, entry, told):
    file = tools_yaml(entry)
    with pytest.raises(ConfigError, match=told) as raised:
        load_workflow(WorkflowConfig(name="tools", args={"tool_config": file}))
    assert file in str(raised.value)


@pytest.mark.parametrize("entry", [WRONG[0], WRONG[2], WRONG[4]])
def test_a_check_finds_what_cannot_be_used_and_imports_no_class_of_the_user(tmp_path, entry):
    wrong, told = entry
    path = tmp_path / "tools.yaml"
    known = {"class_name": "verl.tools.gsm8k_tool.Gsm8kTool"}
    path.write_text(yaml.safe_dump({"tools": [known, {"class_name": "none.such.Tool"}]}))
    check_classes(str(path), None)
    path.write_text(yaml.safe_dump({"tools": [known, wrong], "interaction": [wrong]}))
    for files in ((str(path), None), (None, str(path))):
        with pytest.raises(ConfigError, match=told):
            check_classes(*files)


def test_a_missing_module_of_verl_is_named(user_file, tools_yaml):
    file = tools_yaml({"class_name": f"{user_file('from verl.utils.dataset import RLHFDataset')}:T"})
    with pytest.raises(ConfigError, match=r"no module verl\.utils\.dataset; it has verl\.tools\.base_tool"):
        load_workflow(WorkflowConfig(name="tools", args={"tool_config": file}))


def test_modules_below_the_current_directory_are_found(tmp_path, monkeypatch, tool_world, tools_yaml):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe_of_mine").mkdir()
    (tmp_path / "recipe_of_mine" / "adder.py").write_text(ADDER)
    file = tools_yaml({"class_name": "recipe_of_mine.adder.Adder", "tool_schema": ADD})
    rollout, _ = run(tool_world, [call("add", n=1), "done"], {"tool_config": file})
    assert tool_messages(rollout) == ["sum 1"]
