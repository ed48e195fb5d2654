"""Reward function classes written for Trinity-RFT."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.errors import RewardError
from strop.rewards.execution.function_spec import RewardFunctionSpec
from strop.rewards.execution.signature import RewardInput
from strop.rewards.trinity_interface import REWARD_FN_CLASSES

FILE = """
from trinity.common.rewards.reward_fn import REWARD_FUNCTIONS, RewardFn
from trinity.utils.eval_utils import validate_think_pattern
from trinity.utils.log import get_logger

logger = get_logger(__name__)

@REWARD_FUNCTIONS.register_module("short")
class Short(RewardFn):
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, response, truth=None, **kwargs):
        return {"short": float(len(response) <= self.limit), "right": 0.5 * (truth in response),
                "think": 0.1 * validate_think_pattern(response)}
"""


def test_a_class_is_a_reward_function_of_a_run(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text(FILE)
    spec = RewardFunctionSpec.of(f"{file}:Short", args={"limit": 4})
    value, parts = spec.load()(RewardInput("four", (), answer="our"))
    assert (value, parts) == (1.5, {"short": 1.0, "right": 0.5, "think": 0.0})
    with pytest.raises(RewardError, match=r"Short\(\.\.\.\) raised TypeError: .*limit"):
        RewardFunctionSpec.of(f"{file}:Short")


@pytest.mark.parametrize(
    ("name", "response", "truth", "expected"),
    [
        ("math_reward", "<think>\nadd\n</think>\n<answer>\n4\n</answer>", "4", 1.1),
        ("math_reward", "4", "4", 0.9),
        ("math_boxed_reward", "\\boxed{4}", "4", 1.0),
        ("accuracy_reward", "it is 5", "4", 0.0),
    ],
)
def test_trinitys_own_classes_give_its_rewards(name: str, response: str, truth: str, expected: float) -> None:
    parts = REWARD_FN_CLASSES[name]()(response=response, truth=truth)
    assert sum(parts.values()) == pytest.approx(expected)


def test_arguments_of_a_call_reach_the_boxed_reward() -> None:
    boxed = REWARD_FN_CLASSES["math_boxed_reward"]()
    parts = boxed(response="\\boxed{4}", truth="4", with_think=True, format_score_coef=0.3)
    assert sum(parts.values()) == pytest.approx(0.7)
