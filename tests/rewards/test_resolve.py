"""Resolution of reward functions: references, signatures, arguments, results, and error messages."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import (
    RewardInput,
    SignatureError,
    TrainerState,
    TrainingLength,
    bind_reward,
    parse_reward_result,
)
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
def test_builtin_rewards_exist_and_have_docstrings(name):
    function = RewardFunctionSpec.of(name)
    assert function.name == name
    assert function.load().function.__doc__


def test_sources_refer_to_builtin_rewards():
    assert set(REWARD_BY_SOURCE.values()) < set(BUILTIN_REWARDS)


SPELLS = sorted(["answer", "source", "prompt", "conversation", "numbers", "solution", "extra_info"])


def near(completion: str, numbers: list[int], source: str, prompt: Any, scale: float = 1.0) -> float:
    assert source == "letters" and prompt[0]["content"] == "spell"
    return scale * sum(numbers)


def with_kwargs(solution_str: str, ground_truth: str, **kwargs: Any) -> bool:
    return solution_str == ground_truth and set(kwargs) == {"data_source", "extra_info"}


def untyped(completion: str, answer: NoSuchType) -> float:  # noqa: F821  (no type at run time)
    return 1.0


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (f"{USERS}:share_of_a", {}, (pytest.approx(1 / 3), {})),
        ("tests.rewards.users.share_of_a", {}, (pytest.approx(1 / 3), {})),
        (users.judge, {}, (1.0, {})),
        (lambda text: len(text), {}, (3.0, {})),
        (lambda completion, **columns: sorted(columns) == SPELLS, {}, (1.0, {})),
        (functools.partial(lambda completion, answer, scale: scale, scale=4), {}, (4.0, {})),
        (near, {}, (3.0, {})),
        (near, {"scale": 2.0}, (6.0, {})),
        (untyped, {}, (1.0, {})),
        # verl's signatures
        (f"{USERS}:compute_score", {"bonus": 1}, (2.0, {"acc": 1.0, "index": 5.0})),
        (with_kwargs, {}, (1.0, {})),
        (f"{USERS}:batched", {}, (2.0, {})),
        (f"{USERS}:asked", {}, (3.0, {"acc": 1.0})),
        # TRL's signatures
        (users.trl_messages, {}, (1.0, {})),
        (users.trl_soft_overlong, {}, (-3.0, {})),
    ],
)
def test_functions_get_columns_and_arguments_by_name(function, args, expected):
    assert call(function, **args) == expected


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
def test_unresolvable_functions_are_rejected(function, message):
    with pytest.raises(RewardError, match=f"(?s){message}"):
        RewardFunctionSpec.of(function)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\nraise OSError('no license')\n", r"failed: OSError: no license.*line 2"),
        ("def f(:\n", r"bad\.py failed: SyntaxError"),
        ("import sys\nsys.exit(0)\n", r"bad\.py failed: SystemExit: 0"),
        ("import no_such_package\n", "No module named 'no_such_package'"),
    ],
)
def test_file_that_fails_to_load(tmp_path, source, message):
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(RewardError, match=rf"(?s)loading .*{message}"):
        RewardFunctionSpec.of(f"{tmp_path / 'bad.py'}:f")


def test_function_that_cannot_be_pickled():
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
def test_invalid_arguments(function, args, message):
    with pytest.raises(RewardError, match=message):
        RewardFunctionSpec.of(function, args=args)


def test_missing_column():
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
        ((0.25,), (0.25, {})),
        (np.array([0.25]), (0.25, {})),
        (torch.tensor(0.25), (0.25, {})),
        (torch.tensor([[0.25]], dtype=torch.bfloat16), (0.25, {})),
        ([torch.tensor(True)], (1.0, {})),
        ([np.int64(3)], (3.0, {})),
        (Fraction(1, 4), (0.25, {})),
        (
            {"score": np.float32(0.5), "acc": np.bool_(True), "n": torch.tensor(2)},
            (0.5, {"acc": 1.0, "n": 2.0}),
        ),
        ({"score": 0.5, "part": None, "word": "x", "far": np.float64("inf")}, (0.5, {})),
        ({"score": 1, "acc": True, "pred": "x", "bad": float("nan")}, (1.0, {"acc": 1.0})),
    ],
)
def test_results(result, score):
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
        (np.zeros(2), "returned a ndarray.*one number for each response"),
        ([None], "returned None; .*only a function in TRL's form leaves itself out"),
        (torch.tensor(float("nan")), "returned nan"),
        ([np.float32("inf")], "returned inf"),
        ({"score": np.float64("nan")}, "returned nan"),
        (1j, "returned a complex"),
    ],
)
def test_invalid_results(result, message):
    with pytest.raises(SignatureError, match=message):
        parse_reward_result(result)


def test_rewards_import_no_heavy_library():
    """A worker: neither numpy nor pydantic; the scorer: not torch."""
    code = """
