"""Tests of Trinity's workflows and of the explorer's rollout limits."""

from __future__ import annotations

import pytest

from strop.config.effective_reward import effective_reward
from strop.config.schema.workflow import WorkflowConfig
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER
from strop.dialects.trinity.workflows import BOXED_PROMPT, R1_PROMPT
from strop.errors import ConfigError
from strop.workflows.registry import load_workflow

from .trinity_file import TASKSET, read

pytestmark = pytest.mark.usefixtures("trinity_file")
EVAL = "buffer.explorer_input.eval_tasksets.0"
TAGS = WorkflowConfig(name="math", args={"system": R1_PROMPT})
BOXED = WorkflowConfig(name="math", args={"system": BOXED_PROMPT})
FORMAT = {"prompt_key": "question", "response_key": "answer"}
PACKAGED = WorkflowConfig(name="trinity", args={"workflow": "alfworld_workflow", "format": FORMAT})
REGISTERED = WorkflowConfig(
    name="trinity", args={"workflow": "async_talk_flow", "reward_fn": "math_reward", "format": FORMAT}
)
DOTTED = WorkflowConfig(name="trinity", args={"workflow": "my.flows.Talk", "format": FORMAT})


@pytest.mark.parametrize(
    ("workflow", "reward", "expected", "scored"),
    [
        ("simple_workflow", "countdown_reward", WorkflowConfig(), ["trinity_countdown"]),
        ("math_workflow", "countdown_reward", WorkflowConfig(), ["trinity_countdown"]),
        ("math_workflow", "math_reward", TAGS, ["trinity_math", "format"]),
        ("math_workflow", "null", TAGS, ["trinity_math", "format"]),
        ("async_math_workflow", "null", TAGS, ["trinity_math", "format"]),
        ("math_boxed_workflow", "null", BOXED, ["trinity_math_boxed"]),
        ("alfworld_workflow", "null", PACKAGED, []),
        ("async_talk_flow", "math_reward", REGISTERED, []),
        ("my.flows.Talk", "null", DOTTED, []),
        ("mine.py:talk", "null", WorkflowConfig(name="mine.py:talk"), []),
        ("mine.py:talk", "exact", WorkflowConfig(name="mine.py:talk"), ["exact"]),
    ],
)
def test_workflow_and_reward(workflow: str, reward: str, expected: WorkflowConfig, scored: list[str]) -> None:
    run = read(f"+buffer.default_workflow_type={workflow}", f"buffer.default_reward_fn_type={reward}").run
    own = {"format": {"prompt_key": "prompt"}, "is_eval": True}
    evaluation = {**expected.args, **own} if expected.name == "trinity" else None
    assert run.rollout.workflow == expected
    assert evaluation == (run.data.eval[0].workflow and run.data.eval[0].workflow.args)
    assert [part.function for part in effective_reward(run).functions] == scored
    assert write_dialect(LEDGER, run).unsupported == ()


def test_a_taskset_has_its_own_workflow_and_arguments() -> None:
    own = f"+{EVAL}={{default_workflow_type: 'm.py:W', workflow_args: {{turns: 3}}}}"
    run = read(own.replace("+", "", 1), f"+{TASKSET}.workflow_args={{a: 1}}").run
    assert run.data.eval[0].workflow == WorkflowConfig(name="m.py:W", args={"turns": 3})
    assert run.rollout.workflow == WorkflowConfig(args={"a": 1})
    assert write_dialect(LEDGER, run).unsupported == ()


def test_a_workflow_of_trinitys_package_is_named_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"package trinity-rft, which needs the package alfworld\."):
        load_workflow(PACKAGED)


def test_rollout_limits_retries_and_environment() -> None:
    explorer = (
        "{max_timeout: 60, max_retry_times: 5, env_vars: {A: 1}, rollout_model: {enable_history: true}}"
    )
    rollout = read(f"+explorer={explorer}").run.rollout
    assert (rollout.timeout_seconds, rollout.retries, rollout.env) == (60, 5, {"A": "1"})
    plain = read().run.rollout
    assert (plain.timeout_seconds, plain.retries) == (3600, 2)


def test_max_model_len_bounds_a_whole_conversation() -> None:
    assert read("model.max_model_len=96").run.rollout.max_sequence_tokens is None
    assert read("model.max_model_len=200").run.rollout.max_sequence_tokens == 200
    assert read("model.max_model_len=90").run.rollout.max_sequence_tokens == 90


def test_unknown_workflow_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown workflow math_worflow; did you mean math_workflow\?"):
        read("+buffer.default_workflow_type=math_worflow")
    with pytest.raises(ConfigError, match="write default_reward_fn_type"):
        read("+buffer.default_workflow_type=simple_workflow", "buffer.default_reward_fn_type=null")
