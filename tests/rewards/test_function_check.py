"""Reward functions against the columns of the tasksets, before anything is sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strop.config.schema import Run
from strop.errors import ConfigError
from strop.rewards.scorable_tasks import function_faults, require_scorable_tasks

FUNCTIONS = """
import functools
def trl(completions, solution, **columns): return [1.0]
def trl_steps(completions, trainer_state, log_metric, log_extra, completion_ids): return [1.0]
def trl_answer(completions, answer): return [1.0]
def plain(completion, answer, level): return 1.0
def plain_source(completion, source): return 1.0
def default(completion, answer, level=1): return 1.0
def verl(data_source, solution_str, ground_truth, extra_info=None): return 1.0
def verl_more(solution_str, ground_truth, tokenizer): return 1.0
def positional(completion, /): return 1.0
def only_args(*completions): return 1.0
def score(completion): return 1.0
async def later(completions, solution): return [1.0]
class Kind:
    def __call__(self, completion, level): return 1.0
kind = Kind()
bound = functools.partial(plain, level=2)
"""


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """A run with rewards of `FUNCTIONS`, and rows."""
    (tmp_path / "rewards.py").write_text(FUNCTIONS)

    def make(
        functions: list[Any], rows: list[dict[str, Any]], *, workflow: str = "single_turn", **train: Any
    ) -> Run:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        parts = [{"function": f} if isinstance(f, str) else f for f in functions]
        for part in parts:
            if "." not in part["function"] and part["function"] not in ("gsm8k", "exact"):
                part["function"] = f"{tmp_path / 'rewards.py'}:{part['function']}"
        return Run.model_validate(
            {
                "model": {"path": "none"},
                "data": {"train": {"path": str(path), **train}},
                "reward": {"functions": parts},
                "algorithm": {"type": "grpo"},
                "trainer": {"duration": "1 steps", "tasks_per_step": 1},
                "rollout": {"workflow": workflow},
            }
        )

    return make


ROW = {"prompt": "1", "answer": "2"}


@pytest.mark.parametrize(
    ("functions", "extra"),
    [
        (["trl"], {"solution": "3"}),
        (["trl"], {"solution": None}),
        (["trl_steps"], {}),
        (["trl_answer"], {}),
        (["plain"], {"level": 1}),
        ([{"function": "plain", "args": {"level": 1}}], {}),
        (["bound"], {}),
        (["default", "verl", "score"], {}),
        (["kind"], {"level": 1}),
        (["later"], {"solution": "x"}),
        ([{"function": "score", "name": "one"}, "score"], {}),
        (["gsm8k", "exact"], {}),
    ],
)
def test_functions_that_can_score(make: Any, functions: list[Any], extra: dict[str, Any]) -> None:
    assert list(function_faults(make(functions, [{**ROW, **extra}]))) == []


@pytest.mark.parametrize(
    ("functions", "rows", "train", "message"),
    [
        (
            ["trl"],
            [ROW],
            {},
            r"^data.train: the reward 'trl' requires the column 'solution', .* line 1 has 'answer'",
        ),
        (["later"], [ROW], {}, "'later' requires the column 'solution'"),
        (["kind"], [ROW], {}, "'kind' requires the column 'level'"),
        (
            ["plain"],
            [{**ROW, "level": 1}, ROW, ROW],
            {},
            "'level', which 2 of 3 rows lack, the first .* line 2",
        ),
        (
            ["plain"],
            [{"prompt": "1", "level": 1}],
            {"answer": None},
            "'answer', and data.train.answer is null",
        ),
        (
            ["trl_answer"],
            [{"prompt": "1"}],
            {"answer": None},
            "'answer', and data.train.answer is null",
        ),
        (
            ["plain_source"],
            [ROW],
            {},
            "'source', and data.train.source is null. Write the column of the source",
        ),
        (["verl_more"], [ROW], {}, r"^reward.functions.0: .*requires 'tokenizer'"),
        (["positional"], [ROW], {}, r"positional\(completion, /\) is not supported"),
        (["only_args"], [ROW], {}, "is not supported"),
        (["Kind"], [ROW], {}, "Kind is a class"),
        (["missing"], [ROW], {}, "has no 'missing'"),
        (["score", "score"], [ROW], {}, r"^reward: two components are named 'score'"),
        (
            [{"function": "score", "name": "workflow"}],
            [ROW],
            {},
            "which is the name of the reward that a workflow",
        ),
        ([{"function": "score", "args": {"x": 1}}], [ROW], {}, "unknown argument 'x'"),
    ],
)
def test_functions_that_cannot_score(
    make: Any, functions: list[Any], rows: list[Any], train: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        require_scorable_tasks(make(functions, rows, **train))


def test_a_workflow_of_the_user_may_add_the_column(make: Any) -> None:
    assert list(function_faults(make(["trl"], [ROW], workflow="my_workflow.run"))) == []


def test_a_function_from_python_is_checked_too(make: Any) -> None:
    with pytest.raises(ConfigError, match="'reward' requires the column 'level'"):
        require_scorable_tasks(make(["score"], [ROW]), _reward)


def _reward(completion: str, level: int) -> float:
    return float(level)


_reward.__name__ = "reward"
