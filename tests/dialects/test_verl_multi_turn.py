"""Tools, interactions and agent loops of verl, at both times."""

from __future__ import annotations

from typing import Any

import pytest

from strop.dialects.convert import ALWAYS_WRITTEN
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.verl.ppo_trainer import LEDGER, read_verl
from strop.dialects.verl.sft_trainer import read_verl_sft
from strop.errors import ConfigError

MODEL = "actor_rollout_ref.model.path=m"
ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
LOOPS = f"{ROLLOUT}.agent.agent_loop_config_path=agents.yaml"
TOOLS = f"{TURNS}.tool_config_path=tools.yaml"
RESPONSE = {"max_new_tokens": 512, "scored": "response", "malformed": "ignore"}
SYNC = {**RESPONSE, "tools": [], "max_turns": None, "lifetime": "rollout", "max_output": None}
AGENT = {
    **RESPONSE,
    "tools": [],
    "max_turns": None,
    "lifetime": "call",
    "max_calls": 1,
    "form": "hermes",
    "max_output": 256,
    "truncated_side": "middle",
    "mark_truncation": True,
}


def workflow(*overrides: str) -> tuple[str, dict[str, Any]]:
    run = read_verl([MODEL, f"{ROLLOUT}.n=4", *overrides], here=True).run
    return run.rollout.workflow.name, run.rollout.workflow.args


@pytest.mark.parametrize(
    ("overrides", "args"),
    [
        ([], {}),
        ([f"{TURNS}.max_turns=5"], {"max_turns": 5}),
        (
            [f"{TURNS}.max_assistant_turns=3", f"{TURNS}.max_user_turns=2"],
            {"max_turns": 3, "max_user_turns": 2},
        ),
        ([f"{TURNS}.interaction_config_path=u.yaml"], {"interaction_config": "u.yaml"}),
        ([f"{ROLLOUT}.mode=sync", f"{TURNS}.max_parallel_calls=2"], {}),  # only agent loops read it
        (["data.max_response_length=99"], {"max_new_tokens": 99}),
        ([f"{TURNS}.use_inference_chat_template=True", "data.return_raw_chat=True"], {}),
        ([f"{TURNS}.format=qwen"], {}),  # the format is that of the chat template
    ],
)
def test_without_agent_loops(overrides: list[str], args: dict[str, Any]) -> None:
    expected = {**SYNC, "tool_config": "tools.yaml", **args}
    assert workflow(f"{TURNS}.enable=True", TOOLS, *overrides) == ("tools", expected)


def test_the_switch_decides_without_agent_loops() -> None:
    assert workflow(TOOLS) == ("single_turn", {})
    assert workflow(f"{ROLLOUT}.agent.num_workers=4") == ("single_turn", {})


@pytest.mark.parametrize(
    ("overrides", "default", "tools"),
    [
        ([f"{ROLLOUT}.mode=async", TOOLS], "single_turn_agent", {"tool_config": "tools.yaml"}),
        ([f"{ROLLOUT}.agent.default_agent_loop=tool_agent"], "tool_agent", {}),
        (
            [f"{ROLLOUT}.mode=async", f"{TURNS}.enable=True", f"{TURNS}.max_parallel_calls=3"],
            "single_turn_agent",
            {"max_calls": 3},
        ),
        # verl's `left` kept the left part up to 0.7, and removes it since 0.8, which added function_tool_path.
        (
            [f"{ROLLOUT}.mode=async", TOOLS, f"{TURNS}.tool_response_truncate_side=left"],
            "single_turn_agent",
            {"tool_config": "tools.yaml", "truncated_side": "right"},
        ),
        (
            [f"{TURNS}.function_tool_path=f.py", f"{TURNS}.tool_response_truncate_side=left"],
            "single_turn_agent",
            {"function_file": "f.py", "truncated_side": "left"},
        ),
        (
            [f"{ROLLOUT}.mode=async", TOOLS, f"{TURNS}.format=qwen3_coder"],
            "single_turn_agent",
            {"tool_config": "tools.yaml", "form": "qwen3_coder"},
        ),
        (
            [f"{ROLLOUT}.mode=async", TOOLS, f"{TURNS}.format=gpt-oss"],
            "single_turn_agent",
            {"tool_config": "tools.yaml", "form": "gpt_oss"},
        ),
    ],
)
def test_agent_loops(overrides: list[str], default: str, tools: dict[str, Any]) -> None:
    assert workflow(*overrides) == ("verl_agents", {"default_agent": default, "tools": {**AGENT, **tools}})


def test_agent_loops_of_the_user_get_the_configuration() -> None:
    """Among it the name of a format that only the user's loop can parse."""
    name, args = workflow(
        f"{ROLLOUT}.agent.default_agent_loop=mine",
        f"{ROLLOUT}.agent.agent_loop_config_path=agents.yaml",
        f"{TURNS}.format=mine",
    )
    assert "form" not in args["tools"]
    assert args["config"]["actor_rollout_ref"]["rollout"]["multi_turn"]["format"] == "mine"
    assert (name, args["default_agent"], args["agent_loops"]) == ("verl_agents", "mine", "agents.yaml")
    assert args["config"]["actor_rollout_ref"]["rollout"]["response_length"] == 512
    assert args["config"]["data"]["max_prompt_length"] == 512


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([f"{ROLLOUT}.agent.default_agent_loop=mine"], "also write .*agent_loop_config_path"),
        (
            [f"{ROLLOUT}.mode=async", TOOLS, f"{TURNS}.format=xml"],
            "cannot parse; it has hermes, llama3_json, qwen3_coder, gpt-oss",
        ),
        ([f"{TURNS}.enable=True", f"{TURNS}.completion_callback=a.b"], "as a workflow"),
        ([f"{TURNS}.max_turn=3"], "does not know this key"),
        ([f"{ROLLOUT}.agent.custom_async_server.path=x"], "runs agent loops itself"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        workflow(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{TURNS}.enable=True", TOOLS, f"{TURNS}.max_assistant_turns=3"],
        [f"{ROLLOUT}.mode=async", f"{TURNS}.enable=True", TOOLS, f"{TURNS}.max_user_turns=2"],
        [f"{TURNS}.function_tool_path=f.py", f"{TURNS}.tool_response_truncate_side=left"],
        [f"{ROLLOUT}.mode=async", f"{TURNS}.enable=True", f"{TURNS}.tool_response_truncate_side=left"],
        [LOOPS],
        [LOOPS, f"{TURNS}.max_turns=3", f"{TURNS}.tool_response_truncate_side=left"],
        [LOOPS, f"{ROLLOUT}.val_kwargs.top_k=0", "data.custom_cls.name=Mine"],  # no effect in the run itself
    ],
)
def test_written_back(overrides: list[str]) -> None:
    run = read_verl([MODEL, f"{ROLLOUT}.n=4", *overrides], here=True).run
    written = write_dialect(LEDGER, run, always=ALWAYS_WRITTEN["verl"])
    assert written.unsupported == ()


def test_conversations_of_sft() -> None:
    run = read_verl_sft(["data.multiturn.enable=True", "data.multiturn.tools_key=functions"]).run
    assert run.data.train.tools == "functions"
    assert run.data.train.template_columns == {"enable_thinking": "enable_thinking"}
    assert run.data.train.optional_columns == ("functions", "enable_thinking")
    run = read_verl_sft(
        ["model.path=m", "data.messages_key=chat", "data.enable_thinking_default=False"], here=True
    ).run
    assert run.data.chat_template_args == {"enable_thinking": False}
    assert run.data.train.template_columns == {"enable_thinking": "enable_thinking"}
