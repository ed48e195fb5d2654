"""What a run file can say for a function, and what is said when it cannot be meant."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.errors import RewardError
from strop.rewards.function import Function
from strop.rewards.signature import Answer, Misfit, read_result
from strop.rewards.table import BUILTINS, SOURCES
from tests.rewards import users

USERS = str(Path(users.__file__))
ANSWER = Answer(
    "abc",
    ({"role": "user", "content": "spell"},),
    answer="abc",
    source="letters",
    completion_ids=[7, 8, 9],
    columns={"numbers": [1, 2], "solution": "abc", "extra_info": {"index": 5}},
)


def call(function: Any, **args: Any) -> tuple[float, dict[str, float]]:
    return Function.of(function, args=args).load()(ANSWER)


@pytest.mark.parametrize("name", BUILTINS)
def test_built_ins_are_there_and_documented(name: str) -> None:
    function = Function.of(name)
    assert function.name == name
    assert function.load().function.__doc__


def test_sources_name_built_ins() -> None:
    assert set(SOURCES.values()) < set(BUILTINS)


def test_plain_functions() -> None:
    assert call(f"{USERS}:share_of_a")[0] == pytest.approx(1 / 3)
    assert call("tests.rewards.users.share_of_a")[0] == pytest.approx(1 / 3)
    assert call(users.judge) == (1.0, {})
    assert call(lambda text: len(text)) == (3.0, {})
    assert call(lambda completion, **columns: sorted(columns) == COLUMNS) == (1.0, {})
    assert call(functools.partial(lambda completion, answer, scale: scale, scale=4)) == (4.0, {})


COLUMNS = sorted(["answer", "source", "prompt", "conversation", "numbers", "solution", "extra_info"])


def test_columns_and_arguments_by_name() -> None:
    def near(completion: str, numbers: list[int], source: str, prompt: Any, scale: float = 1.0) -> float:
        assert source == "letters" and prompt[0]["content"] == "spell"
        return scale * sum(numbers)

    assert call(near) == (3.0, {})
    assert call(near, scale=2.0) == (6.0, {})


def test_verls_signature() -> None:
    assert call(f"{USERS}:compute_score", bonus=1) == (2.0, {"acc": 1.0, "index": 5.0})

    def with_kwargs(solution_str: str, ground_truth: str, **kwargs: Any) -> bool:
        return solution_str == ground_truth and set(kwargs) == {"data_source", "extra_info"}

    assert call(with_kwargs) == (1.0, {})


def test_trls_signature() -> None:
    assert call(users.trl_messages) == (1.0, {})
    assert call(users.trl_texts) == (1.0, {})
    assert call(users.trl_soft_overlong) == (-3.0, {})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("gsm8", "did you mean 'gsm8k'.*The built-ins are gsm8k, math"),
        ("nothing_like_it", r"The built-ins are .*file\.py:function"),
        ("no.such.module", "no module 'no' on Python's path.*file.py:function"),
        ("tests.rewards.nowhere.f", "no module 'tests.rewards.nowhere'"),
        ("tests.rewards.users.neer", "users.py has no 'neer'. Did you mean 'near'?"),
        ("no/such/file.py:f", "there is no file .*no/such/file.py"),
        (f"{USERS}:neer", "has no 'neer'. Did you mean 'near'?"),
        (f"{USERS}:not_a_function", "is a int, not a function"),
        (f"{USERS}:Judge", "is a class; name a function"),
        (f"{USERS}:batched", "whole batches at once"),
        ("rewards.txt:f", "rewards.txt' is not a .py file"),
        (lambda: 1.0, r"lambda\(\) is not understood.*f\(completion, answer"),
        (lambda *args: 1.0, "not understood"),
        (lambda completion, /: 1.0, "not understood"),
        (3, "is a int, not a function"),
    ],
)
def test_what_cannot_be_meant_is_refused(function: Any, message: str) -> None:
    with pytest.raises(RewardError, match=f"(?s){message}"):
        Function.of(function)


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nraise OSError('no licence')\n")
    with pytest.raises(RewardError, match=r"(?s)loading .*bad\.py failed: OSError: no licence.*line 2"):
        Function.of(f"{bad}:f")
    bad.write_text("def f(:\n")
    with pytest.raises(RewardError, match=r"(?s)bad\.py failed: SyntaxError"):
        Function.of(f"{bad}:f")
    bad.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(RewardError, match=r"bad\.py failed: SystemExit: 0"):
        Function.of(f"{bad}:f")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(RewardError, match="No module named 'no_such_package'"):
        Function.of(f"{tmp_path}/needs.py:f")


def test_a_function_that_cannot_be_sent() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(RewardError, match=r"cannot be sent to a worker.*lock"):
        Function.of(lambda completion: float(lock.locked()))


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("gsm8k", {"method": "strikt"}, "args.method is 'strikt'; it can be 'strict', 'flexible'"),
        ("gsm8k", {"methd": "strict"}, "no argument 'methd'; it takes method"),
        ("gsm8k", {"completion": "x"}, "args.completion is what Strop itself passes"),
        (users.compute_score, {"ground_truth": 1}, "args.ground_truth is what Strop itself passes"),
        (users.trl_messages, {"completions": 1}, "args.completions is what Strop itself passes"),
        (users.share_of_a, {"x": 1}, "no argument 'x'; it takes none"),
    ],
)
def test_arguments_that_do_not_fit(function: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        Function.of(function, args=args)


def test_annotations_that_only_a_type_checker_sees() -> None:
    def typed(completion: str, answer: NoSuchType) -> float:  # type: ignore[name-defined]  # noqa: F821
        return 1.0

    assert call(typed) == (1.0, {})


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(Misfit, match="asks for the column 'target'; the task has answer, completion"):
        call(lambda completion, target: 1.0)


@pytest.mark.parametrize(
    ("result", "score"),
    [
        (1, (1.0, {})),
        (True, (1.0, {})),
        (0.5, (0.5, {})),
        (np.float32(0.5), (0.5, {})),
        (np.bool_(True), (1.0, {})),
        (np.array(2.0), (2.0, {})),
        ([0.25], (0.25, {})),
        ({"score": 1, "acc": True, "pred": "x", "bad": float("nan")}, (1.0, {"acc": 1.0})),
    ],
)
def test_results(result: Any, score: Any) -> None:
    assert read_result(result) == score


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (float("nan"), "returned nan"),
        (float("-inf"), "returned -inf"),
        (None, "returned None"),
        ("1.0", "returned a str, '1.0'"),
        ([], r"returned a list, \[\]"),
        ([1.0, 2.0], "returned a list"),
        ({"reward": 1.0}, "returned a dict without 'score', with reward"),
        ({"score": "high"}, "returned a str, 'high'"),
        (np.zeros(2), "returned a ndarray"),
    ],
)
def test_results_that_are_no_rewards(result: Any, message: str) -> None:
    with pytest.raises(Misfit, match=message):
        read_result(result)


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; from strop.rewards.score import Scorer; from strop.config.schema.reward import Reward;"
        "Scorer(Reward(functions=[{'function': name} for name in ('gsm8k', 'math', 'by_source')]));"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_imports_little() -> None:
    code = (
        "import sys, strop.rewards.worker; sys.exit(bool({'numpy', 'pydantic', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