import sys
import strop.rewards.execution.worker
assert not {"numpy", "pydantic", "torch"} & set(sys.modules)
from strop.config.schema.reward import RewardConfig
from strop.rewards.scorer import Scorer
Scorer(RewardConfig(functions=[{"function": name} for name in ("gsm8k", "math", "by_source")]))
assert not {"torch", "transformers"} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SAID = (
    {"role": "assistant", "content": "a?"},
    {"role": "tool", "content": "b"},
    {"role": "assistant", "content": "abc"},
)


@pytest.mark.parametrize("annotation", [list[str], list[list[dict[str, str]]], "NoSuchType"])
def test_trl_gets_text_or_messages_by_the_prompts_column(annotation):
    """trl/trainer/grpo_trainer.py, _generate and _calculate_rewards: never by the annotation."""
    seen: list[Any] = []

    def reward(prompts: Any, completions: Any) -> list[float]:
        seen.append((prompts, completions))
        return [1.0]

    reward.__annotations__["completions"] = annotation
    bound = bind_reward(reward, "reward", {})
    for response in (
        ANSWER,
        replace(ANSWER, prompt_text="spell"),
        replace(ANSWER, conversation=(*ANSWER.prompt, *SAID)),
    ):
        assert bound(response) == (1.0, {})
    messages = [list(ANSWER.prompt)]
    assert seen == [
        (messages, [[{"role": "assistant", "content": "abc"}]]),
        (["spell"], ["abc"]),
        (messages, [list(SAID)]),
    ]


def test_trl_gets_the_rows_own_columns_of_a_taskset_without_an_answer():
    def reward(completions: list[str], answer: list[str], source: list[str]) -> list[float]:
        return [float(answer == ["4"] and source == ["sums"])]

    columns = {"answer": "4", "source": "sums"}
    response = replace(ANSWER, answer=None, source="", columns=columns)
    assert bind_reward(reward, "reward", {})(response)[0] == 1.0


def test_none_in_trls_form_leaves_the_function_out():
    def skips(completions: list[Any], **columns: Any) -> list[float | None]:
        return [None for _ in completions]

    async def later(completions: list[Any], **columns: Any) -> list[float | None]:
        return skips(completions)

    for function in (skips, later, functools.partial(skips, unused=1)):
        assert bind_reward(function, "f", {})(ANSWER) == (None, {})
    with pytest.raises(SignatureError, match="returned None"):
        bind_reward(lambda completions: None, "f", {})(ANSWER)


@pytest.mark.parametrize(
    "result",
    [[np.float64(0.5)], np.array([0.5]), torch.tensor([0.5]), (torch.tensor(0.5),)],
)
def test_trls_form_may_return_an_array(result):
    assert bind_reward(lambda completions, **columns: result, "f", {})(ANSWER) == (0.5, {})


def test_the_prediction_of_verls_pred():
    _, parts = parse_reward_result({"score": 1, "acc": True, "pred": 42})
    assert (parts, parts.prediction) == ({"acc": 1.0, "pred": 42.0}, "42")
    assert parse_reward_result({"score": 1, "pred": None})[1].prediction is None


def test_trls_form_gets_the_trainer_state_and_logs():
    def reward(
        completions: list[Any], trainer_state: Any, log_metric: Any, log_extra: Any, **columns: Any
    ) -> list[float]:
        log_metric("length", np.float32(3))
        log_metric("none", None)
        log_extra("gold", ["text"])
        log_extra("count", [2])
        return [trainer_state.global_step / trainer_state.max_steps for _ in completions]

    length = TrainingLength(updates=40, updates_per_step=4, steps=10, steps_per_epoch=5)
    response = replace(ANSWER, trainer_state=length.state(3))
    assert bind_reward(reward, "f", {})(response) == (0.3, {"length": 3.0, "count": 2.0})


@pytest.mark.parametrize(
    ("version", "untrained", "expected"),
    [
        (0, 0, TrainerState(0, 40, 0.0, 2.0)),
        (5, 0, TrainerState(20, 40, 1.0, 2.0)),
        (5, 2, TrainerState(12, 40, 1.0, 2.0)),
        (11, 0, TrainerState(40, 40, 2.2, 2.0)),
    ],
)
def test_trainer_state_of_a_version(version, untrained, expected):
    length = TrainingLength(40, 4, steps=10, steps_per_epoch=5, untrained_steps=untrained)
    assert length.state(version) == expected


def test_the_trainer_state_names_what_it_has():
    with pytest.raises(AttributeError, match="no 'log_history' here; it has global_step, max_steps, epoch"):
        _ = TrainerState().log_history


def test_a_verl_function_with_an_argument_that_nothing_passes():
    def score(solution_str: str, ground_truth: str, threshold: float) -> float:
        return 1.0

    with pytest.raises(
        RewardError, match=r"requires 'threshold', .* gets data_source, extra_info, ground_truth"
    ):
        bind_reward(score, "score", {})
    assert bind_reward(score, "score", {"threshold": 1})(ANSWER)[0] == 1.0


def test_a_row_keeps_its_own_answer_under_a_taskset_without_an_answer_column():
    response = replace(ANSWER, answer=None, columns={"answer": "own"})
    assert bind_reward(lambda completion, answer: float(answer == "own"), "f", {})(response)[0] == 1.0
