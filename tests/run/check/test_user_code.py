"""The user's code in a check: what it does at import, and what its rewards give the reference answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strop.config.schema import Run
from strop.run.check.reference_answers import score_reference_answers
from strop.run.check.refusals import Findings
from strop.run.check.user_code import check_user_code, examine

GENEROUS_SECONDS = 300.0
ROWS = [
    {"prompt": "1+1=", "answer": "2"},
    {"prompt": "2+3=", "answer": "5"},
    {"prompt": "0+0=", "answer": "0"},
]
REWARDS = r"""
def exact(completion, answer): return float(completion == answer)
def boxed(completion, answer): return float(completion == "\\boxed{" + answer + "}")
def contained(completions, answer): return [float(a in c) for c, a in zip(completions, answer)]
def length(completion): return float(len(completion))
def constant(completion, answer): return 0.5
def raises(completion, answer): raise KeyError("no such thing")
def raises_on_wrong(completion, answer): return 1.0 if completion == answer else int(completion)
def some(completion, answer): return float(completion == answer and answer != "5")
def solved(completions, solution): return [float(a == c) for c, a in zip(completions, solution)]
def leaves_out(completions, **columns): return [None]
"""

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A run with a reward and rows; `code` becomes the file `mine.py`."""
    (tmp_path / "rewards.py").write_text(REWARDS)

    def make(
        reward: Any = "exact", rows: list[dict[str, Any]] = ROWS, code: str = "", **sections: Any
    ) -> Run:
        (tmp_path / "mine.py").write_text(code)
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        functions = [{"function": f"{tmp_path}/{one}" if ".py:" in one else one} for one in reward.split("|")]
        train = {"path": str(tmp_path / "rows.jsonl"), **sections.pop("train", {})}
        return Run.model_validate(
            {
                "model": {"path": "none"},
                "data": {"train": train},
                "reward": {"functions": functions, "timeout_seconds": 20},
                "algorithm": {"type": "grpo"},
                "trainer": {"duration": "1 steps", "tasks_per_step": 1},
                **sections,
            }
        )

    return make


@pytest.mark.parametrize(
    ("code", "limit", "message"),
    [
        (
            "import os; os._exit(3)",
            GENEROUS_SECONDS,
            r"the import of the reward functions \(.*mine.py:f\): .* exit code 3",
        ),
        (
            "import os; os.abort()",
            GENEROUS_SECONDS,
            r"by signal 6 \(Aborted\), at File \".*mine.py\", line 1",
        ),
        (
            "import time; time.sleep(3600)",
            0.5,
            r"mine.py:f\): the code did not return within 0\.5 s, and was ended",
        ),
        ("raise SystemExit(0)", GENEROUS_SECONDS, r"loading .*mine.py failed: SystemExit: 0"),
        ("import nothing_here", GENEROUS_SECONDS, "No module named 'nothing_here'"),
    ],
)
def test_code_that_does_not_return(make: Make, code: str, limit: float, message: str) -> None:
    """None of it ends the check itself, which says what began it."""
    run = make("mine.py:f", code=f"{code}\ndef f(completion): return 1.0")
    (fault,) = check_user_code(run, None, limit).faults
    assert re.search(message, fault), fault


def examined(run: Run) -> Findings:
    return examine(run, None, lambda work: None)


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("exact", "exact: reward of the reference answer: 1 (3 of 3 rows); reward of a wrong answer: 0"),
        ("gsm8k", "gsm8k: reward of the reference answer, written as #### ...: 1 (3 of 3 rows)"),
        ("math", "1 (3 of 3 rows); reward of a wrong answer: 0"),
        ("verl_gsm8k", "written as #### ...: 1 (3 of 3 rows)"),
        ("rewards.py:exact", "exact: reward of the reference answer: 1 (3 of 3 rows)"),
        ("rewards.py:boxed", r"written as \boxed{...}: 1 (3 of 3 rows)"),
        ("rewards.py:contained", "contained: reward of the reference answer: 1 (3 of 3 rows)"),
        ("rewards.py:some", "1 (2 of 3 rows), 0 (1 of 3 rows)"),
    ],
)
def test_reward_of_the_reference_answer(make: Make, reward: str, told: str) -> None:
    found = examined(make(reward))
    assert (found.faults, found.unchecked, found.advice) == ([], [], [])
    assert len(found.checked) == 1 and told in found.checked[0]


