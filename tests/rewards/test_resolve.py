"""Resolution of reward functions: references, signatures, arguments, results, and error messages."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import RewardInput, SignatureError, bind_reward, parse_reward_result
from strop.rewards.registry import BUILTIN_REWARDS, REWARD_BY_SOURCE
from tests.rewards import users

USERS = str(Path(users.__file__))
ANSWER = RewardInput(
    "abc",
    ({"role": "user", "content": "spell"},),
    answer="abc",
    source="letters",
    completion_ids=[7, 8, 9],
    columns={"numbers": [1, 2], "solution": "abc", "extra_info": {"index": 5}},
)


def call(function: Any, **args: Any) -> tuple[float, dict[str, float]]:
    return RewardFunctionSpec.of(function, args=args).load()(ANSWER)


@pytest.mark.parametrize("name", BUILTIN_REWARDS)
def test_builtin_rewards_exist_and_have_docstrings(name: str) -> None:
    function = RewardFunctionSpec.of(name)
    assert function.name == name
    assert function.load().function.__doc__


def test_sources_refer_to_builtin_rewards() -> None:
    assert set(REWARD_BY_SOURCE.values()) < set(BUILTIN_REWARDS)


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


def test_verls_batch_and_async_functions() -> None:
    assert call(f"{USERS}:batched") == (2.0, {})
    assert call(f"{USERS}:asked") == (3.0, {"acc": 1.0})


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
        ("rewards.txt:f", "rewards.txt' is not a .py file"),
        (lambda: 1.0, r"lambda\(\) is not supported.*f\(completion, answer"),
        (lambda *args: 1.0, "not supported"),
        (lambda completion, /: 1.0, "not supported"),
        (3, "is a int, not a function"),
    ],
)
def test_unresolvable_functions_are_rejected(function: Any, message: str) -> None:
    with pytest.raises(RewardError, match=f"(?s){message}"):
        RewardFunctionSpec.of(function)


def test_file_that_fails_to_load(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nraise OSError('no license')\n")
    with pytest.raises(RewardError, match=r"(?s)loading .*bad\.py failed: OSError: no license.*line 2"):
        RewardFunctionSpec.of(f"{bad}:f")
    bad.write_text("def f(:\n")
    with pytest.raises(RewardError, match=r"(?s)bad\.py failed: SyntaxError"):
        RewardFunctionSpec.of(f"{bad}:f")
    bad.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(RewardError, match=r"bad\.py failed: SystemExit: 0"):
        RewardFunctionSpec.of(f"{bad}:f")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    with pytest.raises(RewardError, match="No module named 'no_such_package'"):
        RewardFunctionSpec.of(f"{tmp_path}/needs.py:f")


def test_function_that_cannot_be_pickled() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(RewardError, match=r"cannot be sent to a worker.*lock"):
        RewardFunctionSpec.of(lambda completion: float(lock.locked()))


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("gsm8k", {"method": "strikt"}, "args.method is 'strikt'; write one of 'strict', 'flexible'"),
        ("gsm8k", {"methd": "strict"}, "unknown argument 'methd'; the function takes method"),
        ("gsm8k", {"completion": "x"}, "Strop itself passes args.completion"),
        (users.compute_score, {"ground_truth": 1}, "Strop itself passes args.ground_truth"),
        (users.trl_messages, {"completions": 1}, "Strop itself passes args.completions"),
        (users.share_of_a, {"x": 1}, "unknown argument 'x'; the function takes none"),
    ],
)
def test_invalid_arguments(function: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        RewardFunctionSpec.of(function, args=args)


def test_annotations_without_a_runtime_type() -> None:
    def typed(completion: str, answer: NoSuchType) -> float:  # type: ignore[name-defined]  # noqa: F821
        return 1.0

    assert call(typed) == (1.0, {})


def test_missing_column() -> None:
    with pytest.raises(SignatureError, match="requires the column 'target'; the task has answer, completion"):
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
    assert parse_reward_result(result) == score


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
def test_invalid_results(result: Any, message: str) -> None:
    with pytest.raises(SignatureError, match=message):
        parse_reward_result(result)


def test_rewards_do_not_import_torch() -> None:
    code = (
        "import sys; from strop.rewards.scorer import Scorer; from strop.config.schema.reward import RewardConfig;"
        "Scorer(RewardConfig(functions=[{'function': name} for name in ('gsm8k', 'math', 'by_source')]));"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_worker_imports_no_heavy_library() -> None:
    heavy = "{'numpy', 'pydantic', 'torch'}"
    code = f"import sys, strop.rewards.execution.worker; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_trl_gets_the_rows_own_columns_of_a_taskset_without_an_answer() -> None:
    def reward(completions: list[str], answer: list[str], source: list[str]) -> list[float]:
        return [float(answer == ["4"] and source == ["sums"])]

    columns = {"answer": "4", "source": "sums"}
    response = replace(ANSWER, answer=None, source="", columns=columns)
    assert bind_reward(reward, "reward", {})(response)[0] == 1.0
