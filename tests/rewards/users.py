"""Reward functions as a user may write them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from typing import Any


def share_of_a(completion: str) -> float:
    return completion.count("a") / max(1, len(completion))


def near(completion: str, answer: str, numbers: list[int], scale: float = 1.0) -> float:
    return scale * (len(completion) + int(answer) + sum(numbers))


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, bonus: float = 0.0
) -> dict[str, Any]:
    right = solution_str == ground_truth
    return {"score": right + bonus, "acc": right, "index": extra_info["index"], "pred": data_source}


def trl_messages(
    prompts: list[Any], completions: list[Any], solution: list[str], **kwargs: Any
) -> list[float]:
    assert len(prompts) == len(completions) == len(solution) == len(kwargs["answer"]) == 1
    assert prompts[0][0]["role"] == "user"
    return [float(c[0]["content"] == s) for c, s in zip(completions, solution, strict=True)]


def trl_soft_overlong(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [-float(len(ids)) for ids in completion_ids]


def two_dicts(completion: str) -> dict[str, float]:
    return {"reward": 1.0}


def batched(data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any) -> list[float]:
    return [2.0 * (text == answer) for text, answer in zip(solution_strs, ground_truths, strict=True)]


async def asked(solution_str: str, ground_truth: str, **kwargs: Any) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"score": 3.0, "acc": float(solution_str == ground_truth)}


def hang(completion: str) -> float:
    while "loop" in completion:
        pass
    return 1.0


class Judge:
    def __call__(self, completion: str, answer: str) -> float:
        return float(completion == answer)


judge = Judge()
not_a_function = 3


def mishaps(completion: str, answer: str) -> Any:
    """Fails as the completion says, or returns the completion as a number."""
    match completion:
        case "raise":
            return {"1": 1}[answer]
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(1000)
        case "regex":
            return re.match("(a+)+$", "a" * 60 + "b")  # holds the GIL for ages
        case "exit":
            sys.exit(3)
        case "os._exit":
            os._exit(4)
        case "abort":
            os.abort()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "nan":
            return float("nan")
        case "none":
            return None
        case "text":
            return "good"
    time.sleep(0.12)
    return float(completion)