@pytest.mark.parametrize(
    ("reward", "changes", "untold"),
    [
        ("rewards.py:constant", {}, "it gives the reference answer 0.5 and a wrong one 0.5, alone and in"),
        ("rewards.py:leaves_out", {}, "it left them out"),
        ("format", {}, "format: rewards of reference answers: it reads no answer"),
        (
            "exact",
            {"rows": [{"prompt": "1", "answer": {"a": 1}}]},
            "'I do not know.' gets 0 (1 of 1 row) from exact",
        ),
        ("rewards.py:length", {"train": {"answer": None}, "rows": [{"prompt": "1"}]}, "gets 14 (1 of 1 row)"),
        (
            "rewards.py:exact",
            {"rollout": {"workflow": "tools"}},
            "values of the workflow tools, which was not run",
        ),
        ("exact", {"train": {"path": "owner/tasks"}}, "the rows are no files of this machine"),
    ],
)
def test_rewards_whose_reference_answers_are_not_scored(
    make: Make, reward: str, changes: dict[str, Any], untold: str
) -> None:
    found = score_reference_answers(make(reward, **changes))
    assert found.checked == [] and untold in "\n".join(found.unchecked)


def test_the_column_that_a_function_in_the_form_of_trl_reads(make: Make) -> None:
    rows = [{"prompt": "1+1=", "solution": "2"}, {"prompt": "2+3=", "solution": "5"}]
    found = examined(make("rewards.py:solved", rows, train={"answer": None}))
    assert (
        "solved: reward of the reference answer: 1 (2 of 2 rows); reward of a wrong answer: 0"
        in found.checked[0]
    )


def test_a_function_that_fails_on_every_answer_is_refused(make: Make) -> None:
    (fault,) = examined(make("rewards.py:raises")).faults
    told = "data.train: on each of the 3 answers that were tried, the reward 'raises' raised KeyError: 'no such thing'"
    assert told in fault
    tolerant = examined(make("rewards.py:raises", rollout={"max_error_fraction": 1.0}))
    assert tolerant.faults == [] and "raised KeyError" in tolerant.advice[0]


def test_a_workflow_is_imported_with_the_variables_of_the_run(make: Make, tmp_path: Path) -> None:
    code = "import os\nos.environ['STROP_TEST_KEY']\nasync def mine(task, chat): pass"
    run = make(
        "exact", code=code, rollout={"workflow": f"{tmp_path}/mine.py:mine", "env": {"STROP_TEST_KEY": "x"}}
    )
    assert examined(run).faults == []
    (fault,) = examined(make("exact", code=code, rollout={"workflow": f"{tmp_path}/mine.py:mine"})).faults
    assert "STROP_TEST_KEY" in fault


def test_servers_of_tools_are_not_contacted(make: Make, tmp_path: Path) -> None:
    """Loading the workflow would start them."""
    (tmp_path / "servers.json").write_text('{"mcpServers": {"one": {"command": "no-such-program"}}}')
    (tmp_path / "tools.yaml").write_text(
        "tools: [{class_name: verl.tools.mcp_base_tool.MCPBaseTool, config: {type: mcp}, "
        f"mcp: {{mcp_servers_config_path: {tmp_path / 'servers.json'}}}}}]"
    )
    workflow = {"name": "tools", "args": {"tool_config": str(tmp_path / "tools.yaml")}}
    found = examined(make("exact", rollout={"workflow": workflow}))
    assert found.faults == [] and "its MCP servers were neither started nor contacted" in found.unchecked[0]


def test_a_function_that_fails_on_some_answers_is_a_warning(make: Make) -> None:
    found = examined(make("rewards.py:raises_on_wrong"))
    assert found.faults == []
    assert "answers failed" in found.advice[0] and "raised ValueError" in found.advice[0]
